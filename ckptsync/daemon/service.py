"""Running the daemon: in the foreground until told to stop, or once until nothing moves any more."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ckptsync import __version__
from ckptsync.app import Node, open_node
from ckptsync.config import Config
from ckptsync.config_paths import check_paths, is_absent
from ckptsync.daemon import systemd
from ckptsync.daemon.confirming import Watched
from ckptsync.daemon.control import open_control
from ckptsync.daemon.giving import Giving
from ckptsync.daemon.loop import Daemon
from ckptsync.disk.lock import RunLock
from ckptsync.disk.watch import Waker
from ckptsync.errors import CkptsyncError, ConfigError, ConflictError, Interrupted
from ckptsync.peers.opening import check_peers

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
    check_paths(config)
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

    An output_dir that is not there yet is waited for. A state directory that is deleted makes it begin again, as a
    restart would.

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
    check_paths(config, absent_ok=True)
    check_peers(config)
    ended, first = True, True
    while True:
        ended &= _serve(config, signals, first=first)
        first = False
        if signals.stop:
            return ended
        if not signals.reload:
            # with it went the lock, the node's id, and what was verified
            _log.warning("the state directory was deleted: beginning again: %s", config.state_dir)
            continue
        signals.reload = False  # before the file is read: a signal that comes meanwhile asks for another reading
        try:
            config = _usable(load(), config)
            _log.info("configuration read again")
        except CkptsyncError as error:
            _log.error("the configuration stays as it was: %s", error)


def _usable(fresh: Config, old: Config) -> Config:
    """Return `fresh` if a daemon can run with it.

    Raises:
        ConfigError: its directories cannot be used. ConflictError: another daemon has its state directory.
    """
    check_paths(fresh, absent_ok=True)
    check_peers(fresh)
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
    if config.upload.yield_to_trainer:
        node.yield_to_trainer(hurry=lambda: signals.stop)
    try:
        _log.info(
            "ckptsync %s: run %s on node %s, %s -> %s",
            __version__,
            config.run.name,
            config.node.name,
            config.run.output_dir,
            config.upload.store,
        )
        if not _wait_for_output_dir(node, lock, signals):
            return True
        if first:
            check_paths(config)
        return _watch(node, lock, signals, first=first)
    finally:
        lock.release()


def _wait_for_output_dir(node: Node, lock: RunLock, signals: _Signals) -> bool:
    """The trainer makes it, perhaps, or a mount brings it. False = told to stop or read again, or the lock is lost."""
    config, woken = node.config, threading.Event()
    signals.wake = woken.set
    beat, daemon = _Beat(), Daemon(node)
    while is_absent(config):
        if _is_over(signals, lock):
            return False
        what, where, why = "waiting for output_dir", config.run.output_dir, "it does not exist yet"
        with _unless_lost(lock):
            daemon.fault(ConfigError(what, where=where, why=why, remedy="or correct [run] output_dir"))
        systemd.notify("READY=1")
        beat()
        woken.wait(_longest_wait_s(config))
        woken.clear()
    return True


def _is_over(signals: _Signals, lock: RunLock) -> bool:
    """Whether this daemon must end, or begin again with another configuration or a new state directory."""
    return signals.stop or signals.reload or lock.lost


@contextlib.contextmanager
def _unless_lost(lock: RunLock) -> Iterator[None]:
    """Where the state directory is deleted in the middle of a pass, that is all that its errors say."""
    try:
        yield
    except (CkptsyncError, OSError) as error:
        if not lock.lost:
            raise
        _log.info("%s", error)


def _longest_wait_s(config: Config) -> float:
    return min(config.watch.scan_interval, (systemd.watchdog_interval_s() or math.inf) / 2)


def _watch(node: Node, lock: RunLock, signals: _Signals, *, first: bool) -> bool:
    """Pass after pass, until a signal or the loss of the lock ends it; returns whether all threads have ended."""
    config, beat = node.config, _Beat()
    waker = Waker(config.run.output_dir)
    control = open_control(node, waker.wake)
    hints = control.take if control is not None else tuple
    watched = Watched(node)
    daemon = Daemon(
        node,
        wake=waker.wake,
        beat=beat,
        asked=lambda: signals.stop,
        hints=hints,
        resume=lambda: watched.problem,
    )
    giving = Giving(node)
    signals.wake = waker.wake
    again = False
    daemon.start()
    try:
        if waker.hint is not None:
            _log.info("%s", waker.hint)
        with _unless_lost(lock):
            _pass(daemon, patient=not first)
            giving.show(daemon.views)
        systemd.notify("READY=1")
        while not _is_over(signals, lock):
            waker.wait(min(_longest_wait_s(config), daemon.soon_s))
            if not _is_over(signals, lock):
                with _unless_lost(lock):
                    _pass(daemon, patient=True)
                    giving.show(daemon.views)
        again = not signals.stop
        if signals.stop:
            systemd.notify("STOPPING=1")
            _log.info("stopping: uploads that are due have %g s", config.daemon.stop_timeout)
            daemon.flush(config.daemon.stop_timeout)
    finally:
        systemd.notify("RELOADING=1" if again else "STOPPING=1")
        ended = daemon.end(_GRACE_S)
        while not (ended or signals.stop):  # a reload is in no hurry, and two uploaders would share one staging
            beat()
            ended = daemon.end(_GRACE_S)
        giving.close()
        watched.close()
        if control is not None:
            control.close()
        waker.close()
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
