"""`[confirm] train_log`: whether a resume went on, found out by the daemon in a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ckptsync.app import Node
from ckptsync.errors import CkptsyncError

if TYPE_CHECKING:
    from ckptsync.resume.confirmation.confirm import Confirmation, Confirming
    from ckptsync.resume.confirmation.tail import Tail

__all__ = ["Watched"]

_log = logging.getLogger("ckptsync")
_POLL_S = 5.0
_STEPS = 3
"""Judged after the first step, and again after each until so many are there: one alone may be an odd batch."""
_JOIN_S = 5.0


class Watched:
    """Nothing without `[confirm] train_log`. Reads the log as it grows, and judges each start that resumes.

    What the log holds when the daemon begins may be a start of yesterday: it is judged once it tells more.

    A start is judged if it says that it resumes; if `ckptsync exec` recorded that it does; or if the log holds steps of
    earlier starts. A first training is none of these.

    Attributes:
        problem: what is wrong with the newest resume, one line; "" = nothing, or nothing known.
        reading: what was there has been read; from now on the log grows.
    """

    def __init__(self, node: Node, *, poll_s: float = _POLL_S) -> None:
        self.problem, self.reading = "", False
        self._node, self._poll_s = node, poll_s
        self._closed = threading.Event()
        self._judged = (0, 0, False)
        self._thread: threading.Thread | None = None
        path = node.config.confirm.train_log
        if path is not None:
            self._thread = threading.Thread(target=self._run, args=(path,), name="confirm", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop reading; a request to the store that hangs is not waited for."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, path: str) -> None:
        from ckptsync.resume.confirmation.confirm import Confirming, Expected  # noqa: PLC0415 - only where a log is watched
        from ckptsync.resume.confirmation.tail import Tail  # noqa: PLC0415 - as above

        tail, confirming, told = Tail(path), Confirming(Expected()), ""
        while not self._closed.is_set():
            try:
                if self._read_on(tail, confirming):
                    continue
                if not self.reading:
                    confirming.mark()
                    self.reading = True
                self._judge(path, confirming)
                told = ""
            except CkptsyncError as error:
                if str(error) != told:
                    _log.warning("%s", error)
                told = str(error)
            except Exception as error:  # noqa: BLE001 - a thread that dies would be silent; the daemon does not need it
                _log.error("the train log cannot be judged any more: %r", error)
                return
            self._closed.wait(self._poll_s)

    def _read_on(self, tail: Tail, confirming: Confirming) -> bool:
        lines = tail.read()
        confirming.feed(lines)
        return bool(lines)

    def _judge(self, path: str, confirming: Confirming) -> None:
        from ckptsync.resume.confirmation.confirmed import expected_of, judge_log, keep, newest_launch  # noqa: PLC0415 - as above

        trained = min(confirming.trained, _STEPS)
        state = confirming.starts, trained, confirming.troubled and trained < _STEPS
        if state == self._judged or not confirming.alive or not (confirming.trained or confirming.troubled):
            return
        record = newest_launch(self._node, _log.info)
        recorded = record.resumed_step if record is not None else None
        if recorded is None and not confirming.resumes:
            self._judged = state
            return
        confirming.expected = expected_of(self._node, recorded)
        found = judge_log(self._node, confirming)
        self._tell(found)
        keep(self._node, record, found, path, say=_log.info)
        self._judged = state

    def _tell(self, found: Confirmation) -> None:
        line = found.line
        self.problem = "" if found.ok else line
        (_log.info if found.ok else _log.error)("%s", line)
