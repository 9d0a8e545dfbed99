"""S3 keys straight from the environment: what boto3 would find there first, without the time that it takes to load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["StaticKeys", "static_keys"]

_TOKENS = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")  # in the order in which botocore looks (1.43, credentials.py)


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Keys that do not expire, and the region."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    token: str | None = field(repr=False)
    region: str


def static_keys(environ: Mapping[str, str], *, profile: str | None, region: str | None) -> StaticKeys | None:
    """The keys, if boto3 would take them too and nothing else is to be asked of it; else None.

    Args:
        environ: the environment.
        profile: a profile that was named: then boto3 leaves the environment out.
        region: as configured; None = the environment's (that of a configuration file only boto3 knows).
    """
    access, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    found = region or environ.get("AWS_DEFAULT_REGION")
    if profile or not (access and secret and found) or environ.get("AWS_CREDENTIAL_EXPIRATION"):
        return None
    return StaticKeys(access, secret, next((environ[name] for name in _TOKENS if environ.get(name)), None), found)
