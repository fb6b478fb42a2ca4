"""`ContiguousDP` against exhaustive search, published optima and its own promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from agents.partition.dp import ContiguousDP
from agents.partition.ideals import search
from agents.partition.ideals.items import Items
from agents.partition.ideals.lattice import prefixes
from agents.solver import Result
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.units import MILLISECOND
from tests.agents.partition.dp_graphs import (
    braided,
    host_topology,
    least,
    oracle,
    published,
    small_problem,
)
from tests.asking import partitioned
from tests.strength import SEEDS, examples, trials

PLANNER = ContiguousDP(ideals=200_000, groups=16)
CHAINS = ContiguousDP(ideals=1, groups=16)


def checked(problem: PartitionProblem, planner: ContiguousDP, *limit: int) -> Result[Plan]:
    """What is true of any result."""
    result = partitioned(planner, problem, 60.0, *limit)
    if result.solution is None:
        assert result.status in {"limit", "infeasible"}
        assert result.reason
    else:
        assert result.status in {"feasible", "optimal"}
        assert problem.violations(result.solution.placement.device) == []
        assert problem.objective(result.solution.placement.device) == result.value
    return result


@given(SEEDS)
@examples(150)
def test_the_split_is_the_best_of_all_contiguous_placements(seed: int) -> None:
    step = small_problem(seed)
    problem = MaxLoadProblem(step, contiguous=True)
    best = least(problem)
    result = checked(problem, PLANNER)
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.bound == pytest.approx(best, rel=1e-9)
    assert result.status == ("infeasible" if np.isinf(best) else "optimal")
    assert checked(problem, CHAINS).bound <= best * (1.0 + 1e-9)
    for other in (MaxLoadProblem(step, contiguous=False), LatencyProblem(step)):
        assert checked(other, PLANNER).bound <= least(other) * (1.0 + 1e-9)


def plain_dynamic_program(problem: MaxLoadProblem, accelerators: int) -> float:
    """The optimum over all pairs of ideals, each stage's load added up from the operators.

    For forward graphs without co-location whose last device is the host.
    """
    step, traffic = problem.step, problem.traffic
    n = step.graph.num_operators
    before = [0] * n
    for u, v in problem.precedence.tolist():
        before[v] |= 1 << u
    ideals = {0}
    for v in range(n):  # operators are in topological order
        ideals |= {i | 1 << v for i in ideals if i & before[v] == before[v]}
    messages = [
        (
            1 << int(traffic.producer[m])
            | sum(1 << int(c) for c in traffic.consumer[traffic.consumer_ptr[m] : end]),
            float(traffic.seconds[m, 0]),
        )
        for m, end in enumerate(traffic.consumer_ptr[1:].tolist())
    ]

    def load(inside: int, device: int) -> float:
        ops = [v for v in range(n) if inside >> v & 1]
        total = float(step.op_seconds[ops, device].sum())
        if device == accelerators:
            return total
        if step.graph.state_bytes[ops].sum() > step.capacity[device]:
            return float("inf")
        return total + sum(w for m, w in messages if m & inside and m & ~inside)

    order = sorted(ideals, key=lambda i: i.bit_count())
    best = {(0, a, h): 0.0 for a in range(accelerators + 1) for h in (0, 1)}
    for upper in order[1:]:
        values = {(a, h): float("inf") for a in range(accelerators + 1) for h in (0, 1)}
        for lower in (i for i in order if i & ~upper == 0 and i != upper):
            stage = [load(upper & ~lower, d) for d in (0, accelerators)]
            for (a, h), value in values.items():
                one_less = [max(best[lower, a - 1, h], stage[0])] if a else []
                without_host = [max(best[lower, a, 0], stage[1])] if h else []
                values[a, h] = min([value, *one_less, *without_host])
        best |= {(upper, a, h): value for (a, h), value in values.items()}
    return best[order[-1], accelerators, 1]


@pytest.mark.parametrize("seed", range(trials(12)))
@pytest.mark.parametrize("room", [0.3, 10.0])
def test_the_split_is_that_of_the_plain_dynamic_program(seed: int, room: float) -> None:
    sketch = braided(seed, 13)
    capacity = room * sum(sketch.state)
    problem = MaxLoadProblem(sketch.problem(accelerators=3, capacity=capacity), contiguous=True)
    expected = plain_dynamic_program(problem, 3)
    result = partitioned(PLANNER, problem, 60.0)
    assert result.value == pytest.approx(expected, rel=1e-9)
    assert result.bound == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seconds", [(1.0, 1.0 - 7e-10), (1.0 - 7e-10, 1.0)])
def test_the_bound_is_true_to_the_last_digits(seconds: tuple[float, float]) -> None:
    builder = GraphBuilder("one operator")
    builder.add_operator("only")
    topology = host_topology(2, 1.0, host=False)
    step = StepProblem(
        builder.build(), topology, np.array([seconds]), np.zeros((0, 3)), topology.memory_bytes
    )
    result = partitioned(PLANNER, MaxLoadProblem(step, contiguous=True), 60.0)
    assert result.status == "optimal"
    assert result.bound <= min(seconds) <= result.value


def test_operators_without_time_are_where_they_are_supported() -> None:
    builder = GraphBuilder("no time")
    first, second = builder.add_operator("first"), builder.add_operator("second")
    builder.add_use(builder.add_tensor(first, 1.0), second)
    topology = host_topology(2, 1.0, host=False)
    seconds = np.array([[0.0, np.inf], [np.inf, 0.0]])
    step = StepProblem(builder.build(), topology, seconds, np.zeros((1, 3)), topology.memory_bytes)
    for problem in (MaxLoadProblem(step, contiguous=True), LatencyProblem(step)):
        result = partitioned(PLANNER, problem, 60.0, 10_000)
        assert (result.status, result.value) == ("optimal", 0.0)


def test_reasons_are_about_what_was_found() -> None:
    builder = GraphBuilder("an update")
    forward = builder.add_operator("forward")
    update = builder.add_operator("update", phase=Phase.OPTIMIZER)
    builder.add_use(builder.add_tensor(forward, 1.0), update)
    builder.add_parameter("weight", update, parameter=4.0)
    graph, topology = builder.build(), host_topology(1, 4.0, host=False)
    step = StepProblem(graph, topology, np.ones((2, 1)), np.zeros((1, 3)), topology.memory_bytes)
    placed = partitioned(PLANNER, MaxLoadProblem(step, contiguous=True), 60.0)
    assert (placed.status, placed.bound) == ("feasible", 0.0)
    assert placed.reason == "operators of the optimizer were put with their inputs"
    tight = replace(step, capacity=np.array([3.0]))
    for contiguous in (True, False):
        result = partitioned(PLANNER, MaxLoadProblem(tight, contiguous=contiguous), 60.0)
        assert result.status == "infeasible"
        assert result.reason.startswith("does not fit")


def test_a_device_that_is_too_small_for_a_line_of_calls_is_named() -> None:
    builder = GraphBuilder("three of two bytes on two devices of three")
    ops = [builder.add_operator(f"op{i}") for i in range(3)]
    for op, after in pairwise(ops):
        builder.add_use(builder.add_tensor(op, 1.0), after)
    for op in ops:
        builder.add_parameter(f"weight{op}", op, parameter=2.0)
    topology = host_topology(2, 3.0, host=False)
    seconds, transfers = np.ones((3, 2)), np.zeros((2, 3))
    step = StepProblem(builder.build(), topology, seconds, transfers, topology.memory_bytes)
    result = partitioned(PLANNER, LatencyProblem(step), 60.0)
    holds = "device 'accelerator0' holds 6 bytes of parameters and state, 3 too many"
    assert (result.status, result.reason.split("; ")[0]) == ("limit", holds)


def test_a_limit_on_pairs_and_chains_alone_leave_true_bounds() -> None:
    step = braided(1, 90).problem(accelerators=4, capacity=1e9, training=True, orphans=10)
    problem = MaxLoadProblem(step, contiguous=True)
    exact, chains = checked(problem, PLANNER), checked(problem, CHAINS)
    first, second = (checked(problem, PLANNER, 5_000) for _ in range(2))
    assert exact.status == "optimal"
    assert exact.bound == pytest.approx(exact.value, rel=1e-9)
    for result in (chains, first):
        assert result.status == "feasible"
        assert result.bound <= exact.value <= result.value
        assert result.evaluations < exact.evaluations
    assert (first.value, first.bound) == (second.value, second.bound)
    assert partitioned(PLANNER, problem, 0.0).status == "limit"


@pytest.mark.slow
def test_published_optima_of_contiguous_splits(data: Path) -> None:
    for name, expected in oracle(data, "throughput_max_load_contiguous").items():
        problem = MaxLoadProblem(published(data, "throughput", name), contiguous=True)
        result = checked(problem, PLANNER)
        assert (name, result.status) == (name, "optimal")
        assert result.value / MILLISECOND == pytest.approx(expected, abs=1e-3)
        assert result.bound == pytest.approx(result.value, rel=1e-9)


def test_the_order_of_the_file_alone_misses_the_published_optimum(data: Path) -> None:
    step = published(data, "throughput", "LayerGraphs/resnet50_training")
    problem = MaxLoadProblem(step, contiguous=True)
    everything = np.arange(step.topology.num_devices)
    items = Items.build(step, problem.precedence, problem.traffic, everything)
    chain = search.LineSearch(items, prefixes(np.arange(items.count)), *search.price_rules(items))
    split, bound = search.improve(chain, None, 0.0, search.Effort(np.inf, None))
    assert split is not None
    assert split.load / MILLISECOND == pytest.approx(78.6498, abs=1e-3)
    assert problem.objective(split.device(items)) == pytest.approx(split.load, rel=1e-12)
    assert bound == split.load


def test_lists_of_sources_that_are_too_short_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = braided(4, 40)
    capacity = 0.4 * sum(sketch.state)
    problem = MaxLoadProblem(sketch.problem(accelerators=3, capacity=capacity), contiguous=True)
    expected = partitioned(PLANNER, problem, 60.0)
    monkeypatch.setattr(search, "_LISTED", 1)
    result = partitioned(PLANNER, problem, 60.0)
    assert (result.value, result.status) == (expected.value, "optimal")
    assert result.evaluations > expected.evaluations
