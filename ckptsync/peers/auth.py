"""Requests between the nodes of a run, signed with a secret that all of them read from a file.

No clock of the day takes part: a server draws a random name when it starts, tells it and its age to whoever asks, and
a request is signed for that name at that age. Captured, it is worth nothing: the same server refuses it a second
time, a later one has another name, and no server does anything but read out a chunk that the asker can name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ckptsync.errors import ConfigError

__all__ = ["AGE_TOLERANCE_S", "SCHEME", "WRONG_SIGNATURE", "Refusal", "Secret", "Verifier", "read_secret", "sign"]

SCHEME = "ckptsync-1"
WRONG_SIGNATURE = "wrong signature"
AGE_TOLERANCE_S = 30.0
"""How far the age in a request may be from the server's: a request may wait that long in a queue, not longer."""
_HEADER = re.compile(
    r"ckptsync-1 server=([0-9a-f]{32}), age=([0-9]{1,12}), nonce=([0-9a-f]{32}), mac=([0-9a-f]{64})", re.ASCII
)
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 16, 4096
_FORBIDDEN_MODE = 0o027  # group may read: Kubernetes and systemd hand secrets out that way
_NONCES_MAX = 200_000  # 1.6 TB of chunks within twice the tolerance


@dataclass(frozen=True, slots=True)
class Secret:
    """The bytes of the secret; they show in no log."""

    value: bytes = field(repr=False)


def read_secret(path: str) -> Secret:
    """Read `[peer] secret_file`; white space around the secret does not count.

    Raises:
        ConfigError: it cannot be read, others can read it, or it is too short to be one.
    """
    what = "cannot use the peers' secret"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(what, where=path, why="not a file", remedy="name a file in [peer] secret_file")
            value = file.read(_SECRET_BYTES_MAX + 1).strip()
    except OSError as error:
        remedy = "write it on every node: head -c 32 /dev/urandom | base64"
        raise ConfigError(what, where=path, why=error.strerror or str(error), remedy=remedy) from None
    if found.st_mode & _FORBIDDEN_MODE:
        why = f"its mode is {stat.S_IMODE(found.st_mode):04o}: others may read it, or its group may write it"
        raise ConfigError(what, where=path, why=why, remedy="chmod 600")
    if not _SECRET_BYTES_MIN <= len(value) <= _SECRET_BYTES_MAX:
        why = f"it has to have {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX} bytes"
        raise ConfigError(what, where=path, why=why, remedy="head -c 32 /dev/urandom | base64")
    return Secret(value)


def sign(secret: Secret, run: str, server: str, age_s: float, target: str) -> str:
    """The value of the Authorization header for one GET request.

    Args:
        secret: the shared one.
        run: name of the run: one secret may serve several.
        server: the name that the server has drawn.
        age_s: how old that server is now, seconds.
        target: path and query as they are sent.
    """
    nonce, age = secrets.token_hex(16), str(max(0, int(age_s)))
    mac = _mac(secret, run, server, age, nonce, target)
    return f"{SCHEME} server={server}, age={age}, nonce={nonce}, mac={mac}"


def _mac(secret: Secret, *fields: str) -> str:
    # a length before each field: no two lists of fields have one spelling
    message = b"".join(b"%d:%s" % (len(text), text) for text in (b"GET", *(f.encode() for f in fields)))
    return hmac.new(secret.value, message, hashlib.sha256).hexdigest()


class Refusal(Exception):
    """Why a request is not answered; `str` says it in a few words."""


class Verifier:
    """The server's side: one for each server that is started.

    Args:
        secret: the shared one.
        run: name of the run.
        clock: seconds that only go forward.

    Attributes:
        server: the name to sign requests for.
    """

    def __init__(self, secret: Secret, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.server = secrets.token_hex(16)
        self._secret, self._run, self._clock = secret, run, clock
        self._born = clock()
        self._seen: set[str] = set()
        self._expiring: deque[tuple[float, str]] = deque()

    @property
    def age_s(self) -> float:
        """Seconds since the server began."""
        return self._clock() - self._born

    def check(self, header: str | None, target: str) -> None:
        """Accept a request, once.

        Args:
            header: its Authorization header.
            target: path and query as they came.

        Raises:
            Refusal: nothing may be answered.
        """
        match = _HEADER.fullmatch(header or "")
        if match is None:
            raise Refusal("not signed")
        server, age, nonce, mac = match.groups()
        if not hmac.compare_digest(_mac(self._secret, self._run, server, age, nonce, target), mac):
            raise Refusal(WRONG_SIGNATURE)
        if server != self.server:
            raise Refusal("signed for another server")
        if abs(int(age) - self.age_s) > AGE_TOLERANCE_S:
            raise Refusal("signed too long ago")
        self._remember(nonce)

    def _remember(self, nonce: str) -> None:
        """Nonces of signed requests only, so nobody without the secret fills the memory."""
        now = self.age_s
        while self._expiring and self._expiring[0][0] < now:
            self._seen.discard(self._expiring.popleft()[1])
        if nonce in self._seen:
            raise Refusal("seen before")
        if len(self._seen) >= _NONCES_MAX:
            raise Refusal("too many requests")
        self._seen.add(nonce)
        self._expiring.append((now + 2 * AGE_TOLERANCE_S + 1, nonce))
