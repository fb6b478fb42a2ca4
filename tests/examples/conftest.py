"""Every test here has a Ray of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(autouse=True)
def ray_of_two_cores() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
