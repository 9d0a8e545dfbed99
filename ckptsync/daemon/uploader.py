"""The thread that talks to the store, so that a slow or absent store never delays verification or `latest`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckptsync.disk.saves import Save
from ckptsync.errors import CkptsyncError, Interrupted

__all__ = ["Job", "Uploader"]


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to do for a save: put its part, or push it."""

    save: Save
    push: bool
    reason: str = ""

    @property
    def key(self) -> tuple[str, bool]:
        """What makes two jobs the same."""
        return self.save.name, self.push


class Uploader:
    """Does one job after another; a job that failed is tried again after a growing pause.

    Args:
        work: does a job, ending early when its second argument says so; errors are kept as that job's problem.
        wake: called after each job.
    """

    def __init__(self, work: Callable[[Job, Callable[[], bool]], None], wake: Callable[[], None]) -> None:
        self._work, self._wake = work, wake
        self._condition = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None
        self._failed: dict[tuple[str, bool], tuple[CkptsyncError, float, int]] = {}
        self._stop = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)
        self._thread.start()

    def offer(self, jobs: Sequence[Job]) -> None:
        """Replace the queue with these jobs, but for those that are running or resting after a failure."""
        now = time.monotonic()
        with self._condition:
            resting = {key for key, (_, until, _) in self._failed.items() if until > now}
            skip = resting | ({self._current.key} if self._current else set())
            self._jobs = deque(job for job in jobs if job.key not in skip)
            wanted = {job.key for job in jobs}
            self._failed = {key: value for key, value in self._failed.items() if key in wanted}
            self._condition.notify_all()

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits to run now."""
        with self._condition:
            return self._current is not None or bool(self._jobs)

    @property
    def current(self) -> Job | None:
        """The running job."""
        with self._condition:
            return self._current

    def errors(self) -> list[CkptsyncError]:
        """What failed last time, and has not succeeded since."""
        with self._condition:
            return [error for error, _, _ in self._failed.values()]

    def stopping(self) -> bool:
        """Whether the running job should end early."""
        return self._stop

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; False = it still runs after `timeout_s` (it holds nothing that a kill could harm)."""
        with self._condition:
            self._stop = True
            self._jobs.clear()
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._jobs and not self._stop:
                    self._condition.wait()
                if self._stop:
                    return
                job = self._current = self._jobs.popleft()
            error = self._do(job)
            with self._condition:
                self._current = None
                self._settle(job, error)
            self._wake()

    def _do(self, job: Job) -> CkptsyncError | None:
        try:
            self._work(job, self.stopping)
        except Interrupted:
            return None  # it goes on after the restart
        except CkptsyncError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one job's bug must not end the thread: it is reported as that job's problem
            return CkptsyncError("unexpected error while uploading", where=job.save.part.name, why=repr(error))
        return None

    def _settle(self, job: Job, error: CkptsyncError | None) -> None:
        if error is None:
            self._failed.pop(job.key, None)
            return
        tries = self._failed.get(job.key, (error, 0.0, 0))[2] + 1
        self._failed[job.key] = (error, time.monotonic() + min(300.0, 2.0**tries), tries)
