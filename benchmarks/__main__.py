"""`python -m benchmarks [CASE ...] [--quick] [--rounds N]`; without cases, all of them."""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import ckptsync
from benchmarks import results
from benchmarks.cases import CASES, Case, find
from benchmarks.data import build
from benchmarks.machine import facts
from benchmarks.measure import CommandFailed
from benchmarks.peers import WANTED
from benchmarks.plot import draw
from benchmarks.report import markdown
from benchmarks.rounds import Bench
from benchmarks.scale import FULL, QUICK, Scale, bench_dir
from benchmarks.server import object_directory

HERE = Path(__file__).parent
_EXIT_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Measure, keep what came out, and write the report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_EXIT_TERMINATED))  # servers and namespaces are removed
    options = _arguments()
    scale = QUICK if options.quick else FULL
    directory = bench_dir()
    kept = directory / f"results-{scale.name}"
    chosen = options.cases or CASES
    failed = [] if options.report else _measure(chosen, scale, directory, kept, options.rounds)
    _write(kept, chosen, directory if options.quick or options.cases else HERE)
    missed = [target.what for result in results.load(kept, chosen) for target in result.targets if target.met is False]
    if failed or (options.check and missed):
        sys.exit("; ".join(failed or missed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ckptsync and its peers.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small data, one round: to see that everything runs")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the scale's")
    parser.add_argument(
        "--peers", default="", metavar="NAME,NAME", help="these peers only, for a look in a few minutes"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what is kept")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if options.peers:
        os.environ[WANTED] = options.peers
    return options


def _measure(cases: Sequence[str], scale: Scale, directory: Path, kept: Path, rounds: int) -> list[str]:
    """Run the cases and keep their results; what failed, a line each."""
    directory.mkdir(parents=True, exist_ok=True)
    data = build(directory, scale)
    work = Path(tempfile.mkdtemp(prefix="work-", dir=directory))
    objects = Path(tempfile.mkdtemp(prefix="ckptsync-bench-", dir=object_directory(work)))
    tempfile.tempdir = str(objects)  # what SeaweedFS asks
    compileall.compile_dir(str(Path(ckptsync.__file__).parent), quiet=2)  # the first arm shall not do it
    bench = Bench(scale, data, work, rounds or scale.rounds)
    try:
        return [line for name in cases if (line := _one(bench, find(name), kept))]
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(objects, ignore_errors=True)


def _one(bench: Bench, case: Case, kept: Path) -> str:
    """Run a case; what failed. The others go on: all together take an hour."""
    print(f"{case.name} ...", flush=True)
    started, when = time.monotonic(), datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    try:
        tables, targets = case.run(bench)
    except (CommandFailed, subprocess.CalledProcessError) as error:
        print(f"{case.name} failed: {error}", file=sys.stderr, flush=True)
        return f"{case.name} failed"
    rounds = max((len(v) for table in tables for arm in table.arms for v in arm.figures.values()), default=0)
    title, method, scale = case.title, case.method, bench.scale.name
    results.store(results.Result(case.name, title, method, rounds, when, scale, tables, targets), kept)
    print(f"{case.name}: {time.monotonic() - started:.0f} s", flush=True)
    return ""


def _write(kept: Path, chosen: Sequence[str], target: Path) -> None:
    """Write the report of all that is kept, and show the part that was asked for."""
    everything, machine = results.load(kept, CASES), facts()
    (target / "RESULTS.md").write_text(markdown(everything, machine))
    draw(everything, target / "results.png")
    print(f"\n{markdown(results.load(kept, chosen), machine)}\nwritten to {target / 'RESULTS.md'}")


if __name__ == "__main__":
    main()
