"""`python -m benchmarks [CASE ...] [--quick] [--rounds N]`; without cases, all of them."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import results
from benchmarks.cases import CASES, Case, find
from benchmarks.data import build
from benchmarks.machine import facts
from benchmarks.plot import draw
from benchmarks.report import markdown
from benchmarks.rounds import Bench
from benchmarks.scale import FULL, QUICK, Scale, bench_dir
from benchmarks.server import object_directory

HERE = Path(__file__).parent


def main() -> None:
    """Measure, keep what came out, and write the report."""
    options = _arguments()
    scale = QUICK if options.quick else FULL
    directory = bench_dir()
    kept = directory / f"results-{scale.name}"
    if not options.report:
        _measure(options.cases or CASES, scale, directory, kept, options.rounds)
    if options.quick or options.cases:
        _write(kept, directory)
    else:
        _write(kept, HERE)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ckptsync and its peers.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small data, one round: to see that everything runs")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the scale's")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what is kept")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return options


def _measure(cases: Sequence[str], scale: Scale, directory: Path, kept: Path, rounds: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    data = build(directory, scale)
    work = Path(tempfile.mkdtemp(prefix="work-", dir=directory))
    objects = Path(tempfile.mkdtemp(prefix="ckptsync-bench-", dir=object_directory(work)))
    tempfile.tempdir = str(objects)  # what SeaweedFS asks
    try:
        bench = Bench(scale, data, work, rounds or scale.rounds)
        for name in cases:
            started = time.monotonic()
            print(f"{name} ...", flush=True)
            results.store(_one(bench, find(name)), kept)
            print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(objects, ignore_errors=True)


def _one(bench: Bench, case: Case) -> results.Result:
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    tables, targets = case.run(bench)
    rounds = max((len(v) for table in tables for arm in table.arms for v in arm.figures.values()), default=0)
    return results.Result(case.name, case.title, case.method, rounds, when, bench.scale.name, tables, targets)


def _write(kept: Path, target: Path) -> None:
    found = results.load(kept, CASES)
    text = markdown(found, facts())
    (target / "RESULTS.md").write_text(text)
    draw(found, target / "results.png")
    print(f"\n{text}\nwritten to {target / 'RESULTS.md'}")


if __name__ == "__main__":
    main()
