"""The last push of a job: the newest verified step goes into the store before the machine goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ckptsync.actions.push import push_step, settle_local, take_lock
from ckptsync.app import Node
from ckptsync.disk.scan import is_absent
from ckptsync.errors import CkptsyncError
from ckptsync.model.step import LocalState
from ckptsync.resume.machine.writers import others_may_write
from ckptsync.sync.local import LocalSteps, StepView

__all__ = ["Flush", "newest_verified", "settled"]

Say = Callable[[str], None]
_GRACE_S = 5.0
"""For the chunks in flight, once it is told to stop."""


@dataclass
class Flush:
    """A last push, in a thread of its own: a store that does not answer must not keep the process.

    Args:
        node: opened for nothing else; it is told to give up when this is.
        say: told what was done, a line.
        gone: whether the trainer, and all that it started, has certainly ended.
        before_push: called once the newest step is verified: the daemon may bring it into the store instead.

    Attributes:
        error: why it failed; "" = it has not.
    """

    node: Node
    say: Say
    gone: Callable[[], bool] = lambda: False
    before_push: Callable[[], None] = lambda: None
    error: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self.node.stopped = self._stop.is_set
        self._thread = threading.Thread(target=self._run, name="last push", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> bool:
        """End it: what the store has acknowledged stays. Returns whether its thread has ended; if not, leave hard."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_GRACE_S)
        return not self.running

    def _run(self) -> None:
        try:
            self._push()
        except CkptsyncError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - it must not end as a traceback under the trainer's last lines
            self.error = f"unexpected error: {error!r}"

    def _push(self) -> None:
        node, stop = self.node, self._stop.is_set
        if self.gone() and not others_may_write(node.config.run.output_dir):
            _nothing_is_written(node)
        view = newest_verified(node, stop, self.say)
        if view is None or view.save is None:
            return
        if not _is_committed(node, view):
            self.before_push()
        if _is_committed(node, view):
            self.say(f"step {view.step} is in the store")
            return
        begun = time.monotonic()
        pushed = push_step(node, view.step, progress=lambda _: None, stop=stop)
        took = f"{pushed.bytes_sent} bytes sent in {time.monotonic() - begun:.1f} s"
        if pushed.outcome.commit is not None:
            self.say(f"step {view.step} is in the store: {took}")
        else:
            why = "; ".join(str(problem) for problem in pushed.outcome.problems[:3])
            self.say(f"step {view.step} is pushed, and not whole yet: {why}: {took}")


def _nothing_is_written(node: Node) -> None:
    """Each step as it is now is over, as if the trainer had said so; where a file changes after all, it is not."""
    if is_absent(node.config.run.output_dir) or (local := node.recognise()) is None:
        return
    for view in local.look(time.monotonic()):
        local.said(view.name)
    local.look(time.monotonic())  # what was said is about the files of this moment


def _is_committed(node: Node, view: StepView) -> bool:
    assert view.save is not None, "it is verified"
    return bool(view.save.commit) or node.saves.mark_of(view.save, "commit") is not None


def newest_verified(node: Node, stop: Callable[[], bool], say: Say = lambda _: None) -> StepView | None:
    """The step whose save ended last, once none is inside `settle` any more; None = there is none.

    Raises:
        Interrupted: `stop` says so.
        ConfigError: output_dir cannot be read.
    """
    if is_absent(node.config.run.output_dir):
        return None
    local = node.recognise()
    if local is None:
        return None
    verified = [view for view in settled(node, local, stop, say) if view.state is LocalState.VERIFIED]
    return max(verified, key=lambda view: view.end_ns, default=None)


def settled(node: Node, local: LocalSteps, stop: Callable[[], bool], say: Say) -> tuple[StepView, ...]:
    """All steps, once none is inside `settle` any more, and what is complete is verified. Raises Interrupted."""
    lock = node.lock()
    take_lock(lock, stop)
    try:
        return settle_local(local, stop=stop, say=say)
    finally:
        lock.release()
