"""CP-SAT against brute force over all placements of tiny max-load and latency problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from agents.base import PartitionPlanner, PlannerResult
from agents.partition.dp import ContiguousDP
from agents.placement.baselines import SingleDevice
from agents.placement.cp_sat import CpSat
from envs.cost import TabulatedCost
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.graphs.readers import read_dnn_partitioning
from envs.hardware.devices import Device, DeviceSpec
from envs.partition.latency import LatencyProblem
from envs.partition.max_load import MaxLoadProblem
from envs.partition.problem import PartitionProblem
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.units import MILLISECOND
from tests.agents.placement.random_problems import cluster
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
        operators=64,
        hint=SingleDevice(),
        partition_hint=hint or ContiguousDP(ideals=10_000, groups=8),
        hint_share=0.1,
        hint_seconds=0.2,
        hint_limit=1,
        fused_share=0.2,
        rest=SingleDevice(),
        rest_limit=2000,
        workers=1,
        seed=0,
    )


def small(seed: int, capacity: list[float]) -> StepProblem:
    """A random training step on a host (in two of three cases) and accelerators."""
    random = np.random.default_rng(seed)
    n, d = 5, len(capacity)
    builder = GraphBuilder("small")
    for op in range(n):
        builder.add_operator(
            f"op{op}",
            phase=Phase.FORWARD if op < 3 or seed % 2 else Phase.BACKWARD,
            colocation=0 if op in {0, 4} and seed % 4 < 2 else -1,
        )
    for op in range(n - 1):
        for _ in range(random.integers(1, 3)):
            tensor = builder.add_tensor(op, 1.0)
            for reader in set(random.integers(op + 1, n, size=random.integers(1, 4)).tolist()):
                builder.add_use(tensor, reader)
    for number in range(3):
        builder.add_parameter(
            f"w{number}", int(random.integers(0, n)), parameter=1.0, gradient=0.0, optimizer=0.0
        )
    graph, topology = builder.build(), cluster([0] * d, capacity)
    if seed % 3:
        spec = DeviceSpec("cpu", {"float32": 1.0}, 1.0, np.inf, 0.0, 1.0, 1.0, "none")
        topology = replace(topology, devices=(*topology.devices[:-1], Device("cpu", spec, 0)))
    seconds = random.random((n, d)) if seed % 2 else random.choice([0.0, 0.5, 1.25], size=(n, d))
    if len(set(capacity)) == 1:
        seconds[:, : d - 1] = seconds[:, :1]  # accelerators are interchangeable
    seconds[random.random((n, d)) < 0.05] = np.inf
    moves = np.repeat(random.choice([0.0, 0.1, 0.3], size=(graph.num_tensors, 1)), 3, axis=1)
    moves[:, 0] = 0.0
    return StepProblem(graph, topology, seconds, moves, topology.memory_bytes)


def least(problem: PartitionProblem) -> float:
    n, d = problem.step.op_seconds.shape
    every = (np.array(device) for device in product(range(d), repeat=n))
    return min((problem.objective(x) for x in every if not problem.violations(x)), default=np.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [[2.0, 2.0, 2.0], [1.0, 3.0, 2.0], [0.5, 0.5]])
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_that_of_all_placements(
    kind: Callable[[StepProblem], PartitionProblem], capacity: list[float], seed: int
) -> None:
    problem = kind(small(seed, capacity))
    best = least(problem)
    result = planner().partition(problem, 60.0)
    assert result.step_time == pytest.approx(best, rel=1e-12)
    if np.isinf(best):
        assert (result.status, result.lower_bound) == ("infeasible", np.inf)
        assert result.reason
    else:
        assert best * (1.0 - ROUNDED) <= result.lower_bound <= best
        assert result.status == "optimal" or seed % 2  # times of odd seeds have no common unit
        assert result.plan is not None
        assert problem.violations(result.plan.placement.device) == []


class HandedOver:
    """A start that somebody else has found."""

    def __init__(self, device: np.ndarray) -> None:
        self.device = device

    def partition(
        self, problem: PartitionProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        plan = Plan(Placement(self.device), np.arange(len(self.device)))
        return PlannerResult(plan, "feasible", problem.objective(self.device), 0.0)


def test_the_search_starts_from_the_placement_it_is_handed() -> None:
    problem = MaxLoadProblem(small(1, [2.0, 2.0, 2.0]), contiguous=False)
    best = planner().partition(problem, 60.0)
    assert best.plan is not None
    again = planner(HandedOver(best.plan.placement.device)).partition(problem, 60.0)
    assert [value for _, value in again.trajectory] == [best.step_time]


def test_two_deterministic_searches_agree() -> None:
    problem = LatencyProblem(small(2, [1.0, 3.0, 2.0]))
    once, again = (planner().partition(problem, 60.0, 5) for _ in range(2))
    assert [value for _, value in once.trajectory] == [value for _, value in again.trajectory]
    assert (once.status, once.lower_bound) == (again.status, again.lower_bound)


def test_other_objectives_are_refused() -> None:
    with refusal("cp_sat does not solve"):
        planner().partition(object(), 1.0)  # type: ignore[arg-type]


@pytest.mark.proof
def test_the_latency_of_bert24_is_proved(data: Path) -> None:
    name = "LayerGraphs/bert24_inference"
    file = read_dnn_partitioning(
        data / "graphs" / "dnn-partitioning" / "latency-inputs" / f"{name}.json.gz"
    )
    assert file.topology is not None
    problem = LatencyProblem(StepProblem.build(file.graph, file.topology, TabulatedCost()))
    oracles = read_json(data / "oracles/placement.json")
    result = planner().partition(problem, 120.0)
    assert result.status == "optimal"
    assert result.step_time / MILLISECOND == pytest.approx(
        oracles["latency_q1_optimal"][name], abs=1e-6
    )
