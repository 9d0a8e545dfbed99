"""What the uploader's thread does with a job: put a part, or push a save and try to commit its step."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial

from ckptsync.app import Node
from ckptsync.daemon.uploader import Job
from ckptsync.disk.saves import Save
from ckptsync.disk.scan import list_step
from ckptsync.errors import CkptsyncError, StepChanged
from ckptsync.model.manifest import Part, PartId
from ckptsync.model.merge import saves_of
from ckptsync.sync.local import LocalSteps
from ckptsync.sync.push import Pushed, adopt_commit, commit_ready, push, put_part
from ckptsync.sync.remote import Remote
from ckptsync.units import format_duration

__all__ = ["Uploads"]

_log = logging.getLogger("ckptsync")
_AGAIN_S = 30.0
_FOLLOWED = 3
_SKEW_NS = 60 * 10**9


class Uploads:
    """The work of jobs.

    Args:
        node: opened.
        root: where the bytes of a save are now; None = nowhere.

    Attributes:
        again_at: save name -> when (monotonic seconds) to look again whether other nodes have done their share.
    """

    def __init__(self, node: Node, root: Callable[[Save], str | None]) -> None:
        self._node, self._root = node, root
        self.again_at: dict[str, float] = {}
        self._skewed = False

    def asks(self, local: LocalSteps, save: Save) -> bool:
        """Whether the store has to be told of a save that is not due, or asked whether another node uploads it."""
        if self._node.saves.mark_of(save, "put") is None or not local.whole(save):
            return True
        return not local.alone(save) and save in local.known[-_FOLLOWED:]

    def do(self, job: Job, stopping: Callable[[], bool]) -> None:
        """Do a job, ending early when `stopping` says so. Raises CkptsyncError: it failed, and may be tried again."""
        node, save = self._node, job.save
        if node.saves.mark_of(save, "commit") is not None:
            return  # done meanwhile
        remote, root = node.remote(), self._root(save)
        assert node.layout is not None, "jobs come after recognition"
        again = commit_ready(remote, node.saves, save, node.layout, window_ns=node.window_ns) if job.push else None
        if again is not None:
            if again.outcome.commit is None:
                self._ask_others(remote, save, again.part)
            self._tell(job, again)
            return
        if root is None or adopt_commit(
            remote, node.saves, save, node.layout_of(), window_ns=node.window_ns, dropped=node.dropped()
        ):
            return
        tell_part = partial(self._part_is_put, remote, save, wanted=job.push)
        try:
            if job.push:
                options, saves = node.push_options, node.saves
                self._tell(
                    job, push(save, root, remote, saves, node.layout, options, stop=stopping, announced=tell_part)
                )
            else:
                tell_part(put_part(remote, node.saves, save, root))
        except StepChanged as error:
            if root != os.path.join(node.output_dir, save.part.name) and not os.path.isdir(root):
                return  # a push by hand was done with the links, and let them go; what is in place is read next
            node.saves.mark(save, "torn")
            if self._is_there(save):
                raise  # its bytes are others, and no time or size says so: somebody should look
            _log.info("step %d is not pushed any further: %s", save.part.step, error)

    def _part_is_put(self, remote: Remote, save: Save, part: Part, *, wanted: bool) -> None:
        """It is small, and comes first: other nodes, and `latest` here, need not wait for its chunks."""
        local = self._node.local
        self._node.saves.mark(save, "put", str(part.id))
        self._tell_skew(part.offset_ns)
        if local is None or local.alone(save):
            return
        if wanted:
            remote.put_wanted(part.step, part.id)
        if not (wanted and local.whole(save)):
            self._ask_others(remote, save, part.id)

    def _tell_skew(self, offset_ns: int) -> None:
        """Times are corrected by what the clocks differ; that they do is told once."""
        skewed = abs(offset_ns) >= _SKEW_NS
        if skewed and not self._skewed:
            by, where = format_duration(abs(offset_ns) // 10**9), "behind" if offset_ns > 0 else "ahead of"
            _log.warning("this node's clock is %s %s the store's: times are corrected by that", by, where)
        self._skewed = skewed

    def _ask_others(self, remote: Remote, save: Save, mine: PartId) -> None:
        """Look at the parts of other nodes: they may make this save whole, so that `latest` may name it here, too.

        And they may be on their way into the store, for whatever reason: then this one has to follow, or the upload of
        the others was for nothing.
        """
        node, step = self._node, save.part.step
        assert node.layout is not None, "jobs come after recognition"
        index = remote.index(step)
        parts = remote.parts(step, index.parts)
        unions = [u for u in saves_of(parts.values(), node.layout, window_ns=node.window_ns) if mine in u.parts]
        if any(union.whole for union in unions):
            node.saves.mark(save, "whole")
        else:
            self.again_at[save.name] = time.monotonic() + _AGAIN_S
        if node.saves.mark_of(save, "due") is None:
            others = {part for union in unions for part in union.parts} - {mine}
            first = min(others & (index.wanted | index.ready), default=None)
            if first is None:
                self.again_at[save.name] = time.monotonic() + _AGAIN_S
            else:
                node.saves.mark(save, "due", f"node {first.node} uploads it")
                self.again_at.pop(save.name, None)

    def _tell(self, job: Job, pushed: Pushed) -> None:
        step = job.save.part.step
        if pushed.outcome.commit is None:
            self.again_at[job.save.name] = time.monotonic() + _AGAIN_S
            why = "; ".join(str(problem) for problem in pushed.outcome.problems[:3])
            _log.info("step %d pushed, not whole yet: %s", step, why)
        else:
            amounts = f"{pushed.bytes_total} bytes, {pushed.bytes_sent} sent"
            _log.info("step %d committed (%s): %s", step, job.reason, amounts)

    def _is_there(self, save: Save) -> bool:
        """Whether the step directory looks as it did when the save was verified."""
        try:
            return save.still_there(list_step(os.path.join(self._node.output_dir, save.part.name)))
        except CkptsyncError:
            return False
