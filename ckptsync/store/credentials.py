"""S3 credentials through boto3: profiles, SSO, IRSA, containers, instance roles, whatever AWS adds next.

obstore ships such a provider, too, but that one needs Python 3.11.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import boto3
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped] # ships no types

from ckptsync.errors import ConfigError, StoreRefused

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["S3Credentials"]

_TTL = timedelta(minutes=5)  # boto3 renews on its own, and earlier; asking it costs nothing
_REMEDY = "set AWS_PROFILE or [upload] profile, or run where a role is attached"


class S3Credentials:
    """Callable as obstore wants it; asks boto3 each time, so that renewed credentials arrive.

    Args:
        profile: profile in the AWS configuration files; None = the default chain.

    Raises:
        ConfigError: no such profile.
        StoreRefused: no credentials anywhere.
    """

    def __init__(self, profile: str | None) -> None:
        try:
            session = boto3.Session(profile_name=profile)
            self._credentials = session.get_credentials()
        except BotoCoreError as error:
            what = "cannot load S3 credentials"
            raise ConfigError(what, why=str(error), remedy=_REMEDY) from None
        if self._credentials is None:
            what = "no S3 credentials found"
            raise StoreRefused(what, remedy=_REMEDY)
        self.region: str | None = session.region_name

    def __call__(self) -> S3Credential:
        """Valid credentials for the next few minutes. Errors of boto3 pass: obstore reports them as refused."""
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _TTL,
        }

    def __repr__(self) -> str:
        return "S3Credentials(...)"
