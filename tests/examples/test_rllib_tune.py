"""Tune tells a learning rate that learns from one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.rllib_tune import search


@pytest.mark.proof
def test_tune_finds_a_learning_rate(tmp_path: Path) -> None:
    found = search(str(tmp_path))
    assert len(found) == 3
    assert max(found, key=found.__getitem__) != min(found)
