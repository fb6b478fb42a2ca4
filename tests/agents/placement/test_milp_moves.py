from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from agents.placement.integer_program.descent import (
    ANYWHERE,
    EXCHANGE,
    LEFT,
    RENAME,
    RIGHT,
    SHIFT,
    MovePricing,
    Moves,
    make_move,
)
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.integer_program.refinement import Refinement
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from envs.graphs.op_graph import NONE
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.agents.placement.test_milp_model import somewhere
from tests.strength import examples


def pricing(problem: StepProblem, groups: int, seed: int = 0) -> MovePricing:
    grouped = GroupedProblem.of(problem, groups)
    return MovePricing(grouped, Moves(problem, default_rng(seed)))


def moved_slowly(device: list[int], devices: int, random: np.random.Generator) -> list[int]:
    """`make_move`, as its shares say, in plain Python."""
    groups = len(device)
    length = 1 + int(random.random() ** 2 * max(groups / 3, 1))
    first = int(random.integers(0, groups)) - length // 2
    end, first = min(max(first + length, 1), groups), min(max(first, 0), groups - 1)
    kind = random.random()
    other, target = int(random.integers(0, groups)), int(random.integers(0, devices))
    run = range(first, end)
    change = {device[first]: device[other], device[other]: device[first]}
    rename = {target: device[other], device[other]: target}
    by = (1 + length // 4) * (1 if target % 2 == 0 else -1)
    swapped = list(device)
    swapped[first], swapped[other] = device[other], device[first]
    for share, moved in (
        (LEFT, [device[max(first - 1, 0)] if g in run else d for g, d in enumerate(device)]),
        (RIGHT, [device[min(end, groups - 1)] if g in run else d for g, d in enumerate(device)]),
        (ANYWHERE, [target if g in run else d for g, d in enumerate(device)]),
        (EXCHANGE, [change.get(d, d) if g in run else d for g, d in enumerate(device)]),
        (SHIFT, [device[min(max(g + by, 0), groups - 1)] for g in range(groups)]),
        (RENAME, [rename.get(d, d) for d in device]),
    ):
        if kind < share:
            return moved
    return swapped


@examples(50)
@given(data=st.data(), groups=st.integers(1, 40), devices=st.integers(1, 5))
def test_compiled_moves_are_those_of_plain_python(
    data: st.DataObject, groups: int, devices: int
) -> None:
    names = st.lists(st.integers(0, devices - 1), min_size=groups, max_size=groups)
    device, seed = data.draw(names), data.draw(st.integers(0, 999))
    compiled, plain = default_rng(seed), default_rng(seed)
    for _ in range(50):
        row = np.array(device)
        make_move(np.array(device), row, devices, compiled)
        assert row.tolist() == moved_slowly(device, devices, plain)


@examples(100)
@given(data=st.data(), groups=st.integers(1, 9), devices=st.integers(1, 4), seed=st.integers(0, 99))
def test_moves_are_allowed_and_lead_elsewhere_and_no_two_are_the_same(
    data: st.DataObject, groups: int, devices: int, seed: int
) -> None:
    flags = st.lists(st.booleans(), min_size=groups * devices, max_size=groups * devices)
    allowed = np.array(data.draw(flags)).reshape(groups, devices)
    allowed[:, 0] = True
    device = np.array([data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in allowed])
    moves = Moves(unlike(devices), default_rng(seed))
    moved = np.concatenate([moves.draw(device, allowed, 32) for _ in range(2)])
    assert allowed[np.arange(groups), moved].all()
    assert (moved != device).any(axis=1).all()
    assert len(np.unique(moved, axis=0)) == len(moved)


def unlike(devices: int) -> StepProblem:
    """A problem on devices no two of which are interchangeable."""
    topology = cluster([0] * devices, [100.0 + d for d in range(devices)])
    return pipeline([1.0], 1, topology)


def test_names_of_interchangeable_devices_make_no_move() -> None:
    problem = pipeline([1.0] * 6, 1, cluster([0, 0, 0], [100.0, 100.0, 50.0]))
    moves = Moves(problem, default_rng(0))
    device, allowed = np.array([0, 0, 1, 1, 2, 2]), np.ones((6, 3), dtype=np.bool_)
    drawn = {tuple(row) for _ in range(200) for row in moves.draw(device, allowed, 256)}
    assert (1, 1, 0, 0, 2, 2) not in drawn
    assert {(2, 2, 1, 1, 0, 0), (2, 2, 0, 0, 1, 1)} & drawn  # the third device is another one
    for row in drawn:
        if 0 in row and 1 in row and row.index(1) < row.index(0):
            assert tuple({0: 1, 1: 0, 2: 2}[d] for d in row) not in drawn
    assert len(drawn) > 20
    moves.forget()
    assert len(moves.draw(device, allowed, 256))


@examples(60)
@given(problem=problems(), seed=st.integers(0, 9))
def test_a_descent_never_rises_and_fits(problem: StepProblem, seed: int) -> None:
    grouped = GroupedProblem.of(problem, 5)
    if grouped.too_large:
        return
    moves = pricing(problem, 5, seed)
    start = grouped.allowed.argmax(axis=1)
    found = moves.descend(start, lambda: False)
    pricer = Pricer(grouped.problem)
    before, after = (pricer.price(grouped.fusion.expand_pieces(d)) for d in (start, found))
    assert after.excess <= before.excess * (1 + 1e-9)
    if not before.excess:
        assert after.seconds <= before.seconds
    assert grouped.allowed[np.arange(grouped.num_groups), found].all()


def test_no_single_move_pays_after_a_descent() -> None:
    problem = pipeline([1.0, 2.0, 1.0, 0.5, 1.5], 3, cluster([0, 0, 1]))
    moves = pricing(problem, 5)
    found = moves.descend(np.zeros(5, dtype=np.int64), lambda: False)
    best = moves.costs(found[None])[0]
    assert best < moves.costs(np.zeros((1, 5), dtype=np.int64))[0]
    for group, target in product(range(5), range(3)):
        moved = found.copy()
        moved[group] = target
        assert moves.costs(moved[None])[0] >= best * (1 - 1e-6)


@examples(60)
@given(data=st.data(), problem=problems(tight=False, unsupported=False))
def test_groups_are_fused_around_a_placement(data: st.DataObject, problem: StepProblem) -> None:
    graph = problem.graph
    device, tied = somewhere(data, graph.num_operators, problem), graph.colocation != NONE
    device[tied] = graph.colocation[tied] % problem.topology.num_devices
    incumbent, formulation = StepIncumbent(problem), OrderFormulation()
    refinement = Refinement(
        incumbent, levels=(2, 4), kick_groups=2, formulation=formulation, seed=0
    )
    grouped = refinement.around(device, 2)
    for group in range(grouped.num_groups):
        assert len(np.unique(device[grouped.fusion.group == group])) == 1
    assert grouped.state.sum() == graph.state_bytes.sum()
    found = refinement.descend(device, 60.0)
    pricer = Pricer(problem)
    assert pricer.price(found).seconds <= pricer.price(device).seconds
    assert refinement.incumbent.step_time <= pricer.price(found).seconds
