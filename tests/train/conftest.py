from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Tokenised texts, shared by all runs of a session."""
    return tmp_path_factory.mktemp("tokens")
