"""The local search: reproducible, never slower than one device, optimal where it can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from numpy.testing import assert_array_equal

from agents.partition.dp import ContiguousDP
from agents.placement.baselines import SingleDevice
from agents.placement.local_search import LocalSearch, _Search
from agents.placement.neighbourhood.levels import (
    Level,
    inner_bytes,
    levels_of,
    list_schedule,
    splits,
)
from agents.placement.neighbourhood.walk import Walker
from agents.solver import Budget
from agents.step.grouping import GroupedProblem, atoms, topological
from agents.step.incumbent import StepIncumbent
from envs.compilation import clock
from envs.cost import TabulatedCost
from envs.graphs.op_graph import Phase
from envs.graphs.readers import read_graph_file
from envs.partition.problem import MaxLoadProblem
from envs.step.plans import Placement, Plan
from envs.step.price import Pricer, name_of_order
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, optimum, pipeline, problems
from tests.asking import partitioned, planned
from tests.refusal import refusal
from tests.strength import examples

SETTINGS = examples(40, suppress_health_check=[HealthCheck.too_slow])


def search(**changes) -> LocalSearch:
    """A search of two levels without other planners, or with `changes`."""
    return LocalSearch(**{"groups": (4, 8), "starts": (), **changes})


@examples(15, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(max_operators=4, max_devices=2, tight=False))
def test_small_problems_are_solved_to_the_optimum(problem: StepProblem) -> None:
    found = min(planned(search(hot=0.3, seed=seed), problem, 60.0, 3000).value for seed in range(3))
    assert found == pytest.approx(optimum(problem), rel=1e-9)


@SETTINGS
@given(problem=problems(max_operators=20))
def test_plans_are_never_slower_than_one_device(problem: StepProblem) -> None:
    alone = planned(SingleDevice(), problem, 60.0).value
    assert planned(search(), problem, 60.0, 300).value <= alone


def test_two_walkers_agree_on_equal_seeds_and_limits() -> None:
    problem = pipeline([1.0, 2.0, 1.5, 3.0], 3, cluster([0, 0, 1]), [2, 2, 1])
    first, second, other = (
        planned(search(workers=2, seed=seed), problem, 60.0, 4000) for seed in (0, 0, 1)
    )
    assert_array_equal(first.solution.placement.device, second.solution.placement.device)
    assert_array_equal(first.solution.order, second.solution.order)
    assert (first.value, first.evaluations) == (second.value, second.evaluations)
    assert other.evaluations != first.evaluations


@pytest.mark.parametrize("orders", [("one_f_one_b",), ("zb_h1", "gpipe")])
def test_a_plan_has_an_order_that_its_problem_allows(orders: tuple[str, ...]) -> None:
    problem = pipeline([1.0, 2.0, 1.5, 3.0], 4, cluster([0, 0, 1], 30.0), [2, 2, 1])
    problem = replace(problem, orders=orders)
    plan = planned(search(), problem, 60.0, 2000).solution
    assert plan.violations(problem) == []
    assert name_of_order(problem, plan.placement.device, plan.order) in orders


@pytest.mark.usefixtures("ticking")
def test_a_search_uses_its_budget_and_makes_a_plan_without_one() -> None:
    problem = pipeline([1.0] * 6, 4, cluster([0, 0, 1]))
    assert planned(search(), problem, 2.0).seconds >= 2.0
    for budget_s in (0.0, -0.5):
        assert planned(search(), problem, budget_s).solution is not None


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    ("budget_s", "looks", "searched"),
    [(3.0, 0, [0, 1, 2, 2]), (3.0, 20, [0, 2, 2]), (-1.0, 0, [0])],
)
def test_levels_that_would_end_as_they_begin_are_left_out(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, looks: int, searched: list[int]
) -> None:
    problem = pipeline([1.0] * 20, 4, cluster([0, 0, 1]))
    pieces = [level.problem.graph.num_operators for level in levels_of(problem, (2, 5), 3000)]
    begun: list[int] = []

    def start(self: _Search, level: Level, pricer: Pricer) -> Walker:
        for _ in range(looks):
            clock()
        begun.append(pieces.index(level.problem.graph.num_operators))
        return whole(self, level, pricer)

    whole = _Search._start
    search().compile(problem)
    monkeypatch.setattr(_Search, "_start", start)
    assert planned(search(groups=(2, 5)), problem, budget_s).solution is not None
    assert begun == [0, *searched]  # once to see whether memory binds


@SETTINGS
@given(problem=problems(max_operators=25, unsupported=False))
def test_plans_of_a_level_are_plans_of_the_operators(problem: StepProblem) -> None:
    for level in levels_of(problem, (2, 4), 10**6):
        graph = level.problem.graph
        random = np.random.default_rng(graph.num_operators)
        order = topological(graph.edges[:, :2], random.permutation(graph.num_operators))
        unit = random.integers(problem.topology.num_devices, size=len(level.units.state))
        device, expanded = level.down(unit[level.units.of], order)
        found = Plan(Placement(device), expanded).violations(problem)
        assert not any("apart" in text or "ordered" in text for text in found)
        again, again_order = level.up(device, expanded)
        assert_array_equal(again, unit[level.units.of])
        assert_array_equal(np.sort(again_order), np.arange(graph.num_operators))
        position = np.argsort(again_order)
        assert (position[graph.edges[:, 0]] < position[graph.edges[:, 1]]).all()


@SETTINGS
@given(problem=problems(max_operators=25, unsupported=False))
def test_a_piece_needs_what_its_operators_make_one_after_another(problem: StepProblem) -> None:
    graph = problem.graph
    grouped = GroupedProblem.of(problem, 4)
    fused, piece_of = grouped.fusion.graph, grouped.fusion.piece
    for piece, inner in enumerate(inner_bytes(graph, grouped.fusion)):
        members = np.flatnonzero(piece_of == piece).tolist()
        most = 0.0
        for now in members:
            live = 0.0
            for tensor in np.flatnonzero(np.isin(graph.producer, members)).tolist():
                users = graph.consumers(tensor).tolist()
                first = int(graph.producer[tensor])
                last = np.inf if set(users) - set(members) else max([first, *users])
                live += graph.tensor_bytes[tensor] if first <= now <= last else 0.0
            most = max(most, live)
        outputs = fused.output[fused.output_ptr[piece] : fused.output_ptr[piece + 1]]
        assert inner == max(0.0, most - fused.tensor_bytes[outputs].sum())


@SETTINGS
@given(problem=problems(max_operators=25, unsupported=False))
def test_a_list_schedule_respects_room_and_order(problem: StepProblem) -> None:
    level = levels_of(problem, (), 10**6)[-1]
    listed = list_schedule(level, problem.capacity)
    if listed is not None:
        assert Placement(listed[0]).violations(problem) == []
        found = Plan(*(Placement(listed[0]), listed[1])).violations(problem)
        assert all("at its peak" in text for text in found)


def test_splits_are_segments_in_a_line_a_loop_and_a_v() -> None:
    problem = pipeline([1.0] * 8, 2, cluster([0, 0]), [3, 1])
    first = problem.graph.micro_batch == 0
    forward = np.flatnonzero(first & (problem.graph.phase == Phase.FORWARD))
    found = [split[forward].tolist() for split in splits(GroupedProblem.of(problem, 8))]
    assert found[:3] == [
        [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0],
    ]  # fmt: skip
    assert found[3] == [0, 0, 0, 0, 0, 0, 1, 1]  # a device three times as fast
    assert found[6] == found[0]  # equal memory


def test_partitions_are_searched_by_the_planner_for_partitions() -> None:
    problem = MaxLoadProblem(pipeline([1.0, 2.0, 3.0], 1, cluster([0, 0])), contiguous=True)
    splits = ContiguousDP(ideals=1000, groups=8)
    ours = partitioned(search(partitions=splits), problem, 60.0)
    assert ours.value == partitioned(splits, problem, 60.0).value


@pytest.mark.slow
def test_googlenet_in_as_many_moves_as_a_tenth_of_a_second_holds(data: Path) -> None:
    file = read_graph_file(data / "graphs" / "moirai" / "GoogLeNet.xls")
    assert file.topology is not None
    problem = StepProblem.build(file.graph, file.topology, TabulatedCost())
    found = [
        planned(search(groups=(32, 64), seed=seed), problem, 60.0, 90_000).value
        for seed in range(5)
    ]
    assert max(found) <= 1.45
    assert np.median(found) <= 1.41


def test_a_search_begins_with_the_first_given_plan_that_fits() -> None:
    problem = pipeline(
        [1.0, 2.0, 1.5, 3.0], 4, cluster([0, 0, 1], [1000.0, 1000.0, 5.0]), [2, 2, 1]
    )
    full = np.full(problem.graph.num_operators, 2)
    fits = np.minimum(atoms(problem), 1)
    found, first = StepIncumbent(problem), StepIncumbent(problem)
    search().improve(found, Budget(60.0, 50), (full, fits))
    first.offer(fits)
    assert found.trajectory[0][1] == first.step_time
    assert found.plan.violations(problem) == []
    assert found.step_time <= first.step_time


def test_a_search_that_grows_hotter_is_refused() -> None:
    with refusal("cold"):
        search(cold=0.1)
