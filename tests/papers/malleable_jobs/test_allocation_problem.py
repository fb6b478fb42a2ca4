"""Malleable jobs by hand: how fast they are, what a plan may take, and what it is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.papers.malleable_jobs.problem import (
    AllocationPlan,
    AllocationProblem,
    MalleableJob,
    play,
)
from experiments.papers.malleable_jobs.speeds import (
    LayeredSpeed,
    LinearUtility,
    LogUtility,
    ParameterServerSpeed,
    RingSpeed,
    SigmoidUtility,
    SpeedModel,
)
from tests.refusal import refusal

ring = MalleableJob(
    "ring", 0, 3, 60.0, 1, 4, 0, (1.0, 2.0, 1e9), (0.0, 0.0, 0.0), 1e9,
    RingSpeed(10, 1.0, 1e9, 0.5), LinearUtility(6.0, 3.0),
)  # fmt: skip
served = MalleableJob(
    "served", 1, 4, 40.0, 1, 2, 2, (1.0, 1.0, 0.0), (0.0, 1.0, 0.0), 1e9,
    ParameterServerSpeed(10, 1.0, 5e8), LogUtility(1.0, 1.0),
)  # fmt: skip
problem = AllocationProblem(
    (ring, served), np.array([[2.0, 8.0, 4e9, 2e9], [2.0, 8.0, 4e9, 4e9]]), 4e9, 4, 2.0
)


def plan_of(*entries: tuple[int, int, list[int], list[int]]) -> AllocationPlan:
    plan = AllocationPlan.empty(problem)
    for slot, job, workers, servers in entries:
        plan.workers[slot, job], plan.servers[slot, job] = workers, servers
    return plan


def speed(model: SpeedModel, w: list[int], p: list[int]) -> float:
    return model.samples_per_s(np.array(w), np.array(p), 1e9, 4e9)


def test_a_ring_by_hand() -> None:
    assert speed(ring.speed, [2, 0], [0, 0]) == pytest.approx(20 / (1 + 0.25 + 0.5))
    assert speed(ring.speed, [1, 1], [0, 0]) == pytest.approx(20 / (1 + 1.0 + 1.0))
    assert speed(ring.speed, [0, 0], [0, 0]) == 0.0
    assert ring.speed.ends(np.array([2, 0]), np.zeros(2, int)).tolist() == [0, 0]
    assert ring.speed.ends(np.array([2, 1]), np.zeros(2, int)).tolist() == [1, 1]


def test_parameter_servers_together_and_apart() -> None:
    assert speed(served.speed, [2, 0], [1, 0]) == pytest.approx(20 / (1 + 0.5))
    assert speed(served.speed, [2, 0], [0, 1]) == pytest.approx(20 / (1 + 2.0))
    assert speed(served.speed, [2, 0], [0, 2]) == pytest.approx(20 / (1 + 1.0))
    assert speed(served.speed, [2, 0], [0, 0]) == 0.0
    assert served.speed.ends(np.array([2, 0]), np.array([0, 1])).tolist() == [2, 1]


def test_layers_hide_what_they_send_behind_the_backward_pass() -> None:
    layered = LayeredSpeed(10, (0.5, 0.5), (1.0, 1.0), (1e8, 1e9))
    # the second layer is ready at 1 and sent until 3, the first until 3.2: with 1 of forward, 4.2
    assert speed(layered, [1, 0], [0, 1]) == pytest.approx(10 / 4.2)
    whole = ParameterServerSpeed(10, 3.0, 1.1e9)
    assert speed(layered, [2, 0], [0, 1]) > speed(whole, [2, 0], [0, 1])


def test_a_plan_by_hand() -> None:
    plan = plan_of((0, 0, [2, 0], [0, 0]), (1, 0, [1, 1], [0, 0]), (1, 1, [1, 0], [1, 0]))
    assert problem.violations(plan) == []
    played = play(problem, plan)
    first = 20 / 1.75 * 2 / 60
    assert played.done[0, :2] == pytest.approx([first, first + 20 / 3.0 * 2 / 60])
    assert played.finished.tolist() == [4, 4]
    assert played.worth == pytest.approx([0.0, np.log1p(10 / 1.25 * 2 / 40) / np.log(2)])
    full = plan_of(*((slot, 0, [2, 2], [0, 0]) for slot in range(3)))
    assert play(problem, full).finished[0] == 2  # 40 / 3.5 x 2 / 60 = 0.38 a slot
    assert play(problem, full).worth[0] == pytest.approx(2.0)


def test_what_nics_have_left_makes_no_job_slower() -> None:
    plan = plan_of((1, 0, [1, 1], [0, 0]))
    shared = play(problem, plan, shared=True)
    assert shared.done[0, 1] == pytest.approx(20 / (1 + 0.5 + 1.0) * 2 / 60)  # 2e9 of machine 0
    assert np.all(shared.done >= play(problem, plan).done)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([(3, 0, [1, 0], [0, 0])], "runs outside its window"),
        ([(0, 1, [1, 0], [1, 0])], "runs outside its window"),
        ([(0, 0, [3, 0], [0, 0])], "machine 0: 3 gpu taken of 2"),
        ([(1, 1, [2, 1], [1, 0])], "3 workers of 1 to 2"),
        ([(1, 1, [1, 0], [0, 0])], "0 parameter servers"),
        ([(1, 0, [1, 1], [0, 0]), (1, 1, [1, 0], [1, 1])], "machine 0: 3e+09 nic taken of 2e+09"),
    ],
)
def test_what_a_plan_may_not(
    entries: list[tuple[int, int, list[int], list[int]]], says: str
) -> None:
    assert any(says in wrong for wrong in problem.violations(plan_of(*entries)))


def test_utilities_by_hand() -> None:
    assert [LinearUtility(6.0, 3.0).at(s) for s in (1, 2, 4, 9)] == [6.0, 4.0, 0.0, 0.0]
    assert SigmoidUtility(2.0, 5.0, 3.0).at(3) == 1.0
    assert LogUtility(2.0, 0.1).of(1.0) == pytest.approx(2.0)


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
