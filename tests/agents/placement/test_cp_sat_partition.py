"""CP-SAT against brute force over all placements of tiny max-load and latency problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from agents.partition.dp import ContiguousDP
from agents.placement.cp_sat import CpSat
from agents.solver import Budget, Result
from agents.step.problems import Partition, PartitionPlanner
from envs.cost import TabulatedCost
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.graphs.readers import read_graph_file
from envs.hardware.devices import Device, DeviceSpec
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.units import MILLISECOND
from tests.agents.placement.random_problems import cluster, on, wire
from tests.asking import partitioned

pytestmark = pytest.mark.slow

ROUNDED = 1e-7  # relative gap left where times are rounded down, at most

KINDS: list[Callable[[StepProblem], PartitionProblem]] = [
    LatencyProblem,
    lambda step: MaxLoadProblem(step, contiguous=False),
    lambda step: MaxLoadProblem(step, contiguous=True),
]


def planner(hint: PartitionPlanner = ContiguousDP(ideals=10_000, groups=8)) -> CpSat:
    return CpSat(partition_hint=hint, hint_seconds=0.2, hint_limit=1, workers=1)


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
    wire(builder, random, n, 1.0)
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
    moves = random.choice([0.0, 0.1, 0.3], size=(graph.num_tensors, 1)) * [0.0, 1.0, 1.0]
    return on(topology, graph, seconds, moves)


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
    result = partitioned(planner(), problem, 60.0)
    assert result.value == pytest.approx(best, rel=1e-12)
    if np.isinf(best):
        assert (result.status, result.bound) == ("infeasible", np.inf)
        assert result.reason
    else:
        assert best * (1.0 - ROUNDED) <= result.bound <= best
        assert result.status == "optimal" or seed % 2  # times of odd seeds have no common unit
        assert problem.violations(result.solution.placement.device) == []


class HandedOver:
    """A start that somebody else has found."""

    solves = (Partition,)

    def __init__(self, device: np.ndarray) -> None:
        self.device = device

    def solve(self, problem: Partition, budget: Budget, start: object = ()) -> Result[Plan]:
        return Result(Plan(Placement(self.device), np.arange(len(self.device))), "feasible")


def test_the_search_starts_from_the_placement_it_is_handed() -> None:
    problem = MaxLoadProblem(small(1, [2.0, 2.0, 2.0]), contiguous=False)
    best = partitioned(planner(), problem, 60.0)
    again = partitioned(planner(HandedOver(best.solution.placement.device)), problem, 60.0)
    assert [value for _, value in again.history] == [best.value]


def test_two_deterministic_searches_agree() -> None:
    problem = LatencyProblem(small(2, [1.0, 3.0, 2.0]))
    once, again = (partitioned(planner(), problem, 60.0, 5) for _ in range(2))
    assert [value for _, value in once.history] == [value for _, value in again.history]
    assert (once.status, once.bound) == (again.status, again.bound)


@pytest.mark.proof
def test_the_latency_of_bert24_is_proved(data: Path) -> None:
    name = "LayerGraphs/bert24_inference"
    file = read_graph_file(
        data / "graphs" / "dnn-partitioning" / "latency-inputs" / f"{name}.json.gz"
    )
    problem = LatencyProblem(StepProblem.build(file.graph, file.topology, TabulatedCost()))
    oracles = read_json(data / "oracles/placement.json")
    result = partitioned(planner(), problem, 120.0)
    assert result.status == "optimal"
    assert result.value / MILLISECOND == pytest.approx(
        oracles["latency_q1_optimal"][name], abs=1e-6
    )
