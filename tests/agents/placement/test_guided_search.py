"""Local search with a guide: chances of units, draws by them, and what they save."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given

from agents.placement.local_search import Guide, LocalSearch
from agents.placement.neighbourhood.levels import levels_of
from agents.placement.neighbourhood.moves import likely as drawn
from agents.solver import Budget
from agents.step.grouping import atoms
from agents.step.incumbent import StepIncumbent
from agents.step.random_numbers import draw
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.strength import SEEDS, examples


def search(seed: int) -> LocalSearch:
    return LocalSearch(groups=(4, 8), starts=(), seed=seed)


def improved(problem: StepProblem, limit: int, guide: Guide | None, seed: int = 0) -> StepIncumbent:
    incumbent = StepIncumbent(problem)
    search(seed).improve(incumbent, Budget(60.0, limit), guide)
    return incumbent


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(max_operators=20), seed=SEEDS)
def test_a_unit_has_the_mean_chances_of_its_operators_where_it_may_be(
    problem: StepProblem, seed: int
) -> None:
    random = np.random.default_rng(seed)
    devices = problem.topology.num_devices
    group = random.integers(0, 3, problem.graph.num_operators)
    chance = random.random((3, devices)) * (random.random((3, devices)) < 0.7)
    for level in levels_of(problem, (2, 4), 10**6):
        units = level.guided(group, chance, 0.5).units
        assert units.guided == 0.5
        for unit in range(len(units.state)):
            operators = np.flatnonzero(units.of[level.piece] == unit)
            mean = sum(chance[group[op]] for op in operators) / len(operators)
            mean = mean * units.allowed[unit]
            if mean.sum() == 0.0:
                mean = units.allowed[unit] * 1.0
            expected = np.cumsum(mean) / (mean.sum() or 1.0)
            np.testing.assert_allclose(units.likely[unit], expected, rtol=1e-12)


def test_devices_are_drawn_by_their_chances() -> None:
    problem = pipeline([1.0] * 4, 1, cluster([0, 0, 1]))
    group = atoms(problem)
    chance = np.random.default_rng(0).random((group.max() + 1, 3))
    chance[0] = 0.0, 1.0, 0.0
    level = levels_of(problem, (), 10**6)[0].guided(group, chance, 1.0)
    ours, theirs = np.array([7], dtype=np.uint64), np.array([7], dtype=np.uint64)
    for k in range(2000):
        unit = k % len(level.units.state)
        expected = int(np.searchsorted(level.units.likely[unit], draw(theirs), side="right"))
        assert drawn(level.units, unit, ours) == expected
        assert unit > 0 or expected == 1


@pytest.mark.slow
def test_a_guide_that_knows_the_way_saves_moves_and_a_blind_one_does_no_harm() -> None:
    topology = cluster([0, 0, 0, 1, 1, 1], 1000.0)
    problem = pipeline([1.0, 2.0, 1.5, 3.0, 0.5, 2.5, 1.0, 2.0], 6, topology, [3, 1, 2, 1, 3, 2])
    best = improved(problem, 60_000, None).plan
    group = atoms(problem)
    known = np.zeros((group.max() + 1, 6))
    known[group, best.placement.device] = 1.0
    blind = np.ones_like(known)
    times = {
        name: np.mean([improved(problem, 100, guide, seed).step_time for seed in range(4)])
        for name, guide in {
            "known": Guide((), group, known, 0.5),
            "blind": Guide((), group, blind, 0.5),
            "alone": None,
        }.items()
    }
    assert times["known"] < times["blind"]
    assert times["blind"] < 1.1 * times["alone"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_search_begins_with_the_first_plan_of_the_guide_that_fits(share: float) -> None:
    problem = pipeline(
        [1.0, 2.0, 1.5, 3.0], 4, cluster([0, 0, 1], [1000.0, 1000.0, 5.0]), [2, 2, 1]
    )
    group = atoms(problem)
    full = np.full(problem.graph.num_operators, 2)
    fits = np.minimum(group, 1)
    chance = np.ones((group.max() + 1, 3))
    found = improved(problem, 50, Guide((full, fits), group, chance, share))
    first = StepIncumbent(problem)
    first.offer(fits)
    assert found.trajectory[0][1] == first.step_time
    assert found.plan.violations(problem) == []
    assert found.step_time <= first.step_time
