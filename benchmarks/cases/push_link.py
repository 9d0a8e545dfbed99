"""Push over a link of 1 Gbit/s."""

from __future__ import annotations

from benchmarks.arms import OURS, VERIFY_TOO, peers_pushing, pushing
from benchmarks.link import serving_behind_link, why_no_link
from benchmarks.results import Table, Target, against
from benchmarks.rounds import Bench, interleave

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Push over a link of 1 Gbit/s"
METHOD = (
    "As the push of a first step, with the server in a network namespace behind a veth pair, both ends limited by "
    "`tc qdisc ... tbf rate 1gbit burst 512kb latency 50ms`. The server shares the two cores with the client."
)
PEERS = ("s5cmd", "rclone", "restic")
MOST = {"fp32": 0.85, "bf16": 0.7}
ROUNDS = 3


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """fp32 and bf16."""
    tables, targets = [], []
    for dtype, most in MOST.items():
        what = f"push over 1 Gbit/s, {dtype}: wall to s5cmd's"
        if why := why_no_link():
            targets.append(Target(what, None, most, why=why))
            continue
        step = bench.series(dtype)[0]
        actions = [pushing(step), *peers_pushing(step, PEERS)]
        arms = interleave(bench, actions, servers=serving_behind_link, rounds=min(bench.rounds, ROUNDS))
        table = Table(f"{dtype} weights and moments, {step.bytes / 1e6:.0f} MB", arms)
        tables.append(table)
        targets += [
            against(table, "s5cmd", most, what, ours=OURS),
            against(table, "s5cmd", most, f"({what}, verification included)", ours=VERIFY_TOO),
        ]
    return tables, targets
