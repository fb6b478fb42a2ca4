"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests import strength

settings.load_profile(strength.DAILY)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of published graphs, traces and oracles named by MESHWRIGHT_DATA."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("needs published data: set MESHWRIGHT_DATA to its folder")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"MESHWRIGHT_DATA={folder} is not a folder")
    return path
