"""Bringing one verified save into the store. Order: part, condemn lists, missing chunks, stat, ready, commit."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ckptsync.chunks.profile import Profile
from ckptsync.disk.durable import crash_point
from ckptsync.disk.saves import Save, Saves
from ckptsync.errors import StoreError
from ckptsync.model.manifest import ChunkRef, Part, PartId, pieces_of
from ckptsync.model.merge import StepRules
from ckptsync.model.parse import parse_part, parse_part_id
from ckptsync.model.step import Problem
from ckptsync.store import keys
from ckptsync.sync.commit import Outcome, RulesOf, check_commit, try_commit
from ckptsync.sync.remote import Remote
from ckptsync.sync.send import PushOptions, Sender, Source

__all__ = ["PushOptions", "Pushed", "Source", "adopt_commit", "commit_ready", "push", "put_part"]

_RELY_ON_PARTS = 4
_CHOICES_MAX = 8


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: bytes of the step, bytes sent after encoding, whether a commit stands, and where time went."""

    step: int
    part: PartId
    outcome: Outcome
    bytes_total: int
    bytes_sent: int
    profile: Profile = field(default_factory=Profile)


def adopt_commit(
    remote: Remote,
    saves: Saves,
    save: Save,
    rules_of: RulesOf,
    *,
    window_ns: int,
    dropped: Callable[[str], bool] = lambda _: False,
) -> str:
    """Find a valid commit that holds exactly this save's content already, and remember it; returns its digest or "".

    After a restore or a lost state directory the same bytes must not become a second commit. Files that a restore
    leaves out (`dropped`) do not count.
    """
    index = remote.index(save.part.step)
    condemned = remote.condemned()
    mine = {file.path: file.digest for file in save.part.files if not dropped(file.path)}
    for digest in sorted(index.commits):
        union, _ = check_commit(remote, index, digest, rules_of, condemned, window_ns=window_ns)
        theirs = union.files if union is not None else {}
        if mine == {path: entry.digest for path, (_, entry) in theirs.items() if not dropped(path)}:
            saves.mark(save, "commit", digest)
            return digest
    return ""


def put_part(remote: Remote, saves: Saves, save: Save, root: str) -> Part:
    """Put the part of a verified save, small and before any chunk. A part put before is put again, byte for byte.

    Args:
        remote: the run in the store.
        saves: where the part's bytes are kept.
        save: verified.
        root: where its files are, for the last look at them.

    Returns:
        The part as the store has it: times in store time, no condemned chunk key relied on.

    Raises:
        StepChanged: a file moved since it was verified.
    """
    Source(root, save).check_unmoved()
    held = saves.mark_of(save, "part")
    if held is not None:
        part = parse_part(held.encode("ascii"))
        if part.run_id == remote.run_id:
            names = _names(remote, part)
            if not names & remote.condemned().listed:
                _put(remote, saves, save, part)
                if not names & remote.condemned().listed:
                    return part
    offset = remote.clock_offset_ns(save.part.node)
    part = replace(
        save.part,
        run_id=remote.run_id,
        offset_ns=offset,
        saved_ns=save.part.saved_ns + offset,
        previous_ns=save.part.previous_ns + offset if save.part.previous_ns else 0,
    )
    known = _known_keys(remote, saves)
    for _ in range(_CHOICES_MAX):
        condemned = remote.condemned().listed
        part = _choose_keys(remote, part, known, condemned)
        data = part.to_bytes()
        saves.mark(save, "part", data.decode("ascii"))
        crash_point("push.before-part")
        _put(remote, saves, save, part.spelled(data))
        if not _names(remote, part) & remote.condemned().listed:
            return part
    raise StoreError("cannot put a part", where=remote.store.url, why="collections keep condemning its chunks")


def push(
    save: Save,
    root: str,
    remote: Remote,
    saves: Saves,
    rules: StepRules,
    options: PushOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
    announced: Callable[[Part], None] = lambda _: None,
) -> Pushed:
    """Push one save and try to commit its step.

    Args:
        save: verified.
        root: the staged copy, or the step directory.
        remote: the run in the store.
        saves: where acknowledged chunks and marks are remembered.
        rules: the run's layout.
        options: how to push.
        stop: true = Interrupted, after the chunks in flight; what was acknowledged is remembered.
        progress: told the raw bytes of each chunk that is in the store.
        announced: told the part, once it is in the store and before any chunk.

    Raises:
        StepChanged: the bytes are no longer those that were verified; nothing is committed.
        ConflictError: nodes hold different bytes for one shard.
        StoreError: the store failed; the next push goes on where this one ended.
    """
    begun, cpu_begun = time.perf_counter(), time.process_time()
    part = put_part(remote, saves, save, root)
    announced(part)
    source = Source(root, save)
    profile = _send(source, part, remote, saves, options, stop, progress)
    source.check_unmoved()
    crash_point("push.before-ready")
    remote.put_ready(part.step, part.id)
    saves.mark(save, "ready", str(part.id))
    crash_point("push.before-commit")
    outcome = _commit(remote, saves, save, part, rules, options.window_ns)
    profile.wall_s, profile.cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    return Pushed(part.step, part.id, outcome, part.size, profile.sent, profile)


def commit_ready(remote: Remote, saves: Saves, save: Save, rules: StepRules, *, window_ns: int) -> Pushed | None:
    """Try again to commit the step of a save whose part is ready; its bytes are not needed for that.

    Returns:
        None: the part is not ready in the store (any more), so it takes a push.
    """
    ready, step = saves.mark_of(save, "ready"), save.part.step
    if ready is None or parse_part_id(ready) not in remote.index(step).ready:
        return None
    if keys.part_key(remote.run, step, ready) in remote.condemned().listed:
        return None  # it will not be committed any more: another part has to take its place
    part = remote.parts(step, [parse_part_id(ready)]).get(parse_part_id(ready))
    if part is None:
        return None
    outcome = _commit(remote, saves, save, part, rules, window_ns)
    return Pushed(step, part.id, outcome, part.size, 0)


def _commit(remote: Remote, saves: Saves, save: Save, part: Part, rules: StepRules, window_ns: int) -> Outcome:
    """Try to commit, and remember when nothing is left to do: also where others hold all there is of the step."""
    outcome = try_commit(remote, part.step, rules, window_ns=window_ns)
    union = outcome.union
    if union is not None and (part.id in union.parts or part.saved_ns <= union.end_ns):
        if part.id in union.parts:
            saves.mark(save, "whole")
        saves.mark(save, "commit", union.commit.digest)
    elif union is not None:
        return Outcome(None, (Problem("", "not-ready", "only an earlier save of this step is whole yet"),))
    return outcome


def _send(
    source: Source,
    part: Part,
    remote: Remote,
    saves: Saves,
    options: PushOptions,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
) -> Profile:
    """Put the chunks that nothing vouches for yet."""
    mark, save, pieces = _acked(part), source.save, pieces_of(part)
    present = set(_known_keys(remote, saves).values()) | set((saves.mark_of(save, mark) or "").split())
    missing = [(ref, each) for ref, each in zip(part.chunks, pieces, strict=True) if ref.key not in present]

    def done(ref: ChunkRef) -> None:
        saves.append(save, mark, ref.key)
        progress(ref.size)

    sender = Sender(source, remote.store, options, lambda ref: keys.chunk_key(remote.run, ref.key), stop)
    sender.profile.skipped = len(part.chunks) - len(missing)
    sender.profile.skipped_raw = sum(ref.size for ref in part.chunks) - sum(ref.size for ref, _ in missing)
    crash_point("push.before-chunks")
    sender.send(missing, done)
    return sender.profile


def _put(remote: Remote, saves: Saves, save: Save, part: Part) -> None:
    """Put a part. What was acknowledged to it counts only as long as the part itself is there: buckets get emptied."""
    if remote.put_part(part.step, part.to_bytes()):
        saves.unmark(save, _acked(part))


def _acked(part: Part) -> str:
    """The mark that lists the chunks which the store has acknowledged to this very part."""
    return f"acked-{part.id.digest[:24]}"


def _names(remote: Remote, part: Part) -> set[str]:
    names = {keys.chunk_key(remote.run, ref.key) for ref in part.chunks}
    names.add(keys.part_key(remote.run, part.step, str(part.id)))
    return names


def _choose_keys(remote: Remote, part: Part, known: Mapping[str, str], condemned: frozenset[str]) -> Part:
    """The key for each chunk: one that a ready part names, else its digest; a condemned one gets a fresh suffix."""

    def choose(ref: ChunkRef) -> ChunkRef:
        for key in (known.get(ref.digest), ref.digest):
            if key is not None and keys.chunk_key(remote.run, key) not in condemned:
                return ChunkRef(key, ref.size)
        return _fresh(ref)

    chosen = replace(part, chunks=tuple(choose(ref) for ref in part.chunks))
    if keys.part_key(remote.run, part.step, str(chosen.id)) in condemned and chosen.chunks:
        first, *others = chosen.chunks  # only the part itself is condemned: another key makes it another part
        return replace(chosen, chunks=(_fresh(first), *others))
    return chosen


def _fresh(ref: ChunkRef) -> ChunkRef:
    return ChunkRef(f"{ref.digest}.{secrets.token_hex(8)}", ref.size)


def _known_keys(remote: Remote, saves: Saves) -> dict[str, str]:
    """Digest -> key, from ready, uncondemned parts of this run: this node's own last, else the newest in the store."""
    condemned = remote.condemned().listed
    known: dict[str, str] = {}
    for step, part_id in _ready_parts(remote, saves):
        if keys.part_key(remote.run, step, str(part_id)) in condemned:
            continue
        part = remote.parts(step, [part_id]).get(part_id)
        for ref in part.chunks if part is not None else ():
            if keys.chunk_key(remote.run, ref.key) not in condemned:
                known.setdefault(ref.digest, ref.key)
    return known


def _ready_parts(remote: Remote, saves: Saves) -> list[tuple[int, PartId]]:
    """Newest first. That the mark is in the store is asked, not remembered: buckets get emptied behind our back."""
    own = [
        (save.part.step, parse_part_id(mark))
        for save in reversed(saves.load())
        if (mark := saves.mark_of(save, "ready")) is not None
    ][:_RELY_ON_PARTS]
    if own:
        return [(step, part_id) for step, part_id in own if part_id in remote.index(step).ready]
    found: list[tuple[int, PartId]] = []
    for step in reversed(remote.steps()):
        found += [(step, part_id) for part_id in sorted(remote.index(step).ready)]
        if len(found) >= _RELY_ON_PARTS:
            break
    return found[:_RELY_ON_PARTS]
