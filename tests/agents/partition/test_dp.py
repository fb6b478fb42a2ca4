"""`ContiguousDP` against exhaustive search, published optima and its own promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from agents.partition.dp import ContiguousDP
from agents.partition.ideals import search
from agents.partition.ideals.items import Items
from agents.partition.ideals.lattice import prefixes
from agents.partition.ideals.search import Effort, LineSearch, improve, priced
from envs.cost import TabulatedCost
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.graphs.readers import read_graph_file
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.step.problem import StepProblem
from tests.agents.partition.dp_graphs import (
    braided,
    host_topology,
    inception_like,
    small_problem,
    transformer_like,
    translator_like,
)
from tests.asking import partitioned
from tests.strength import SEEDS, examples, trials

PLANNER = ContiguousDP(ideals=200_000, groups=16)
MILLISECOND = 1e-3
PUBLISHED = (
    "LayerGraphs/bert24_inference",
    "LayerGraphs/bert24_training",
    "LayerGraphs/resnet50_inference",
    "LayerGraphs/resnet50_training",
    "OperatorGraphs/bert_l-3_inference",
    "OperatorGraphs/bert_l-3_training",
    "OperatorGraphs/bert_l-6_inference",
    "OperatorGraphs/bert_l-6_training",
    "OperatorGraphs/resnet50_inference",
    "OperatorGraphs/resnet50_training",
)


def exhaustive(problem: PartitionProblem) -> float:
    """The smallest objective of all feasible placements; inf when there is none."""
    n, d = problem.step.graph.num_operators, problem.step.topology.num_devices
    placements = np.array(list(product(range(d), repeat=n)))
    values = np.array([problem.objective(device) for device in placements])
    for index in np.argsort(values, kind="stable"):
        if np.isinf(values[index]):
            break
        if not problem.violations(placements[index]):
            return float(values[index])
    return float("inf")


@given(SEEDS)
@examples(150)
def test_the_split_is_the_best_of_all_contiguous_placements(seed: int) -> None:
    problem = MaxLoadProblem(small_problem(seed), contiguous=True)
    best = exhaustive(problem)
    result = partitioned(PLANNER, problem, 60.0)
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.bound == pytest.approx(best, rel=1e-9)
    if np.isinf(best):
        assert result.status == "infeasible"
        assert result.reason
        assert result.solution is None
    else:
        assert result.status == "optimal"
        assert result.solution is not None
        assert problem.violations(result.solution.placement.device) == []
        assert problem.objective(result.solution.placement.device) == result.value


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
    builder.add_parameter("weight", update, parameter=4.0, gradient=0.0, optimizer=0.0)
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


@given(SEEDS)
@examples(40)
def test_chains_and_other_objectives_get_feasible_plans_and_true_bounds(seed: int) -> None:
    step = small_problem(seed)
    contiguous = MaxLoadProblem(step, contiguous=True)
    for problem, planner in (
        (contiguous, ContiguousDP(ideals=1, groups=16)),
        (MaxLoadProblem(step, contiguous=False), PLANNER),
        (LatencyProblem(step), PLANNER),
    ):
        result = partitioned(planner, problem, 60.0)
        assert result.bound <= exhaustive(problem) * (1.0 + 1e-9)
        if result.solution is None:
            assert result.status in {"limit", "infeasible"}
            assert result.reason
        else:
            assert result.status in {"feasible", "optimal"}
            assert problem.violations(result.solution.placement.device) == []
            assert problem.objective(result.solution.placement.device) == result.value


@pytest.mark.parametrize(
    ("sketch", "training", "orphans"),
    [
        (inception_like(modules=4), True, 0),
        (inception_like(modules=4), True, 5),
        (translator_like(thin=5), False, 0),
        (transformer_like(layers=3), True, 10),
    ],
)
def test_the_lattice_has_the_optimum_and_chains_do_not_beat_it(
    sketch: object, training: bool, orphans: int
) -> None:
    step: StepProblem = sketch.problem(  # type: ignore[attr-defined]
        accelerators=4, capacity=1e9, training=training, orphans=orphans
    )
    problem = MaxLoadProblem(step, contiguous=True)
    exact = partitioned(PLANNER, problem, 60.0)
    chains = partitioned(ContiguousDP(ideals=10, groups=16), problem, 60.0)
    assert exact.status == "optimal"
    assert exact.bound == pytest.approx(exact.value, rel=1e-9)
    assert chains.status == "feasible"
    assert chains.bound <= exact.value <= chains.value
    for result in (exact, chains):
        assert result.solution is not None
        assert problem.violations(result.solution.placement.device) == []


def test_a_limit_on_pairs_ends_the_search_with_a_true_bound_and_is_reproducible() -> None:
    step = inception_like(modules=5).problem(accelerators=4, capacity=1e12)
    problem = MaxLoadProblem(step, contiguous=True)
    exact = partitioned(PLANNER, problem, 60.0)
    short = [partitioned(PLANNER, problem, 60.0, 30_000) for _ in range(2)]
    assert short[0].value == short[1].value
    assert short[0].bound == short[1].bound
    assert short[0].evaluations < exact.evaluations
    assert short[0].status == "feasible"
    assert short[0].bound <= exact.value <= short[0].value


def test_no_time_at_all_is_said() -> None:
    problem = MaxLoadProblem(small_problem(1), contiguous=True)
    result = partitioned(PLANNER, problem, 0.0)
    assert result.solution is None
    assert result.status == "limit"
    assert result.reason


def published(data: Path, name: str, objective: str) -> StepProblem:
    file = data / f"graphs/dnn-partitioning/{objective}-inputs/{name}.json.gz"
    read = read_graph_file(file)
    assert read.topology is not None
    return StepProblem.build(read.graph, read.topology, TabulatedCost())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_optima_of_contiguous_splits(data: Path, name: str) -> None:
    oracle = read_json(data / "oracles/placement.json")
    problem = MaxLoadProblem(published(data, name, "throughput"), contiguous=True)
    result = partitioned(PLANNER, problem, 60.0)
    expected = oracle["throughput_max_load_contiguous"][name]
    assert result.value / MILLISECOND == pytest.approx(expected, abs=1e-3)
    assert result.status == "optimal"
    assert result.bound == pytest.approx(result.value, rel=1e-9)
    assert result.solution is not None
    assert problem.violations(result.solution.placement.device) == []


def test_every_published_optimum_is_tested(data: Path) -> None:
    oracle = read_json(data / "oracles/placement.json")
    assert set(PUBLISHED) == set(oracle["throughput_max_load_contiguous"])


def test_the_order_of_the_file_alone_misses_the_published_optimum(data: Path) -> None:
    step = published(data, "LayerGraphs/resnet50_training", "throughput")
    problem = MaxLoadProblem(step, contiguous=True)
    everything = np.arange(step.topology.num_devices)
    items = Items.build(step, problem.precedence, problem.traffic, everything)
    prices = priced(items.seconds, items.class_sizes)
    chain = LineSearch(items, prefixes(np.arange(items.count)), *prices)
    split, bound = improve(chain, None, 0.0, Effort(np.inf, None))
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
