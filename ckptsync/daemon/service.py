"""Running the daemon: in the foreground until told to stop, or once until nothing moves any more."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from ckptsync import __version__
from ckptsync.app import open_node
from ckptsync.config import Config
from ckptsync.daemon import systemd
from ckptsync.daemon.loop import Daemon
from ckptsync.disk.watch import Waker
from ckptsync.errors import CkptsyncError, ConflictError, Interrupted

__all__ = ["run_forever", "run_once", "set_up_log"]

_log = logging.getLogger("ckptsync")
_BEAT_S = 5.0
_ALIVE = "WATCHDOG=1\nEXTEND_TIMEOUT_USEC=60000000"
"""A first pass over terabytes takes longer than any start timeout: it is extended as long as there is progress."""
_ONCE_PAUSE_S = 0.2
_GRACE_S = 5.0  # for the chunks in flight, when the time for uploads is over
_LOOKERS_S = 1.0  # `ckptsync status` holds the lock for an instant, to see whether a daemon does


def set_up_log() -> None:
    """Plain lines on stderr; the journal adds times itself."""
    journal = "JOURNAL_STREAM" in os.environ
    form = "%(message)s" if journal else "%(asctime)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, datefmt="%H:%M:%S")
    for noisy in ("boto3", "botocore", "urllib3", "s3transfer", "aiobotocore", "fsspec", "s3fs"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # debug lines of these can hold credentials
    # watchdog prints its whole table of watches when a directory is renamed
    logging.getLogger("watchdog").setLevel(logging.ERROR)


class _Beat:
    """The watchdog's proof of life, at most every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _BEAT_S
            systemd.notify(_ALIVE)


def run_once(config: Config) -> None:
    """One full pass to quiescence: waits until no step is inside `settle`, and uploads what is due.

    Raises:
        CkptsyncError: an upload failed (the last error), or output_dir cannot be used.
    """
    node = open_node(config)
    lock = node.daemon_lock()
    _take_daemon_lock(lock.acquire, config)
    daemon = Daemon(node)
    daemon.start()
    try:
        daemon.tick()
        while not daemon.quiet:
            time.sleep(_ONCE_PAUSE_S)
            daemon.tick()
        if errors := daemon.errors():
            raise errors[-1]
        daemon.tick()  # gives up the links of what has just been committed, and tells of it
    finally:
        daemon.end(config.daemon.stop_timeout)
        lock.release()


def run_forever(load: Callable[[], Config]) -> bool:
    """The foreground daemon: SIGTERM and SIGINT stop it, SIGHUP reads the configuration again.

    Args:
        load: reads the configuration.

    Returns:
        Whether all threads have ended. If not, one waits for a slow store: leave with `os._exit`, since a plain exit
        would wait for it, too. It holds nothing that this could harm.

    Raises:
        CkptsyncError: the configuration or the output_dir cannot be used at the start.
    """
    signals = _Signals()
    config = load()
    ended, first = True, True
    while True:
        ended &= _serve(config, signals, first=first)
        first = False
        if signals.stop:
            return ended
        signals.reload = False  # before the file is read: a signal that comes meanwhile asks for another reading
        try:
            config = _usable(load(), config)
            _log.info("configuration read again")
        except CkptsyncError as error:
            _log.error("the configuration stays as it was: %s", error)


def _usable(fresh: Config, old: Config) -> Config:
    """Return `fresh` if a daemon can run with it.

    Raises:
        ConfigError: its state directory cannot be used. ConflictError: another daemon has it.
    """
    node = open_node(fresh)
    if fresh.state_dir != old.state_dir and node.daemon_lock().taken():
        raise ConflictError("a daemon runs already for the run of the new configuration", where=fresh.state_dir)
    return fresh


class _Signals:
    """Signal handlers only set flags and wake the loop."""

    def __init__(self) -> None:
        self.stop = self.reload = False
        self.wake: Callable[[], None] = lambda: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        self.stop = True
        self.wake()

    def _on_reload(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as above
        self.reload = True
        self.wake()


def _serve(config: Config, signals: _Signals, *, first: bool) -> bool:
    """Run with one configuration until stopped, or until it should be read again; returns as `run_forever`.

    Only the `first` configuration may fail at its first pass: a running daemon is not ended by a reload.
    """
    node = open_node(config)
    lock = node.daemon_lock()
    _take_daemon_lock(lock.acquire, config)
    waker = Waker(config.run.output_dir)
    beat = _Beat()
    longest_s = min(config.watch.scan_interval, (systemd.watchdog_interval_s() or math.inf) / 2)
    daemon = Daemon(node, wake=waker.wake, beat=beat, asked=lambda: signals.stop)
    signals.wake = waker.wake
    daemon.start()
    try:
        _log.info(
            "ckptsync %s: run %s on node %s, %s -> %s",
            __version__,
            config.run.name,
            config.node.name,
            config.run.output_dir,
            config.upload.store,
        )
        if waker.hint is not None:
            _log.info("%s", waker.hint)
        _pass(daemon, patient=not first)
        systemd.notify("READY=1")
        while not (signals.stop or signals.reload):
            waker.wait(longest_s)
            if not signals.stop:
                _pass(daemon, patient=True)
        if signals.stop:
            systemd.notify("STOPPING=1")
            _log.info("stopping: what is due has %g s", config.daemon.stop_timeout)
            daemon.flush(config.daemon.stop_timeout)
    finally:
        systemd.notify("RELOADING=1" if signals.reload and not signals.stop else "STOPPING=1")
        ended = daemon.end(_GRACE_S)
        while not (ended or signals.stop):  # a reload is in no hurry, and two uploaders would share one staging
            beat()
            ended = daemon.end(_GRACE_S)
        waker.close()
        lock.release()
    return ended


def _pass(daemon: Daemon, *, patient: bool) -> None:
    """One tick. A fault of the moment (a full disk, a directory gone) is told, and the next pass tries again."""
    try:
        daemon.tick()
    except Interrupted:
        return
    except CkptsyncError as error:
        if not patient:
            raise
        daemon.fault(error)


def _take_daemon_lock(acquire: Callable[..., object], config: Config) -> None:
    try:
        acquire(_LOOKERS_S)
    except CkptsyncError as error:
        raise ConflictError(
            "a daemon runs already for this run on this node",
            where=config.state_dir,
            why=str(error),
            remedy="stop it (systemctl stop ckptsync), or use `ckptsync push` and `ckptsync status` beside it",
        ) from None
