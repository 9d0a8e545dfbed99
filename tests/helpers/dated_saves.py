"""The saves of the past in a store whose modification times are as a test says: their fates, values and decisions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import zstandard
from blake3 import blake3

from ckptsync.chunks.codec import encode
from ckptsync.layouts.verl import Verl
from ckptsync.model.manifest import ChunkRef, Commit, Extent, FileEntry, Part
from ckptsync.model.rounds import Decision, Place
from ckptsync.model.step import Level
from ckptsync.store import keys
from ckptsync.store.objects import open_objects
from ckptsync.sync.collect_lists import render
from ckptsync.sync.history import mark_bad
from ckptsync.sync.notes import put_tag
from ckptsync.sync.remote import Remote
from ckptsync.testing.faulty import FaultyStore

RUN_ID = "00112233445566778899aabbccddeeff"
LAYOUTS = {"verl": Verl()}
SECOND = 10**9
HOUR_NS = 3600 * SECOND
EPOCH_NS = 1_800_000_000 * SECOND
FATES = ("fine", "fine", "fine", "part gone", "part broken", "commit broken", "part void", "not ready", "no commit")


class Dated(FaultyStore):
    """A store whose modification times are as the test says."""

    def __init__(self) -> None:
        super().__init__(open_objects(f"memory://{uuid.uuid4().hex}"))
        self.times: dict[str, int | None] = {}

    def list(self, prefix: str) -> Iterator:
        return (replace(meta, modified_ns=self.times.get(meta.key)) for meta in super().list(prefix))

    def asked(self, operation: str, kind: str = "") -> list[str]:
        return [key for done, key in self.calls if done == operation and kind in key]


@dataclass(frozen=True)
class Past:
    """One save of the past: when it ended, how long after that its commit was put (None: unknown), and its fate.

    `loss` stands in a file of the step, `tag` was given to it by hand, under its commit or its part.
    """

    step: int
    end_ns: int
    lag_ns: int | None
    fate: str = "fine"
    loss: float | None = None
    tag: tuple[str, float] | None = None


def metrics_of(loss: float) -> bytes:
    return json.dumps({"loss": loss}).encode()


def part_of(step: int, end_ns: int, loss: float | None = None) -> Part:
    shards = [f"actor/{kind}_world_size_1_rank_0.pt" for kind in ("extra_state", "model", "optim")]
    names = sorted([*shards, "actor/fsdp_config.json", "actor/huggingface/config.json", "data.pt"])
    digest = f"{step:032x}{end_ns:032x}"
    files = [
        FileEntry(name, 1, 0o644, end_ns - SECOND * (name != "data.pt"), digest, (Extent(0, 0, 1),)) for name in names
    ]
    chunks = [ChunkRef(digest, 1)]
    if loss is not None:
        data = metrics_of(loss)
        name, size = "metrics.json", len(data)
        chunks.append(ChunkRef(blake3(data).hexdigest(), size))
        files.append(FileEntry(name, size, 0o644, end_ns - SECOND, chunks[1].key, (Extent(1, 0, size),)))
    return Part(
        run="run",
        run_id=RUN_ID,
        step=step,
        name=f"global_step_{step}",
        below="",
        node="a",
        node_id=RUN_ID,
        layout="verl",
        level=Level.FULL,
        saved_ns=end_ns,
        closed=True,
        previous_ns=0,
        offset_ns=0,
        files=tuple(files),
        chunks=tuple(chunks),
    )


def put(store: Dated, past: Past) -> None:
    part = part_of(past.step, past.end_ns, past.loss)
    commit = Commit("run", RUN_ID, past.step, (part.id,))
    part_key = keys.part_key("run", past.step, str(part.id))
    commit_key = keys.commit_key("run", past.step, commit.digest)
    if past.fate != "part gone":
        store.put(part_key, b"broken" if past.fate == "part broken" else zstandard.compress(part.to_bytes()))
    store.times[part_key] = past.end_ns + SECOND
    if past.fate != "not ready":
        store.put(keys.ready_key("run", past.step, str(part.id)), b"")
    if past.fate != "no commit":
        store.put(commit_key, b"broken" if past.fate == "commit broken" else commit.to_bytes())
    if past.fate == "part void":
        condemn(store, part_key)
    if past.fate == "bad":
        mark_bad(Remote(store, "run", RUN_ID), past.step, commit.digest, node="a", why="it is")
    if past.loss is not None and past.fate != "chunk gone":
        data = metrics_of(past.loss)
        store.put(keys.chunk_key("run", part.chunks[1].key), encode(data, compression="none"))
    if past.tag is not None:
        under, value = past.tag
        put_tag(Remote(store, "run", RUN_ID), commit.digest if under == "commit" else part.digest, "loss", value)
    store.times[commit_key] = None if past.lag_ns is None else past.end_ns + past.lag_ns


def condemn(store: Dated, key: str) -> None:
    """One more collection."""
    number = len(store.asked("put", "/gc/")) + 1
    store.put(f"{keys.gc_prefix('run')}/{number:06d}/list", render("run", RUN_ID, [key], keeps=[]))


def remote_of(pasts) -> Remote:
    store = Dated()
    for past in pasts:
        put(store, past)
    store.calls.clear()
    return Remote(store, "run", RUN_ID)


def decide(store: Dated, number: int, made_ns: int, saved_ns: int) -> None:
    """The nodes decided for the save of step 0 that ended at `saved_ns`."""
    place = Place("run", RUN_ID, f"job-{number}", 1)
    key = keys.decision_key("run", f"job-{number}", 1)
    store.put(key, Decision(place, "a", 1, "commit", 0, "a" * 64, saved_ns, made_ns).to_bytes())
    store.times[key] = made_ns + SECOND
