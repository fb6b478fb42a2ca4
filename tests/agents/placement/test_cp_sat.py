"""CP-SAT against brute force over all placements and all orders of tiny steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from agents.constraint_program.solver import CpSolver
from agents.placement.baselines import SingleDevice
from agents.placement.cp_sat import CpSat
from agents.placement.list_planners import Heft
from agents.step.lower_bound import lower_bound
from envs.graphs.builder import GraphBuilder
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import (
    cluster,
    on,
    optimum,
    pipeline,
    problems,
    quick_search,
    wire,
)
from tests.asking import planned
from tests.strength import examples

pytestmark = pytest.mark.slow

ROUNDED = 1e-5  # relative gap left where times are rounded down, at most
QUICK = CpSat(
    hint=SingleDevice(), hint_seconds=0.2, hint_limit=20, rest=quick_search(), rest_limit=2000,
    workers=1,
)  # fmt: skip


def agrees_with_brute_force(problem: StepProblem, gap: float) -> None:
    best = optimum(problem)
    result = planned(QUICK, problem, 60.0, 60)
    assert result.value == pytest.approx(best, rel=1e-12)
    if np.isinf(best):
        assert (result.status, result.bound, result.solution) == ("infeasible", np.inf, None)
        assert result.reason
        return
    assert result.solution.violations(problem) == []
    assert best * (1.0 - gap) <= result.bound <= best
    if gap <= 1e-9:
        assert result.status == "optimal"


@examples(20)
@given(problems(max_operators=5, max_devices=2))
def test_the_optimum_of_small_steps_is_that_of_all_plans(problem: StepProblem) -> None:
    agrees_with_brute_force(problem, 1e-9)


def dense(seed: int, tight: bool, whole: bool) -> StepProblem:
    """A step in which nearly everything competes: shared ports, tensors with several readers."""
    random = np.random.default_rng(seed)
    n = 5
    builder = GraphBuilder("dense")
    for op in range(n):
        builder.add_operator(f"op{op}", colocation=0 if op in {1, 4} and seed % 3 == 0 else -1)
    wire(builder, random, n, 0.0, 1.0, 3.0)
    builder.add_parameter("w", 0, parameter=2.0, gradient=1.0, optimizer=0.0)
    graph = builder.build()
    servers = [[0, 0, 1], [0, 1, 1], [0, 0, 0]][seed % 3]
    topology = cluster(servers, [8.0 if tight else 1000.0] * 3)
    seconds = random.choice([0.5, 1.0, 1.25, 3.0], size=(n, 3))
    moves = random.choice([0.0, 0.25, 0.5, 1.0], size=(graph.num_tensors, 2))
    if not whole:
        seconds, moves = random.random((n, 3)) * 3.0, random.random((graph.num_tensors, 2))
    if seed % 2:
        seconds = np.repeat(seconds[:, :1], 3, axis=1)  # devices are interchangeable
    none = np.zeros((graph.num_tensors, 1))
    return on(topology, graph, seconds, np.concatenate([none, moves], axis=1))


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_ports_orders_and_live_memory_are_those_of_the_simulator(seed: int, tight: bool) -> None:
    agrees_with_brute_force(dense(seed, tight, whole=True), 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_rounded_times_leave_a_bound_that_holds(seed: int) -> None:
    agrees_with_brute_force(dense(seed, tight=False, whole=False), ROUNDED)


def test_a_gap_left_by_rounding_is_not_called_optimal() -> None:
    result = planned(QUICK, dense(0, tight=False, whole=False), 60.0, 60)
    assert result.status == "feasible"
    assert 0.0 < result.value - result.bound <= ROUNDED * result.value
    assert "rounded down" in result.reason


def test_activations_that_fit_nowhere_are_proved_to_fit_nowhere() -> None:
    builder = GraphBuilder("activations")
    first, second = builder.add_operator("first"), builder.add_operator("second")
    builder.add_use(builder.add_tensor(first, 10.0), second)
    problem = on(cluster([0, 0], 9.0), builder.build(), 1.0)
    assert lower_bound(problem).memory_ok  # no state at all: only the live tensor is too large
    result = planned(QUICK, problem, 60.0, 10)
    assert (result.status, result.bound) == ("infeasible", np.inf)
    assert result.reason == "CP-SAT proved that no plan fits"


@pytest.mark.proof
def test_a_large_step_is_fused_and_its_bound_holds_for_all_plans() -> None:
    problem = pipeline([1.0] * 8, 2, cluster([0, 0]))
    search = replace(QUICK, operators=16, hint=Heft(groups=(8,)))
    result = planned(search, problem, 60.0, 5)
    assert result.solution.violations(problem) == []
    assert result.bound == lower_bound(problem).seconds
    assert "pieces" in result.reason
    assert result.value < 0.75 * planned(SingleDevice(), problem, 1.0).value


def test_the_rest_of_the_budget_refines_the_plan_of_a_fused_graph() -> None:
    layers = [1.0, 3.0, 2.0, 2.0, 1.3, 0.7, 2.2]
    problem = pipeline(layers, 4, cluster([0, 0, 1]), [1, 2, 1])
    coarse, first, second = (
        planned(replace(QUICK, operators=16, rest_limit=limit), problem, 60.0, 5)
        for limit in (1, 4000, 4000)
    )
    assert first.value < coarse.value
    assert first.history[-1][1] == first.value == second.value
    assert len(first.history) > len(coarse.history)
    assert first.history == sorted(first.history, key=lambda entry: (entry[0], -entry[1]))


def test_the_budget_is_kept_where_the_proof_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    granted = []
    searched = CpSolver.search

    def search(self: CpSolver, *program: Any, seconds: float, **limit: Any) -> Any:
        granted.append(seconds)
        return searched(self, *program, seconds=seconds, **limit)

    monkeypatch.setattr(CpSolver, "search", search)
    problem = pipeline([1.0, 1.3, 0.7, 2.1], 6, cluster([0, 0, 1]), [1, 2, 3])
    result = planned(QUICK, problem, 1.5)
    assert (result.status, result.solution is None) == ("feasible", False)
    assert 0.0 < sum(granted) <= 1.5
    assert result.bound >= lower_bound(problem).seconds


def test_a_program_too_large_for_the_budget_is_not_begun() -> None:
    result = planned(QUICK, pipeline([1.0, 2.0], 3, cluster([0] * 40)), 0.5)
    assert result.solution is not None
    assert result.reason.endswith("the program is too large for the budget")


def test_a_step_without_operators_takes_no_time() -> None:
    nothing = GraphBuilder("nothing").build()
    assert planned(QUICK, on(cluster([0]), nothing, 1.0), 1.0).status == "optimal"
