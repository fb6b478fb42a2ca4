from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from agents.placement.baselines import SingleDevice
from agents.placement.list_planners import Heft
from agents.placement.milp import Milp
from agents.step.grouping import GroupedProblem
from envs.cost import TabulatedCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE
from envs.graphs.readers import read_graph_file
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, on, optimum, pipeline, problems
from tests.asking import planned
from tests.strength import examples

pytestmark = pytest.mark.slow


@examples(60)
@given(problem=problems(max_operators=6, tight=False))
def test_the_optimum_is_that_of_all_placements_in_all_orders(problem: StepProblem) -> None:
    best, result = optimum(problem), planned(Milp(), problem, 30.0)
    assert result.value == pytest.approx(best, rel=1e-6)
    assert best * (1 - 1e-5) <= result.bound <= best * (1 + 1e-9)
    assert result.status == ("infeasible" if np.isinf(best) else "optimal")


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
    seconds = 1.0 + 1e-3 * random.random((n, 3))
    seconds[:, 2] *= slower
    moves = np.concatenate([np.zeros((n - 1, 1)), 1e-3 * random.random((n - 1, 2))], axis=1)
    return on(cluster([0, 0, 1]), builder.build(), seconds, moves)


@pytest.mark.parametrize(
    ("seed", "slower", "warm"),
    [(4, 1e2, True), (16, 1e2, True), (15, 1e3, True), (32, 1e4, False), (31, 1e5, False)],
)
def test_a_device_that_is_much_slower_does_not_blur_the_bound(
    seed: int, slower: float, warm: bool
) -> None:
    problem = far_apart(seed, slower)
    best, milp = optimum(problem), Milp(warm_start=SingleDevice() if warm else None)
    result = planned(milp, problem, 60.0, 4000)
    assert best * (1 - 1e-5) <= result.bound <= best
    assert result.value == pytest.approx(best, rel=5e-6)
    assert result.status == "optimal"


@examples(25)
@given(problem=problems())
def test_a_warm_started_plan_is_at_least_as_good_as_its_start(problem: StepProblem) -> None:
    start = Heft(groups=(16,))
    known = planned(start, problem, 1.0)
    result = planned(Milp(warm_start=start), problem, 60.0, 3)
    assert result.value <= known.value
    if known.solution is not None:
        assert result.history[0][1] == known.value


@pytest.mark.filterwarnings("error")
def test_a_step_that_takes_no_time_on_one_device() -> None:
    builder = GraphBuilder("no time")
    for op in range(3):
        builder.add_operator(f"op{op}")
    builder.add_use(builder.add_tensor(0, 1.0), 2)
    seconds = [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [np.inf, 0.0, 1.0]]
    problem = on(cluster([0] * 3, [1.02, 1.02, 0.98]), builder.build(), seconds)
    result = planned(Milp(), problem, 60.0, 40)
    assert (result.status, result.value, result.bound) == ("optimal", 0.0, 0.0)


@pytest.mark.proof
def test_moirai_example_1_is_solved_to_30_by_order_where_1f1b_stops_at_31(data: Path) -> None:
    file = read_graph_file(data / "graphs" / "moirai" / "example-1.xls")
    assert file.topology is not None
    problem = StepProblem.build(file.graph, file.topology, TabulatedCost())
    result = planned(Milp(), problem, 100.0, 4000)
    assert result.value == 30.0
    assert result.solution.violations(problem) == []


def test_chains_make_fewer_groups_and_claim_no_bound_of_their_own() -> None:
    problem = pipeline([1.0, 2.0, 2.0, 1.0], 2, cluster([0, 1]))
    result = planned(Milp(chains=True), problem, 60.0, 40)
    assert len(set(result.solution.placement.device)) == 1  # the whole pipeline is one chain
    assert result.bound < result.value
