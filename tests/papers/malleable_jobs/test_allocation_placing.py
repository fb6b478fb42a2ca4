"""Where workers go: within what is free, and on one machine where one holds them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import example, given
from tests.experiments.papers.malleable_jobs.test_allocation_problem import ring, served

from envs.arrays import FloatArray
from experiments.papers.malleable_jobs.placing import placed
from experiments.papers.malleable_jobs.problem import MalleableJob
from tests.strength import SEEDS, examples


def some_split_fits(job: MalleableJob, workers: int, servers: int, free: FloatArray) -> bool:
    """Of all there are, machine by machine; alone on one, a job takes nothing of its NIC."""
    (worker, server), ring_of_it = np.array([job.worker, job.server]), not servers
    reached = {(0, 0)}
    for row in free:
        if (row[:3] >= workers * worker + servers * server).all():
            return True
        there = [
            (w, p)
            for w, p in product(range(workers + 1), range(servers + 1))
            if (row[:3] >= w * worker + p * server).all()
            and row[3] >= (min(w, 1) if ring_of_it else w + p) * job.reserved
        ]
        reached = {(a + w, b + p) for a, b in reached for w, p in there}
    return (workers, servers) in reached


@examples(400, daily=60)
@given(SEEDS)
@example(10)  # fits only with the servers apart
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
    assert (found is not None) == some_split_fits(job, workers, servers, free)
    if found is None:
        return
    assert (found[0].sum(), found[1].sum()) == (workers, servers)
    assert (job.demand(*found) <= free + 1e-6).all()
    assert whole == (np.count_nonzero(found[0] + found[1]) == 1)


def test_the_fullest_machine_that_holds_a_job_takes_it() -> None:
    free = np.array([[4.0, 8.0, 4e9, 1e9], [2.0, 8.0, 4e9, 1e9], [1.0, 8.0, 4e9, 1e9]])
    assert placed(ring, 2, 0, free)[0].tolist() == [0, 2, 0]  # type: ignore[index]
    assert placed(ring, 5, 0, free)[0].tolist() == [4, 0, 1]  # type: ignore[index]
    assert placed(ring, 8, 0, free) is None
