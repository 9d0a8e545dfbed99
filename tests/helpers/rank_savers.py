"""Saves told by a few numbers: who wrote which ranks when, by whose clock; and which of them a set of parts holds."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from ckptsync.layouts.verl import Verl
from ckptsync.model.manifest import digest_of
from ckptsync.model.merge import saves_of

WINDOW_NS = 3600 * 10**9
LAYOUT = Verl()


@dataclass(frozen=True)
class Writer:
    """Builds the parts of one save of step 20: `world` ranks, dealt to nodes as (ranks of n0, ranks of n1, ...)."""

    make_part: object
    deal: tuple[tuple[int, ...], ...]
    label: str = "A"
    began: float = 0.0
    previous: float | None = None
    clocks: tuple[float, ...] = ()
    sft: bool = False
    driver: int = 0
    skip: frozenset[str] = frozenset()

    @property
    def world(self) -> int:
        return sum(len(ranks) for ranks in self.deal)

    def files(self, node: int) -> dict[str, float]:
        """path -> when it was written, in true time: a rank every second, then rank 0's files, then the dataloader."""
        role = "" if self.sft else "actor/"
        found = {
            f"{role}{kind}_world_size_{self.world}_rank_{rank}.pt": self.began + rank + 0.25 * index
            for rank in self.deal[node]
            for index, kind in enumerate(("model", "optim"))
        }
        if 0 in self.deal[node]:
            found |= {f"{role}fsdp_config.json": self.began + 1, f"{role}huggingface/config.json": self.began + 1}
        if self.sft:
            found |= {f"data_{rank}.pt": self.began + rank + 0.5 for rank in self.deal[node]}
        elif node == self.driver:
            found["data.pt"] = self.began + self.world + 1
        return {path: seconds for path, seconds in found.items() if path not in self.skip}

    def part(self, node: int, **fields):
        clock = self.clocks[node] if self.clocks else 0.0
        files = self.files(node)
        closing = [path for path in files if path.startswith("data")]
        content = {
            path: (f"{self.label} {path}" if path.endswith(".pt") else path, seconds + clock)
            for path, seconds in files.items()
        }
        ends = [seconds for path, seconds in files.items() if path in closing or not closing]
        return self.make_part(
            f"n{node}",
            content,
            saved=max(ends, default=self.began) + clock,
            closed=bool(closing),
            previous=None if self.previous is None else self.previous + clock,
            clock=clock,
            **fields,
        )

    def parts(self):
        return [self.part(node) for node in range(len(self.deal)) if self.files(node)]

    @property
    def paths(self) -> set[str]:
        return {path for node in range(len(self.deal)) for path in self.files(node)}


def saves_in(parts, rules=LAYOUT, **options):
    return saves_of(parts, rules, window_ns=WINDOW_NS, **options)


def labels_of(union) -> set[str]:
    """Which saves the shards and closing files of a union come from, by what is written in them."""
    found = set()
    for _, entry in union.files.values():
        for label in "ABCD":
            text = f"{label} {entry.path}".encode()
            found |= {label} if entry.digest == digest_of(text) else set()
    return found


@st.composite
def deals(draw, fewest=1, most=5):
    """Up to 6 ranks over up to 5 nodes; a node may have none."""
    count, world = draw(st.integers(fewest, most)), draw(st.integers(1, 6))
    owners = [draw(st.integers(0, count - 1)) for _ in range(world)]
    return tuple(tuple(rank for rank in range(world) if owners[rank] == node) for node in range(count))


CLOCKS = st.lists(st.integers(-600, 600), min_size=5, max_size=5).map(tuple)
