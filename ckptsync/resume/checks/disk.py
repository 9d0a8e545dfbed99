"""`disk`: the next saves can be written, and there is room for them: by the size of the last ones, and by retention."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from ckptsync.app import Node
from ckptsync.config_paths import check_staging, check_written
from ckptsync.disk.space import disk_of, given_back
from ckptsync.disk.stage import Staging
from ckptsync.errors import ConfigError
from ckptsync.model.pressure import Limits, Space, fits, give_way, next_save, shortage
from ckptsync.model.retention import LocalFacts, judge_local
from ckptsync.model.step import LocalState
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.retain import policies_of

__all__ = ["check"]

_WHOLE = frozenset({LocalState.VERIFIED, LocalState.COMPLETE, LocalState.SETTLING})
_MANY = 99
_KIBI, _UNITS = 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FREE = "free some space; `ckptsync retain` shows what could go"


def check(context: Context) -> Outcome:
    """fail: the next save will not fit; warn: the one after it will not, or nothing can be staged beside output_dir.

    skip: no step tells how large a save is.

    Raises:
        ConfigError: output_dir or state_dir cannot be written, which is a failure, too.
    """
    output_dir = context.node.output_dir or context.node.config.run.output_dir
    check_written(context.node.config, output_dir)
    found = _room(context)
    if found.status == "fail" or not os.path.isdir(output_dir) or os.path.isdir(Staging(output_dir).root):
        return found
    try:
        check_staging(output_dir)
    except ConfigError as error:
        return warned(f"ckptsync {error.what}: {error.where}: {error.why}; {found.message}", error.remedy)
    return found


def _room(context: Context) -> Outcome:
    node, local = context.node, context.node.local
    views = local.look(time.monotonic()) if local is not None else ()
    facts = [_facts(node, local, view) for view in views] if local is not None else []
    size = next_save(facts, [view.listing.size for view in views])
    if local is None or not size:
        return skipped("no whole step here tells how large a save is", "it is known after the first save")
    twice = _store_beside(node)
    disk = disk_of(node.output_dir)
    space = Space(disk.free, disk.total, 0, sum(view.listing.size for view in views), size * (2 if twice else 1))
    coming = _coming(node, facts, views, space)
    said = f"{_bytes(disk.free)} free, a save takes about {_bytes(size)}" + twice
    freed = f", and retention lets go of {_bytes(coming)}" if coming else ""
    if not fits(space, coming):
        return failed(f"the next save will not fit: {said}{freed}", _FREE)
    rooms = (space.free + coming) // space.next_save
    if rooms == 1 and not coming:
        return warned(f"the save after the next will not fit: {said}", _FREE)
    room = "the next save" if coming else f"{rooms} saves" if rooms <= _MANY else f"more than {_MANY} saves"
    return passed(f"room for {room}: {said}{freed}")


def _facts(node: Node, local: LocalSteps, view: StepView) -> LocalFacts:
    """A step directory as retention sees it, as far as this disk tells."""
    save = view.save
    state = LocalState.VERIFIED if view.state in _WHOLE else view.state
    commit = (save.commit or node.saves.mark_of(save, "commit")) if save is not None else None
    return LocalFacts(
        view.step,
        save.name if save is not None else view.name,
        view.end_ns or view.listing.newest_ns,
        state,
        given_back([view.listing.path]) if node.config.retention.local.delete else 0,
        latest=view.name == node.latest_name(),
        tracker=local.tracker is not None and local.tracker.step == view.step,
        resumed=view.step == node.saves.pulled_step() or save is None,  # what no daemon has verified stays
        due=save is not None and node.saves.mark_of(save, "due") is not None,
        committed=bool(commit),
    )


def _coming(node: Node, facts: Sequence[LocalFacts], views: Sequence[StepView], space: Space) -> int:
    """Bytes that the daemon's retention would free before the disk is full; pins are known to the store alone."""
    table = node.config.retention.local
    if not table.delete or fits(space):
        return 0
    verdicts = judge_local(facts, policies_of(table), time.time_ns())
    going = give_way(facts, verdicts, shortage(space, Limits(table.min_free, table.max_size)))
    return given_back([view.listing.path for view, verdict in zip(views, going, strict=True) if not verdict.keep])


def _store_beside(node: Node) -> str:
    """Words where the store is a directory on the same file system: what is uploaded takes its room, too."""
    url = urlsplit(node.config.upload.store)
    if url.scheme != "file":
        return ""
    path = unquote(url.path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    same = os.stat(path).st_dev == os.stat(node.output_dir).st_dev
    return ", and up to as much again in the store on the same disk" if same else ""


def _bytes(size: float) -> str:
    """For people: `512 B`, `1.2 GiB`."""
    unit = 0
    while size >= _KIBI and unit < len(_UNITS) - 1:
        size, unit = size / _KIBI, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"
