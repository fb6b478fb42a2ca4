"""Every test here may draw from the global generators, and computes on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agents.rllib.restore import seeded_generators


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other on networks this small
    with seeded_generators(0):
        yield
    torch.set_num_threads(threads)
