from __future__ import annotations

import pytest

from ckptsync.config import load
from ckptsync.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    """Load a configuration given as text, in an empty environment."""

    def read(text, env=None, **options):
        file = tmp_path / "run.toml"
        file.write_text(text)
        return load(str(file), {"HOME": "/home/t"} if env is None else env, **options)

    return read


@pytest.fixture
def refused(read):
    """The one line that a configuration given as text is refused with."""

    def refused(text, env=None):
        with pytest.raises(ConfigError) as caught:
            read(text, env)
        line = str(caught.value)
        assert "\n" not in line
        return line

    return refused
