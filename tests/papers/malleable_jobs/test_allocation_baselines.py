"""The usual rules by hand, and none above the optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.papers.malleable_jobs.baselines import BASELINES, Fifo
from experiments.papers.malleable_jobs.exact import ExactAllocation
from experiments.papers.malleable_jobs.generated import random_problem
from experiments.papers.malleable_jobs.problem import AllocationProblem, MalleableJob
from experiments.papers.malleable_jobs.speeds import LogUtility, RingSpeed

ring = MalleableJob(
    "first", 0, 4, 1e9, 1, 6, 0, (1.0, 2.0, 0.0), (0.0, 0.0, 0.0), 1e9,
    RingSpeed(8, 1.0, 0.0), LogUtility(1.0),
)  # fmt: skip
wide = replace(ring, name="second", worker=(1.0, 8.0, 0.0))
problem = AllocationProblem((ring, wide), np.array([[6.0, 32.0, 0.0, 1e9]]), 1e10, 1, 1.0)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("fifo", [6, 0]),
        ("equal_share", [3, 3]),
        ("drf", [4, 2]),  # a sixth of the GPUs each against a quarter of the cores
        ("optimus", [3, 3]),
    ],
)
def test_one_slot_by_hand(name: str, workers: list[int]) -> None:
    plan = BASELINES[name]().solve(problem).solution
    assert plan is not None
    assert plan.workers[0, :, 0].tolist() == workers


def test_fifo_lets_none_pass_and_takes_its_share() -> None:
    plan = Fifo(0.5).solve(problem).solution
    assert plan is not None
    assert plan.workers[0, :, 0].tolist() == [3, 3]


@pytest.mark.parametrize("name", BASELINES)
def test_no_rule_is_above_the_optimum(name: str) -> None:
    for seed, speed in enumerate(("ring", "parameter_server", "layered")):
        small = random_problem(np.random.default_rng(seed), speed, jobs=3, slots=3)  # type: ignore[arg-type]
        result = BASELINES[name]().solve(small)
        assert result.solution is not None
        assert small.violations(result.solution) == []
        assert result.value <= ExactAllocation().solve(small).value * (1.0 + 1e-6)
