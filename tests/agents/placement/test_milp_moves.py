from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agents.placement.integer_program.order import OrderFormulation
from agents.placement.integer_program.refinement import MovePricing, Refinement, draw_moves
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.strength import examples


def pricing(problem: StepProblem, groups: int, seed: int = 0) -> MovePricing:
    grouped = GroupedProblem.of(problem, groups)
    return MovePricing(grouped, problem.capacity, np.random.default_rng(seed))


@examples(100)
@given(data=st.data(), groups=st.integers(1, 9), devices=st.integers(1, 4), seed=st.integers(0, 99))
def test_moves_are_allowed_different_and_lead_elsewhere(
    data: st.DataObject, groups: int, devices: int, seed: int
) -> None:
    flags = st.lists(st.booleans(), min_size=groups * devices, max_size=groups * devices)
    allowed = np.array(data.draw(flags)).reshape(groups, devices)
    allowed[:, 0] = True
    device = np.array([data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in allowed])
    moved = draw_moves(device, allowed, 64, np.random.default_rng(seed))
    assert allowed[np.arange(groups), moved].all()
    assert (moved != device).any(axis=1).all()
    assert len(np.unique(moved, axis=0)) == len(moved)


def test_every_single_move_and_swap_is_drawn_sooner_or_later() -> None:
    device, allowed = np.array([0, 1, 2, 0]), np.ones((4, 3), dtype=np.bool_)
    random = np.random.default_rng(0)
    drawn = {tuple(row) for _ in range(40) for row in draw_moves(device, allowed, 256, random)}
    for group, target in product(range(4), range(3)):
        moved = device.copy()
        moved[group] = target
        assert (moved == device).all() or tuple(moved) in drawn
    for one, other in product(range(4), repeat=2):
        moved = device.copy()
        moved[[one, other]] = device[[other, one]]
        assert (moved == device).all() or tuple(moved) in drawn


@examples(60)
@given(problem=problems(), seed=st.integers(0, 9))
def test_a_descent_never_rises_and_fits(problem: StepProblem, seed: int) -> None:
    grouped = GroupedProblem.of(problem, 5)
    if grouped.too_large:
        return
    moves = pricing(problem, 5, seed)
    start = grouped.allowed.argmax(axis=1)
    if not moves.fits(start[None])[0]:
        return
    before = moves.step_times(start[None])[0]
    found = moves.descend(start, lambda: False)
    assert moves.step_times(found[None])[0] <= before
    assert moves.fits(found[None])[0]
    assert grouped.allowed[np.arange(grouped.num_groups), found].all()


def test_no_single_move_pays_after_a_descent() -> None:
    problem = pipeline([1.0, 2.0, 1.0, 0.5, 1.5], 3, cluster([0, 0, 1], [100.0] * 3), [1, 1, 1])
    moves = pricing(problem, 5)
    found = moves.descend(np.zeros(5, dtype=np.int64), lambda: False)
    best = moves.step_times(found[None])[0]
    assert best < moves.step_times(np.zeros((1, 5), dtype=np.int64))[0]
    for group, target in product(range(5), range(3)):
        moved = found.copy()
        moved[group] = target
        assert moves.step_times(moved[None])[0] >= best * (1 - 1e-6)


@examples(60)
@given(data=st.data(), problem=problems(tight=False, unsupported=False))
def test_groups_are_fused_around_a_placement(data: st.DataObject, problem: StepProblem) -> None:
    graph, devices = problem.graph, problem.topology.num_devices
    pick = st.lists(
        st.integers(0, devices - 1), min_size=graph.num_operators, max_size=graph.num_operators
    )
    device = np.array(data.draw(pick))
    tied = graph.colocation != NONE
    device[tied] = graph.colocation[tied] % devices
    refinement = Refinement(
        StepIncumbent(problem), levels=(2, 4), kick_groups=2,
        formulation=OrderFormulation(gap=0.02, at_once=8), seed=0,
    )  # fmt: skip
    grouped = refinement.around(device, 2)
    for group in range(grouped.num_groups):
        assert len(np.unique(device[grouped.fusion.group == group])) == 1
    assert grouped.state.sum() == graph.state_bytes.sum()
    found = refinement.descend(device, 60.0)
    simulator = StepSimulator(problem)
    assert simulator.step_time(found) <= simulator.step_time(device)
    assert refinement.incumbent.step_time <= simulator.step_time(found)
