from __future__ import annotations

import pytest

from ckptsync.sync.local import LocalSteps


@pytest.fixture
def quick(monkeypatch):
    """Commands in this process trust a step's quiet after a moment: two seconds are the least that users may set."""
    monkeypatch.setattr(LocalSteps, "settle_s", lambda *_: 0.05)
