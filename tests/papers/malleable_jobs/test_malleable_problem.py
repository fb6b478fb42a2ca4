"""Malleable jobs by hand: how fast they are, where they fit, what a plan may take and is worth."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from numpy.testing import assert_allclose

from envs.arrays import FloatArray
from experiments.papers.malleable_jobs.problem import (
    AllocationPlan,
    AllocationProblem,
    LayeredSpeed,
    LinearUtility,
    LogUtility,
    MalleableJob,
    ParameterServerSpeed,
    RingSpeed,
    SigmoidUtility,
    placed,
    play,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples

ring = MalleableJob(
    "ring", 0, 3, 60.0, 1, 4, 0, (1.0, 2.0, 1e9), (0.0, 0.0, 0.0), 1e9,
    RingSpeed(10, 1.0, 1e9, 0.5), LinearUtility(6.0, 3.0),
)  # fmt: skip
served = MalleableJob(
    "served", 1, 4, 40.0, 1, 2, 2, (1.0, 1.0, 0.0), (0.0, 1.0, 0.0), 1e9,
    ParameterServerSpeed(10, 1.0, 5e8), LogUtility(1.0, 1.0),
)  # fmt: skip
# the second layer is ready at 1 and sent until 3, the first until 3.2: with 1 of forward, 4.2
layered = LayeredSpeed(10, (0.5, 0.5), (1.0, 1.0), (1e8, 1e9))
problem = AllocationProblem(
    (ring, served), np.array([[2.0, 8.0, 4e9, 2e9], [2.0, 8.0, 4e9, 4e9]]), 4e9, 4, 2.0
)
Entry = tuple[int, int, list[int], list[int]]  # slot, job, workers, servers


def plan_of(*entries: Entry) -> AllocationPlan:
    plan = AllocationPlan.empty(problem)
    for slot, job, *place in entries:
        plan.given[slot, job] = place
    return plan


@pytest.mark.parametrize(
    ("model", "workers", "servers", "seconds", "ends"),
    [
        (ring.speed, [2, 0], [0, 0], 1 + 0.25 + 0.5, [0, 0]),
        (ring.speed, [1, 1], [0, 0], 1 + 1.0 + 1.0, [1, 1]),
        (served.speed, [2, 0], [1, 0], 1 + 0.5, [0, 0]),
        (served.speed, [2, 0], [0, 1], 1 + 2.0, [2, 1]),
        (served.speed, [2, 0], [0, 2], 1 + 1.0, [2, 2]),
        (layered, [1, 0], [0, 1], 4.2, [1, 1]),
    ],
)
def test_speeds_by_hand(
    model: RingSpeed, workers: list[int], servers: list[int], seconds: float, ends: list[int]
) -> None:
    there = np.array(workers), np.array(servers)
    found = model.samples_per_s(*there, 1e9, 4e9)
    assert found == pytest.approx(10 * sum(workers) / seconds)
    assert model.ends(*there).tolist() == ends
    assert model.samples_per_s(0 * there[0], there[1], 1e9, 4e9) == 0.0
    assert not model.needs_servers or model.samples_per_s(there[0], 0 * there[1], 1e9, 4e9) == 0.0


def test_a_plan_by_hand() -> None:
    plan = plan_of((0, 0, [2, 0], [0, 0]), (1, 0, [1, 1], [0, 0]), (1, 1, [1, 0], [1, 0]))
    assert problem.violations(plan) == []
    played, first = play(problem, plan), 20 / 1.75 * 2 / 60
    assert played.done[0, :2] == pytest.approx([first, first + 20 / 3.0 * 2 / 60])
    assert not played.finished.any()
    assert played.worth == pytest.approx([0.0, np.log1p(10 / 1.25 * 2 / 40) / np.log(2)])
    full = play(problem, plan_of(*((slot, 0, [2, 2], [0, 0]) for slot in range(3))))
    assert full.finished.tolist() == [True, False]  # 40 / 3.5 x 2 / 60 = 0.38 a slot
    assert full.worth[0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([(3, 0, [1, 0], [0, 0])], "runs outside its window"),
        ([(0, 1, [1, 0], [1, 0])], "runs outside its window"),
        ([(0, 0, [3, 0], [0, 0])], "machine 0: 3 gpu taken of 2"),
        ([(1, 1, [2, 1], [1, 0])], "3 workers of 1 to 2"),
        ([(1, 1, [1, 0], [0, 0])], "0 parameter servers"),
        ([(1, 0, [-1, 2], [0, 0])], "a number is negative"),
        ([(1, 0, [1, 1], [0, 0]), (1, 1, [1, 0], [1, 1])], "machine 0: 3e+09 nic taken of 2e+09"),
    ],
)
def test_what_a_plan_may_not(entries: list[Entry], says: str) -> None:
    assert any(says in wrong for wrong in problem.violations(plan_of(*entries)))


def test_utilities_by_hand() -> None:
    assert [LinearUtility(6.0, 3.0).at(s) for s in (1, 2, 4, 9)] == [6.0, 4.0, 0.0, 0.0]
    assert SigmoidUtility(2.0, 5.0, 3.0).at(3) == 1.0
    assert_allclose(LogUtility(2.0, 0.1).of(1.0), 2.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"deadline": 0}, "arrival"),
        ({"samples": 0.0}, "samples"),
        ({"least_workers": 5}, "least_workers"),
        ({"most_servers": 1}, "most_servers"),
        ({"worker": (1.0, -1.0, 0.0)}, "worker"),
        ({"reserved": np.inf}, "reserved"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(change: dict[str, object], field: str) -> None:
    with refusal(field):
        replace(ring, **change)  # type: ignore[arg-type]


def some_split_fits(job: MalleableJob, workers: int, servers: int, free: FloatArray) -> bool:
    """Of all there are, machine by machine; alone on one, a job takes nothing of its NIC."""
    worker, server = np.array([job.worker, job.server])
    reached = {(0, 0)}
    for row in free:
        if (row[:3] >= workers * worker + servers * server).all():
            return True
        there = [
            (w, p)
            for w, p in product(range(workers + 1), range(servers + 1))
            if (row[:3] >= w * worker + p * server).all()
            and row[3] >= (w + p if servers else min(w, 1)) * job.reserved
        ]
        reached = {(a + w, b + p) for a, b in reached for w, p in there}
    return (workers, servers) in reached


@examples(400, daily=60)
@given(SEEDS)
@example(10)  # fits only with the servers apart
def test_what_is_placed_is_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = np.column_stack([rng.integers(0, 5, 4), rng.integers(0, 9, 4)])
    free = np.column_stack([whole, rng.uniform(0, 4e9, (2, 4)).T])
    job = replace(ring, reserved=1e9) if rng.random() < 0.5 else served
    workers, servers = int(rng.integers(1, 7)), int(rng.integers(1, 3)) * job.speed.needs_servers
    found = placed(job, workers, servers, free)
    assert (found is not None) == some_split_fits(job, workers, servers, free)
    if found is None:
        return
    assert found.sum(axis=1).tolist() == [workers, servers]
    assert (job.demand(*found) <= free + 1e-6).all()
    together = workers * np.array(job.worker) + servers * np.array(job.server)
    alone = (free[:, :3] >= together).all(axis=1).any()
    assert alone == (np.count_nonzero(found.any(axis=0)) == 1)


def test_the_fullest_machine_that_holds_a_job_takes_it() -> None:
    free = np.array([[4.0, 8.0, 4e9, 1e9], [2.0, 8.0, 4e9, 1e9], [1.0, 8.0, 4e9, 1e9]])
    assert placed(ring, 2, 0, free)[0].tolist() == [0, 2, 0]  # type: ignore[index]
    assert placed(ring, 5, 0, free)[0].tolist() == [4, 0, 1]  # type: ignore[index]
    assert placed(ring, 8, 0, free) is None
