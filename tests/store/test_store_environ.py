"""Keys in the environment are taken as boto3 takes them, or boto3 is asked."""

from __future__ import annotations

import itertools

import boto3
import pytest

from ckptsync.store.environ import static_keys

NAMES = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_SESSION_TOKEN": "t",
    "AWS_SECURITY_TOKEN": "u",
    "AWS_DEFAULT_REGION": "eu-north-1",
    "AWS_PROFILE": "team",
}


@pytest.mark.parametrize("names", [c for n in range(len(NAMES) + 1) for c in itertools.combinations(NAMES, n)])
def test_what_is_found_is_what_boto3_finds(names, tmp_path, monkeypatch):
    (tmp_path / "config").write_text("[profile team]\nregion = mars-1\n")
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = other\naws_secret_access_key = other\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    environ = {name: NAMES[name] for name in names}
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = static_keys(environ, profile=None, region=None)
    if not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"} <= environ.keys():
        assert found is None
        return
    session = boto3.Session()
    theirs = session.get_credentials().get_frozen_credentials()
    assert (found.access_key_id, found.secret_access_key, found.token, found.region) == (
        *theirs[:3],
        session.region_name,
    )


@pytest.mark.parametrize("more", [{"profile": "team"}, {"AWS_CREDENTIAL_EXPIRATION": "2030-01-01T00:00:00Z"}])
def test_boto3_is_asked_where_it_would_decide_otherwise(more):
    environ = {**NAMES, **{name: value for name, value in more.items() if name != "profile"}}
    assert static_keys(environ, profile=more.get("profile"), region=None) is None


def test_a_configured_region_comes_first_and_secrets_are_not_shown():
    found = static_keys(NAMES, profile=None, region="us-west-2")
    assert found.region == "us-west-2"
    assert repr(found) == "StaticKeys(region='us-west-2')"
