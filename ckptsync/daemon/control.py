"""The daemon's control socket: a trainer's callback says that a step is complete (`ckptsync/integrations/verl.py`).

Everybody in the daemon's group may write to it, so what is heard is a hint and nothing more: the daemon looks at once,
and a step that is said to be complete needs less quiet time. Whether it is complete is still found out by looking.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ckptsync.app import Node
from ckptsync.config import Config
from ckptsync.disk import durable
from ckptsync.errors import CkptsyncError, ConfigError

__all__ = ["SOCKET", "Control", "Hint", "name_of", "open_control", "parse_hint", "socket_for_trainer", "socket_path"]

_log = logging.getLogger("ckptsync")
SOCKET = "CKPTSYNC_SOCKET"
"""The variable that tells a trainer's callback where the daemon listens."""
_ROOT = "/run/ckptsync"
_NAME = "control.sock"
_MODE = 0o660
_FOLDER_MODE = 0o750
_MESSAGE_BYTES_MAX = 8192
_ADDRESS_BYTES_MAX = 107  # sun_path of unix(7), without its end
_HINTS_MAX = 64
_DIRECTORIES_MAX = 4
_STEP_MAX = 10**12
_REST_S = 0.25
"""Between two messages: whoever floods the socket fills its buffer, and makes the daemon look four times a second."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What a trainer said.

    Attributes:
        step: the number of the step that it has saved.
        directories: the step's directory, by the names that it has where the trainer runs.
        settled: the save is over; else (async_save) files may still come.
        chosen: the socket was named to the trainer; else it tells every daemon of the machine.
    """

    step: int
    directories: tuple[str, ...]
    settled: bool
    chosen: bool


def parse_hint(data: bytes) -> Hint | None:
    """A message, if it is one; anybody may have sent anything."""
    if len(data) > _MESSAGE_BYTES_MAX:
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("format") != 1:
        return None
    step, found = message.get("saved"), message.get("directories")
    if type(step) is not int or not 0 <= step < _STEP_MAX or not isinstance(found, list):
        return None
    directories = tuple(each for each in found[:_DIRECTORIES_MAX] if isinstance(each, str))
    return Hint(step, directories, message.get("settled") is True, message.get("chosen") is True)


def name_of(hint: Hint, node: Node) -> str | None:
    """The name of the step directory below this node's output_dir that a hint is about; None = of no step here.

    Nothing is looked up by a path of the hint: it may lead to a file system that hangs.
    """
    if node.layout is None:
        return None
    homes = {node.output_dir, os.path.realpath(node.output_dir), node.trainer_path(node.output_dir)}
    for directory in hint.directories:
        home, name = os.path.split(directory.rstrip("/"))
        if node.layout.step_of(name) == hint.step and (hint.chosen or home in homes):
            return name
    return None


def socket_path(config: Config, env: Mapping[str, str] = os.environ) -> str | None:
    """Where the daemon of this configuration listens; None = nowhere.

    By itself below systemd's $RUNTIME_DIRECTORY, which the group may enter, else in the state directory, which is for
    its owner alone. A directory that is not ckptsync's (a job inherits its launcher's environment) is not used.
    """
    wanted = config.daemon.socket
    if wanted != "auto":
        return None if wanted == "off" else wanted
    given = env.get("RUNTIME_DIRECTORY", "").split(":")[0]
    parent, last = os.path.split(os.path.normpath(given)) if given else ("", "")
    if os.path.basename(parent) == "ckptsync":
        return os.path.join(given, _NAME)
    if last == "ckptsync":
        return os.path.join(given, config.run.name, _NAME)
    return os.path.join(config.state_dir, _NAME)


def socket_for_trainer(config: Config, env: Mapping[str, str], *, root: str = _ROOT) -> str | None:
    """What the environment of a trainer on this machine should call `SOCKET`; None = nothing: it is set, or off."""
    if env.get(SOCKET) or config.daemon.socket == "off":
        return None
    service = os.path.join(root, config.run.name, _NAME)
    return service if config.daemon.socket == "auto" and os.path.exists(service) else socket_path(config, env)


def open_control(node: Node, wake: Callable[[], None], env: Mapping[str, str] = os.environ) -> Control | None:
    """Listen. Without it the daemon does all it did: what goes wrong is a line in the log, and no more."""
    path = socket_path(node.config, env)
    if path is None:
        return None
    try:
        control = Control(path, wake)
    except CkptsyncError as error:
        _log.warning("%s", error)
        return None
    _log.info("control socket: %s", path)
    return control


class Control:
    """Listens in a thread of its own.

    Args:
        path: of the socket. One that a killed daemon left is replaced, since the caller holds the run's daemon lock.
        wake: called after each hint.

    Raises:
        ConfigError: the socket cannot be made, something else stands there, or another daemon listens there.
    """

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path, self._wake = path, wake
        self._hints: deque[Hint] = deque(maxlen=_HINTS_MAX)
        self._socket, self._identity = _listen(path)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._hear, name="control", daemon=True)
        self._thread.start()

    def take(self) -> Iterator[Hint]:
        """What has been heard since the last call."""
        with contextlib.suppress(IndexError):
            while True:
                yield self._hints.popleft()

    def close(self) -> None:
        """Stop listening, and take the socket away if it is still ours."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        self._thread.join()
        self._socket.close()
        with contextlib.suppress(OSError, CkptsyncError):
            if _identity(self._path) == self._identity:
                durable.remove(self._path)

    def _hear(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._socket.recv(_MESSAGE_BYTES_MAX + 1)
            except OSError:
                data = b""
            if not self._closed.is_set() and (hint := parse_hint(data)) is not None:
                self._hints.append(hint)
                self._wake()
            self._closed.wait(_REST_S)


def _listen(path: str) -> tuple[socket.socket, tuple[int, int]]:
    """The bound socket, mode 0660 from its first moment, and which file it is."""
    what, folder = "cannot listen on the control socket", os.path.dirname(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    directory = None
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, _FOLDER_MODE)  # whatever the umask: the group must get in
        directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        address = _address(path, directory)
        _clear(path, address)
        os.fchmod(listener.fileno(), _MODE)  # Linux: the mode of the file that bind makes, but for the umask
        listener.bind(address)
        os.chmod(path, _MODE)
        return listener, _identity(path)
    except OSError as error:
        listener.close()
        remedy = "nothing depends on it; [daemon] socket names another place, or turns it off"
        raise ConfigError(what, where=path, why=error.strerror or str(error), remedy=remedy) from None
    except ConfigError:
        listener.close()
        raise
    finally:
        if directory is not None:
            os.close(directory)


def _clear(path: str, address: str) -> None:
    """Remove the socket that a killed daemon has left; raises ConfigError for anything else that stands there."""
    what, remedy = "cannot listen on the control socket", "[daemon] socket names another place, or turns it off"
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(what, where=path, why="something else is there", remedy=remedy)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            durable.remove(path)
            return
    raise ConfigError(what, where=path, why="another daemon listens there", remedy=remedy)


def _address(path: str, directory: int) -> str:
    """`path`, or a shorter name for it where the kernel would not take it."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        return path
    return f"/proc/self/fd/{directory}/{os.path.basename(path)}"


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
