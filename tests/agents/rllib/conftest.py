"""Every test here may draw from the global generators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents.rllib.restore import seeded_generators


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with seeded_generators(0):
        yield
