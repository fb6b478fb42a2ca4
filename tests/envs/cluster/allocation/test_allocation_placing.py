"""Where workers go: within what is free, and on one machine where one holds them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.allocation.placing import placed
from tests.envs.cluster.allocation.test_allocation_problem import ring, served
from tests.strength import examples


@examples(400, daily=60)
@given(st.integers(0, 2**32 - 1))
def test_what_is_placed_is_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    free = np.column_stack(
        [
            rng.integers(0, 5, 4),
            rng.integers(0, 9, 4),
            rng.uniform(0, 4e9, 4),
            rng.uniform(0, 4e9, 4),
        ]
    ).astype(np.float64)
    job = replace(ring, reserved=1e9) if rng.random() < 0.5 else served
    workers, servers = int(rng.integers(1, 7)), int(rng.integers(1, 3)) * job.speed.needs_servers
    found = placed(job, workers, servers, free)
    whole = any(
        (row[:3] >= workers * np.array(job.worker) + servers * np.array(job.server)).all()
        for row in free
    )
    if found is None:
        assert not whole
        return
    assert (found[0].sum(), found[1].sum()) == (workers, servers)
    assert (job.demand(*found) <= free + 1e-6).all()
    assert whole == (np.count_nonzero(found[0] + found[1]) == 1)


def test_the_fullest_machine_that_holds_a_job_takes_it() -> None:
    free = np.array([[4.0, 8.0, 4e9, 1e9], [2.0, 8.0, 4e9, 1e9], [1.0, 8.0, 4e9, 1e9]])
    assert placed(ring, 2, 0, free)[0].tolist() == [0, 2, 0]  # type: ignore[index]
    assert placed(ring, 5, 0, free)[0].tolist() == [4, 0, 1]  # type: ignore[index]
    assert placed(ring, 8, 0, free) is None
