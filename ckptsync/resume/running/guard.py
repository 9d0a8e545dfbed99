"""Between `ckptsync exec` and the command: a small process that ends with it, and ends what is left if exec dies.

It runs as a script (`python -I -S guard.py FD COMMAND...`), and imports the standard library alone: it stays small,
and starts in no time. It is the reaper of all processes below it, also of those that became daemons. FD is a socket to
exec; each packet is a line of words (see `Guard`). Where the socket closes without a word, exec was killed, and
everything below is killed. The command itself is killed by the kernel if the guard is.

Exec, guard and command are in one process group, so a terminal and whoever signals a group or a whole job (slurmstepd)
reach all three. The guard does nothing with a signal but to note that it came: then the command has it, too, and exec,
which asks to pass on each one that it gets, need not be obeyed. So the command gets each signal once, however sent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["PASSED", "Guard", "descendants", "leave_stdin", "main", "parents", "set_subreaper"]

_OWN = frozenset({
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU, signal.SIGSEGV,
    signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGTTIN, signal.SIGTTOU,
})  # fmt: skip
PASSED = frozenset(int(number) for number in signal.valid_signals()) - {int(number) for number in _OWN}
"""Signals that exec passes on: all but those that the kernel or a process itself causes, and that nobody can catch."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_S = 0.1  # who signals process after process has reached the guard by then
_NOTED_S = 1.0  # and the guard first by this
_KILLING_S = 60.0  # a process in the kernel (a file server that does not answer) dies when it comes out
_PAUSE_S = 0.02
_PACKET = 4096
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Guard:
    """Starts the command, and serves exec.

    It tells exec: `started PID`, or `failed ERRNO`; `stopped SIGNAL`, `continued`; `ended STATUS ALONE` (STATUS as of
    `waitpid`; ALONE = 1: nothing is left of what the command started); `alone`, when that becomes so later.
    Exec says: `pass SIGNAL` = it got this one; to the command, and after its end to what is left. `rest SIGNAL` = the
    command ended of this one: to what it left, unless it came to all anyway. `kill` = kill what is left, and end.
    `leave` = end, and leave it.
    """

    def __init__(self, channel: socket.socket, command: Sequence[str]) -> None:
        self._channel, self._command = channel, command
        self._exec = os.getppid()
        self._pid = 0
        self._ended = self._stopped = self._told_alone = False
        self._noted: dict[int, list[float]] = defaultdict(list)
        self._asked: dict[int, list[float]] = defaultdict(list)
        self._came_to_all: set[int] = set()
        self._woken, wake = os.pipe()
        for descriptor in (self._woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Until the command has ended and exec has said what to do with the rest."""
        set_subreaper()
        for number in (*PASSED, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, _note)
        if not self._start():
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = dict(poll.poll(self._next_ms()))
            self._witness()
            if self._channel.fileno() in ready and not self._obey():
                return
            self._reap()
            self._pass_on()

    # -- the command

    def _start(self) -> bool:
        said, say = os.pipe()
        before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))
        self._pid = os.fork()
        if self._pid == 0:
            os.write(say, _become(self._command, os.getppid(), before))
            os._exit(_NOT_FOUND)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(say)
        why = os.read(said, 16)
        os.close(said)
        leave_stdin()
        if why:
            os.waitpid(self._pid, 0)
            self._tell(f"failed {why.decode()}")
        else:
            self._tell(f"started {self._pid}")
        return not why

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                if self._ended and not self._told_alone:
                    self._told_alone = True
                    self._tell("alone")
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._changed(status)

    def _changed(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._stopped = True
            self._tell(f"stopped {os.WSTOPSIG(status)}")
        elif os.WIFCONTINUED(status):
            self._tell("continued")
            if self._stopped:  # exec has stopped itself: it reads nothing until it goes on, too
                self._stopped = False
                self._noted[signal.SIGCONT].append(time.monotonic())
                os.kill(self._exec, signal.SIGCONT)
        else:
            self._ended = True
            self._told_alone = not _has_children()
            self._tell(f"ended {status} {int(self._told_alone)}")

    # -- signals

    def _witness(self) -> None:
        """Signals that came to the guard itself."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._woken, _PACKET):
                if number == signal.SIGCHLD:
                    continue
                if self._asked[number]:
                    self._asked[number].pop(0)
                    self._came_to_all.add(number)
                else:
                    self._noted[number].append(time.monotonic())

    def _obey(self) -> bool:
        """One packet of exec; False = the end."""
        try:
            word, *rest = self._channel.recv(_PACKET).decode().split() or [""]
        except ConnectionError:
            word = ""
        if word in {"pass", "rest"}:
            number = int(rest[0])
            if word == "pass":
                self._asked_for(number)
            elif number not in self._came_to_all:
                self._asked[number].append(time.monotonic())
            return True
        if word != "leave":
            _kill_all()
        return False

    def _asked_for(self, number: int) -> None:
        now = time.monotonic()
        noted = [at for at in self._noted[number] if now - at < _NOTED_S]
        if noted:
            noted.pop(0)
            self._came_to_all.add(number)
        else:
            self._asked[number].append(now + _GRACE_S)
        self._noted[number] = noted

    def _next_ms(self) -> int | None:
        due = [at for each in self._asked.values() for at in each]
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1) if due else None

    def _pass_on(self) -> None:
        now = time.monotonic()
        for number, due in self._asked.items():
            while due and due[0] <= now:
                due.pop(0)
                self._came_to_all.discard(number)
                for pid in descendants(os.getpid()) if self._ended else [self._pid]:
                    _signal(pid, number)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # exec is dead: the next look at the socket says so
            self._channel.send(line.encode())


def leave_stdin() -> None:
    """Only the command reads it: who writes into it must see when the command is gone."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDONLY)
        if nothing != 0:
            os.dup2(nothing, 0)
            os.close(nothing)


def _note(number: int, frame: object) -> None:
    """The number comes through the pipe."""


def _become(command: Sequence[str], guard: int, mask: set[int]) -> bytes:
    """In the new process: what the guard changed is undone, and the command takes its place; else returns the errno."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(128 + signal.SIGKILL)  # it died before the line above
    for number in (*PASSED, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        python_ignores = number in (signal.SIGPIPE, signal.SIGXFSZ)
        if python_ignores or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    env, failed = _environment(), errno.ENOENT
    for path in _candidates(command[0], env):
        why = _execute(path, command, env)
        failed = failed if why in (errno.ENOENT, errno.ENOTDIR) else why
    return str(failed).encode()


def _execute(path: str, command: Sequence[str], env: Mapping[bytes, bytes]) -> int:
    """Returns only if it cannot: why."""
    if not path:
        return errno.ENOENT  # Python refuses it in another way than the kernel
    try:
        try:
            os.execve(path, list(command), env)  # noqa: S606 - the command is the user's own
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["sh", path, *command[1:]], env)  # noqa: S606 - a script without a first line
    except OSError as error:
        return error.errno or errno.EIO


def _candidates(name: str, env: Mapping[bytes, bytes]) -> list[str]:
    """As execvp(3) looks for it."""
    if "/" in name or not name:
        return [name]
    path = os.fsdecode(env.get(b"PATH", os.fsencode(os.defpath)))
    return [os.path.join(directory, name) for directory in path.split(os.pathsep)]


def _environment() -> Mapping[bytes, bytes]:
    """What exec gave: an interpreter may set variables of its own (LC_CTYPE) before it runs anything."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    except OSError:
        return dict(os.environb)
    return {name: value for name, _, value in entries}


def _has_children() -> bool:
    """Whether any process is left; zombies go."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
        return True
    return False


def descendants(root: int, *, without: Collection[int] = (), among: Mapping[int, int] | None = None) -> list[int]:
    """All processes below `root` that live, but for some and what is below these; `among`: the parent of each."""
    among = dict(parents()) if among is None else among
    found: list[int] = []
    seen, border = {root, *without}, {root}
    while border:  # an id that was given anew while we looked makes no circle
        border = {pid for pid, parent in among.items() if parent in border and pid not in seen}
        seen |= border
        found += sorted(border)
    return found


def parents() -> Iterator[tuple[int, int]]:
    """(pid, parent) of every process of this machine that lives."""
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read(_PACKET).rpartition(b")")[2].split()[:2]  # a name may hold anything
                if state != b"Z":
                    yield int(name), int(parent)


def _kill_all() -> None:
    """Until there is nobody left: who is born meanwhile becomes ours, and comes next."""
    until = time.monotonic() + _KILLING_S
    while _has_children() and time.monotonic() < until:
        for pid in descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def set_subreaper(*, on: bool = True) -> None:
    """Whether processes below this one whose parent dies become its own children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # a system without it: docs/exec.md, limits
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _beside(parent: int, command: Sequence[str]) -> None:
    """Become a command that is asked to end (SIGTERM) when `parent` dies.

    It is in a process group of its own: Ctrl-C is for its parent. In the session of its parent it stays: the kernel may
    give each session an equal share of the processor (autogroups, sched(7)), also to a daemon that gives way.
    """
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        os.execve(command[0], list(command), _environment())  # noqa: S606 - ckptsync itself


def main(arguments: Sequence[str]) -> None:
    """Serve; or with `--beside PID`, become the command that follows, for as long as process PID lives."""
    if arguments[0] == "--beside":
        _beside(int(arguments[1]), arguments[2:])
        return
    channel = socket.socket(fileno=int(arguments[0]))
    channel.set_inheritable(False)
    Guard(channel, arguments[1:]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
