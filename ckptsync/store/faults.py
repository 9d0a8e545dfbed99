"""What went wrong, from what a store replied: refused, unavailable (retry), or plainly impossible.

One table for every adapter, over HTTP status and the provider's error code. Messages are built from those alone:
what libraries print may hold signed URLs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ckptsync.errors import (
    CkptsyncError,
    CorruptObject,
    KeyMissing,
    NoSpaceError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)

__all__ = [
    "EXISTS_CODES",
    "check_bucket",
    "from_exception",
    "from_os",
    "from_reply",
    "incomplete",
    "local_faults",
    "missing",
    "reply_of",
    "too_large",
]

_MISSING_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
EXISTS_CODES = frozenset({"PreconditionFailed", "BlobAlreadyExists", "FileAlreadyExists"})
_REFUSED_CODES = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_NO_CREDENTIALS = frozenset(
    {
        "CredentialRetrievalError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
_BUSY_CODES = frozenset(
    {"IncompleteBody", "OperationAborted", "RequestTimeout", "SlowDown", "XAmzContentSHA256Mismatch"}
)
_CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_REGION_CODES = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})
_BUSY_STATUS = frozenset({408, 409, 425, 429})
_SERVER_FAULT = 500
_FOREVER_STATUS = frozenset({501, 505})
_REFUSED_STATUS = frozenset({401, 403})
_REDIRECTS = frozenset({301, 307, 308})

_ACCESS_REMEDY = "check the credentials, and their rights to get, put, list and delete under this prefix"
_CLOCK_REMEDY = "set this machine's clock"
_REGION_REMEDY = "set the bucket's region in [upload] region"
_BUCKET_REMEDY = "create the bucket, or correct its name or the endpoint"
_ABILITY_REMEDY = "the server does not know this request (to create needs a conditional put): use a current one"


def from_reply(what: str, where: str, *, status: int, code: str = "", message: str = "") -> StoreError:
    """The error for a reply with HTTP `status` and the provider's error `code` and one-line `message`."""
    why = f"{status} {code}" if code else str(status)
    why = f"{why}: {message}" if message else why
    if code in _MISSING_BUCKET_CODES:
        return StoreError(what, where=where, why=f"no such bucket ({why})", remedy=_BUCKET_REMEDY)
    if code in _CLOCK_CODES:
        return StoreRefused(what, where=where, why=why, remedy=_CLOCK_REMEDY)
    if code in _REGION_CODES or status in _REDIRECTS:
        return StoreError(what, where=where, why=why, remedy=_REGION_REMEDY)
    if code in _REFUSED_CODES or status in _REFUSED_STATUS:
        return StoreRefused(what, where=where, why=why, remedy=_ACCESS_REMEDY)
    if code in _BUSY_CODES or status in _BUSY_STATUS or (status >= _SERVER_FAULT and status not in _FOREVER_STATUS):
        return StoreUnavailable(what, where=where, why=why)
    return StoreError(what, where=where, why=why, remedy=_ABILITY_REMEDY if status in _FOREVER_STATUS else "")


def missing(where: str) -> KeyMissing:
    """There is no object."""
    return KeyMissing("no such object", where=where)


def too_large(where: str, size: int, max_size: int) -> CorruptObject:
    """An object of `size` bytes where at most `max_size` were expected."""
    return CorruptObject("object too large", where=where, why=f"{size} bytes, at most {max_size} expected")


def incomplete(where: str, got: int, size: int) -> StoreUnavailable:
    """Only `got` of `size` bytes came."""
    return StoreUnavailable("object came incomplete", where=where, why=f"{got} of {size} bytes")


_REFUSED_ERRNO = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT})
_BUSY_ERRNO = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EMFILE,
        errno.ENOENT,  # of a put: its directory has just gone
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.EPIPE,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)


def from_os(what: str, where: str, error: OSError) -> CkptsyncError:
    """The error for what the operating system said; EIO is not retried: the second answer may be a lie."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _REFUSED_ERRNO or isinstance(error, PermissionError):
        remedy = "give this user the right to read and write there, or name another store"
        return StoreRefused(what, where=where, why=why, remedy=remedy)
    if error.errno in _FULL_ERRNO:
        return NoSpaceError(what, where=where, why=why, remedy="free some space, or raise the quota")
    if error.errno in _BUSY_ERRNO or isinstance(error, TimeoutError):
        return StoreUnavailable(what, where=where, why=why)
    return StoreError(what, where=where, why=why)


def reply_of(error: BaseException) -> tuple[int, str, str]:
    """HTTP status (0 = none came), error code and message of the botocore error behind `error`."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return 0, "", ""
    details = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(details.get("Code", ""))
    message = str(details.get("Message", "")).partition("\n")[0]
    return int(status), "" if code.isdigit() else code, message


def check_bucket(error: BaseException, what: str, where: str) -> None:
    """Raise if what is missing is the bucket."""
    status, code, message = reply_of(error)
    if code in _MISSING_BUCKET_CODES:
        raise from_reply(what, where, status=status, code=code, message=message) from error


def from_exception(error: Exception, what: str, where: str) -> CkptsyncError:
    """The error for whatever an fsspec file system threw; unknown means unavailable: retry, within bounds."""
    status, code, message = reply_of(error)
    if status:
        return from_reply(what, where, status=status, code=code, message=message)
    name = type(error).__name__
    if name in _NO_CREDENTIALS:
        return StoreRefused(what, where=where, why=str(error), remedy=_ACCESS_REMEDY)
    if name == "SSLError" or isinstance(error, NotImplementedError):
        return StoreError(
            what, where=where, why=f"{name}: {error}", remedy="set [upload] ca_file" if name == "SSLError" else ""
        )
    if isinstance(error, OSError) and (error.errno is not None or isinstance(error, (PermissionError, TimeoutError))):
        return from_os(what, where, error)
    return StoreUnavailable(what, where=where, why=f"{name}: {error}")


@contextlib.contextmanager
def local_faults(what: str, where: str) -> Iterator[None]:
    """Turn what os and disk/durable.py raise into store errors.

    Raises:
        StoreRefused, StoreUnavailable, StoreError, NoSpaceError: see `from_os`.
    """
    try:
        yield
    except (NoSpaceError, StoreError):
        raise
    except OSError as error:
        raise from_os(what, where, error) from error
    except CkptsyncError as error:
        if isinstance(error.__cause__, OSError):
            raise from_os(what, where, error.__cause__) from error
        raise
