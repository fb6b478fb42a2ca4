"""CP-SAT against brute force over all placements of tiny max-load and latency problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.partition.dp import ContiguousDP
from agents.placement.baselines import SingleDevice
from agents.placement.cp_sat import CpSat
from agents.solver import Result
from agents.step.problems import Partition, PartitionPlanner
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.units import MILLISECOND
from tests.agents.partition.dp_graphs import least, oracle, published, small_problem
from tests.asking import partitioned
from tests.refusal import refusal

pytestmark = pytest.mark.slow

ROUNDED = 1e-7  # relative gap left where times are rounded down, at most

KINDS: list[Callable[[StepProblem], PartitionProblem]] = [
    LatencyProblem,
    lambda step: MaxLoadProblem(step, contiguous=False),
    lambda step: MaxLoadProblem(step, contiguous=True),
]


def planner(hint: PartitionPlanner | None = None) -> CpSat:
    return CpSat(
        hint=SingleDevice(),
        partition_hint=hint or ContiguousDP(ideals=10_000, groups=8),
        hint_seconds=0.2,
        hint_limit=1,
        rest=SingleDevice(),
        workers=1,
    )


def small(seed: int) -> StepProblem:
    """A random step; the times of odd seeds have no common unit."""
    step = small_problem(seed)
    scale = np.random.default_rng(seed).random((step.graph.num_operators, 1)) if seed % 2 else 1.0
    return replace(step, op_seconds=step.op_seconds * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 4, 5, 7, 12, 13, 14, 18, 19, 20, 21])
def test_the_optimum_is_that_of_all_placements(
    kind: Callable[[StepProblem], PartitionProblem], seed: int
) -> None:
    problem = kind(small(seed))
    best = least(problem)
    result = partitioned(planner(), problem, 60.0)
    assert result.value == pytest.approx(best, rel=1e-12)
    if np.isinf(best):
        assert (result.status, result.bound) == ("infeasible", np.inf)
        assert result.reason
    else:
        assert best * (1.0 - ROUNDED) <= result.bound <= best
        assert result.status == "optimal" or seed % 2
        assert result.solution is not None
        assert problem.violations(result.solution.placement.device) == []


class HandedOver:
    """A start that somebody else has found."""

    solves = (Partition,)

    def __init__(self, result: Result[Plan]) -> None:
        self.result = result

    def solve(self, *_: object) -> Result[Plan]:
        return self.result


def test_the_search_starts_from_the_placement_it_is_handed() -> None:
    problem = MaxLoadProblem(small(4), contiguous=False)
    best = partitioned(planner(), problem, 60.0)
    again = partitioned(planner(HandedOver(best)), problem, 60.0)
    assert [value for _, value in again.history] == [best.value]


def test_other_objectives_are_refused() -> None:
    with refusal("cp_sat does not solve"):
        partitioned(planner(), object(), 1.0)


@pytest.mark.proof
def test_the_latency_of_bert24_is_proved(data: Path) -> None:
    name = "LayerGraphs/bert24_inference"
    result = partitioned(planner(), LatencyProblem(published(data, "latency", name)), 120.0)
    assert result.status == "optimal"
    assert result.value / MILLISECOND == pytest.approx(
        oracle(data, "latency_q1_optimal")[name], abs=1e-6
    )
