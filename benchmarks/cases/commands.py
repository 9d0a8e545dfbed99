"""How long `--help`, `status` and the plan of a `pull` take with many remote steps, and what they ask the store."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.dated import dated
from benchmarks.measure import run as run_child
from benchmarks.node import Node
from benchmarks.peers import program
from benchmarks.proxy import counting
from benchmarks.results import Table, Target, figure
from benchmarks.rounds import Action, Bench, Figures, interleave
from benchmarks.server import Server
from ckptsync.testing.checkpoints import age, verl_step

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Commands with many remote steps"
METHOD = (
    "The store holds committed steps of one node, with tiny files, saved half an hour apart; the node still has "
    "the last five. Seconds are those of the process less those of `python -c pass`. Each command runs once "
    "before, unmeasured. The plan is `ckptsync pull --dry-run` on a node that has nothing. It asks through a "
    "proxy, which costs it a few milliseconds a request and gives each commit the time that it would have after "
    "such a training. `copied bucket` is the same without: all objects are as new as a copy, their times say "
    "nothing, and every commit has to be read. Requests are counted in a run of their own; of a list only the "
    "first page counts, each further one is of 1,000 keys."
)
KEPT = 5
SECONDS, LISTS, REQUESTS = "s beyond python", "listings", "requests"
PLAN = "pull --dry-run"
COPIED = f"{PLAN}, copied bucket"
_INTERVAL_S = 1800.0  # from save to save
_COMMIT_S = 60.0  # from a save's end to its commit
BOUNDS = {"--help": 0.2, "status": 0.4, PLAN: 1.0}
_WORDS = {"--help": ("--help",), "status": ("status",), PLAN: ("pull", "--dry-run"), COPIED: ("pull", "--dry-run")}


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """The commands, with few and with many steps."""
    many, few = bench.scale.remote_steps, max(KEPT, bench.scale.remote_steps // 10)
    tables = []
    for count in (many, few):
        store = _store(bench, count)
        arms = interleave(bench, [_commands(store)], rounds=max(bench.scale.command_rounds, bench.rounds))
        tables.append(Table(f"{count} remote steps", arms, versus="", drawn=False))
    targets = [
        figure(tables[0], f"ckptsync {name}", SECONDS, bound, f"{name} with {many} remote steps", "s")
        for name, bound in BOUNDS.items()
    ]
    targets.append(figure(tables[0], f"ckptsync {COPIED}", SECONDS, BOUNDS[PLAN], f"({COPIED}, {many} steps)", "s"))
    plan = f"ckptsync {PLAN}"
    fewest = tables[1].arm(plan)
    assert fewest is not None, "measured above"
    what = f"pull --dry-run: listings with {many} remote steps; as many as with {few}"
    return tables, [*targets, figure(tables[0], plan, LISTS, fewest.spread(LISTS).median, what, "")]


def _store(bench: Bench, count: int) -> Path:
    """A node's directory after it pushed so many steps to a store in a directory; built once."""
    final = bench.data / f"remote-{count}"
    if final.is_dir():
        return final
    temporary = bench.work / "remote"
    shutil.rmtree(temporary, ignore_errors=True)
    bench.say(f"pushing {count} steps ...")
    for step in range(1, count + 1):
        age(verl_step(temporary / "out", step, n=64), (count - step) * _INTERVAL_S)
    config = temporary / "build.toml"
    config.write_text(
        f'[run]\noutput_dir = "{temporary}/out"\nname = "run"\nstate_dir = "{temporary}/state"\n'
        f'[watch]\nsettle = "2s"\n[upload]\nstore = "file://{temporary}/store"\nevery_steps = 1\n'
    )
    daemon: list[str | Path] = [Path(sys.executable).with_name("ckptsync"), "run", "--once", "--config", config]
    run_child(daemon, cwd=temporary)
    for step in range(1, count + 1 - KEPT):
        shutil.rmtree(temporary / "out" / f"global_step_{step}")
    run_child(daemon, cwd=temporary)  # as it always does, it forgets the saves that are gone
    shutil.move(temporary, final)
    return final


def _commands(store: Path) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work / "node", server, "ours")
        shutil.copytree(store / "out", node.output, dirs_exist_ok=True)
        shutil.copytree(store / "state", node.work / "state")
        _upload(server, store / "store", node.name, work)
        python = run_child([sys.executable, "-c", "pass"], cwd=work).wall_s
        found: dict[str, Figures] = {}
        with dated(server, _committed_s(node)) as trained:
            asked = {
                "--help": node,
                "status": node,
                PLAN: Node(work / "fresh", trained, "ours"),
                COPIED: Node(work / "copied", server, "ours"),
            }
            for name, words in _WORDS.items():
                asked[name].ckptsync(*words)
                seconds = asked[name].ckptsync(*words).wall_s - python
                counts = _requests(asked[name].server, work / name, words) if name in (PLAN, COPIED) else {}
                found[f"ckptsync {name}"] = {SECONDS: seconds, **counts}
        return found

    return action


def _committed_s(node: Node) -> Callable[[int], float]:
    """When a step would have been committed (seconds since the epoch), by the newest one and the interval."""
    newest = max(node.output.glob("global_step_*"), key=_step)
    newest_s = max(file.stat().st_mtime for file in newest.rglob("*"))
    return lambda step: newest_s - (_step(newest) - step) * _INTERVAL_S + _COMMIT_S


def _step(directory: Path) -> int:
    return int(directory.name.rpartition("_")[2])


def _requests(server: Server, work: Path, words: Sequence[str]) -> Figures:
    with counting(server) as (counted, counts):
        Node(work, counted, "ours").ckptsync(*words)
        return {LISTS: counts.requests["LIST"], REQUESTS: counts.requests.total()}


def _upload(server: Server, source: Path, name: str, work: Path) -> None:
    """Copy a store from a directory, by the quickest means there are."""
    s5cmd = program("s5cmd")
    assert s5cmd, "one of the requirements"
    environ = {**server.environ, "S3_ENDPOINT_URL": server.endpoint}
    run_child([s5cmd, "cp", f"{source}/", f"s3://{server.bucket}/{name}/"], cwd=work, environ=environ)
