from __future__ import annotations

import pytest

from ckptsync.actions import push
from ckptsync.daemon import service
from ckptsync.sync.local import LocalSteps


@pytest.fixture
def quick(monkeypatch):
    """Commands in this process trust a step's quiet after a moment: two seconds are the least that users may set."""
    monkeypatch.setattr(LocalSteps, "settle_s", lambda *_: 0.05)
    monkeypatch.setattr(push, "_POLL_S", 0.02)
    monkeypatch.setattr(service, "_ONCE_PAUSE_S", 0.02)
