from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given

from agents.placement.baselines import SingleDevice
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.list_planners import Heft
from agents.placement.milp import Milp
from agents.step.grouping import GroupedProblem
from envs.cost import TabulatedCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, OpGraph
from envs.graphs.readers import read_moirai
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.asking import planned
from tests.strength import examples

pytestmark = pytest.mark.slow

FORMULATION = OrderFormulation(gap=1e-6, at_once=30)
MOST_ORDERS = 2000


def orders(graph: OpGraph) -> Iterator[list[int]]:
    """All topological orders."""
    inputs = [0] * graph.num_operators
    for u, v, _ in graph.edges.tolist():
        inputs[v] |= 1 << u

    def extend(order: list[int], done: int) -> Iterator[list[int]]:
        if len(order) == graph.num_operators:
            yield order
        for op, needed in enumerate(inputs):
            if not done >> op & 1 and needed & ~done == 0:
                yield from extend([*order, op], done | 1 << op)

    return extend([], 0)


def placements(grouped: GroupedProblem) -> np.ndarray:
    """(B, N) all placements of the operators whose state fits."""
    capacity = grouped.problem.capacity
    every = np.arange(grouped.num_groups)
    found = [
        grouped.fusion.expand(np.array(device))
        for device in product(range(len(capacity)), repeat=grouped.num_groups)
        if grouped.allowed[every, list(device)].all()
        and (np.bincount(device, grouped.state, len(capacity)) <= capacity).all()
    ]
    return np.array(found)


@examples(60)
@given(problem=problems(max_operators=6, tight=False))
def test_the_optimum_is_that_of_all_placements_in_all_orders(problem: StepProblem) -> None:
    sequences = list(islice(orders(problem.graph), MOST_ORDERS))
    assume(len(sequences) < MOST_ORDERS)
    devices = placements(GroupedProblem.unfused(problem))
    simulator = StepSimulator(problem)
    best = np.inf
    if len(devices):
        best = min(simulator.step_times(devices, np.array(order)).min() for order in sequences)
    result = planned(
        Milp(
            formulation=OrderFormulation(gap=1e-6, at_once=30),
            warm_start=None,
            chains=False,
            seed=0,
        ),
        problem,
        30.0,
    )
    assert result.value == pytest.approx(best, rel=1e-6)
    assert result.bound <= best * (1 + 1e-9)
    assert result.bound >= best * (1 - 1e-5)
    assert result.status == ("infeasible" if np.isinf(best) else "optimal")


@examples(40)
@given(problem=problems())
def test_plans_are_feasible_and_not_below_the_bound(problem: StepProblem) -> None:
    result = planned(
        Milp(formulation=FORMULATION, warm_start=None, chains=False, seed=0), problem, 2.0
    )
    if result.solution is not None:
        assert result.solution.violations(problem) == []
        order = result.solution.order
        simulated = StepSimulator(problem).step_time(result.solution.placement.device, order)
        assert result.value == simulated >= result.bound
    else:
        assert result.status in ("infeasible", "limit")
        assert result.reason


@examples(60)
@given(problem=problems())
def test_every_operator_is_its_own_group_but_for_co_location(problem: StepProblem) -> None:
    graph = problem.graph
    grouped = GroupedProblem.unfused(problem)
    group = grouped.fusion.group
    for a, b in product(range(graph.num_operators), repeat=2):
        together = graph.colocation[a] == graph.colocation[b] != NONE
        assert (group[a] == group[b]) == (a == b or together)
    assert grouped.state.sum() == graph.state_bytes.sum()


def far_apart(seed: int, slower: float) -> StepProblem:
    """Two devices that differ by less than a thousandth, and one that is `slower`."""
    random, n = np.random.default_rng(seed), 4
    builder = GraphBuilder("far apart")
    for op in range(n):
        builder.add_operator(f"op{op}")
    for op in range(n - 1):
        tensor = builder.add_tensor(op, 0.0)
        for reader in set(random.integers(op + 1, n, size=2).tolist()):
            builder.add_use(tensor, reader)
    topology = cluster([0, 0, 1])
    seconds = 1.0 + 1e-3 * random.random((n, 3))
    seconds[:, 2] *= slower
    moves = np.concatenate([np.zeros((n - 1, 1)), 1e-3 * random.random((n - 1, 2))], axis=1)
    return StepProblem(builder.build(), topology, seconds, moves, topology.memory_bytes)


@pytest.mark.parametrize(
    ("seed", "slower", "warm"),
    [(4, 1e2, True), (16, 1e2, True), (15, 1e3, True), (32, 1e4, False), (31, 1e5, False)],
)
def test_a_device_that_is_much_slower_does_not_blur_the_bound(
    seed: int, slower: float, warm: bool
) -> None:
    problem = far_apart(seed, slower)
    devices, simulator = placements(GroupedProblem.unfused(problem)), StepSimulator(problem)
    best = min(
        simulator.step_times(devices, np.array(order)).min() for order in orders(problem.graph)
    )
    formulation = OrderFormulation(gap=1e-6, at_once=30)
    milp = Milp(
        formulation=formulation, warm_start=SingleDevice() if warm else None, chains=False, seed=0
    )
    result = planned(milp, problem, 60.0, 4000)
    assert best * (1 - 1e-5) <= result.bound <= best
    assert result.value == pytest.approx(best, rel=5e-6)
    assert result.status == "optimal"


@examples(25)
@given(problem=problems())
def test_a_warm_started_plan_is_at_least_as_good_as_its_start(problem: StepProblem) -> None:
    start = Heft(groups=(16,))
    milp = Milp(
        formulation=OrderFormulation(gap=1e-6, at_once=30), warm_start=start, chains=False, seed=0
    )
    known, result = planned(start, problem, 1.0), planned(milp, problem, 60.0, 3)
    assert result.value <= known.value
    if known.solution is not None:
        assert result.history[0][1] == known.value


@pytest.mark.filterwarnings("error")
def test_a_step_that_takes_no_time_on_one_device() -> None:
    builder = GraphBuilder("no time")
    for op in range(3):
        builder.add_operator(f"op{op}")
    builder.add_use(builder.add_tensor(0, 1.0), 2)
    topology = cluster([0] * 3, [1.02, 1.02, 0.98])
    seconds = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [np.inf, 0.0, 1.0]])
    problem = StepProblem(
        builder.build(), topology, seconds, np.zeros((1, 3)), topology.memory_bytes
    )
    milp = Milp(
        formulation=OrderFormulation(gap=1e-6, at_once=30), warm_start=None, chains=False, seed=0
    )
    result = planned(milp, problem, 60.0, 40)
    assert (result.status, result.value, result.bound) == ("optimal", 0.0, 0.0)


def test_a_limit_of_nodes_makes_it_reproducible() -> None:
    problem = pipeline([1.0, 2.0, 2.0, 1.0], 2, cluster([0, 1]))
    milp = Milp(
        formulation=OrderFormulation(gap=1e-6, at_once=30), warm_start=None, chains=False, seed=0
    )
    first, second = (planned(milp, problem, 60.0, 40) for _ in range(2))
    assert first.value == second.value
    assert [step for _, step in first.history] == [step for _, step in second.history]


@pytest.mark.proof
def test_moirai_example_1_is_solved_to_30_by_order_where_1f1b_stops_at_31(data: Path) -> None:
    file = read_moirai(data / "graphs" / "moirai" / "example-1.xls")
    assert file.topology is not None
    problem = StepProblem.build(file.graph, file.topology, TabulatedCost())
    result = planned(
        Milp(
            formulation=OrderFormulation(gap=1e-6, at_once=30),
            warm_start=None,
            chains=False,
            seed=0,
        ),
        problem,
        100.0,
        4000,
    )
    assert result.solution is not None
    assert result.value == 30.0
    assert result.solution.violations(problem) == []


def test_chains_make_fewer_groups_and_claim_no_bound_of_their_own() -> None:
    problem = pipeline([1.0, 2.0, 2.0, 1.0], 2, cluster([0, 1]))
    formulation = OrderFormulation(gap=1e-6, at_once=30)
    milp = Milp(formulation=formulation, warm_start=None, chains=True, seed=0)
    result = planned(milp, problem, 60.0, 40)
    assert result.solution is not None
    assert len(set(result.solution.placement.device)) == 1  # the whole pipeline is one chain
    assert result.bound < result.value
