"""The program of stages against brute force, and the planner against all plans of tiny problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given

from agents.hybrid.fusion import FusedStages
from agents.hybrid.machines import PREDICTED
from agents.hybrid.stage_program import Column, StageProgram, fused
from agents.pipeline.published import gpipe, one_f_one_b
from agents.solver import Budget
from envs.hybrid.plan import HybridPlan, Stage, ordered
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import simulate
from tests.agents.hybrid.planning import divisions, stages_by
from tests.envs.hybrid.rows_of_layers import random_row, row, servers
from tests.strength import SEEDS


def planner(**given: object) -> FusedStages:
    arguments = {"groups": 12, "starts": None, "gap": 0.0, "seed": 0, **given}
    return FusedStages(**arguments)  # type: ignore[arg-type]


def covers(columns: list[Column], groups: int, begin: int = 0) -> Iterator[list[Column]]:
    """All rows of stages over the groups from `begin` on."""
    if begin == groups:
        yield []
    for column in columns:
        if column.stage.first == begin:
            for rest in covers(columns, groups, column.stage.end):
                yield [column, *rest]


@given(SEEDS)
def test_the_program_finds_the_best_row_of_stages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_row(rng, servers([2, 2], 4, 1), 4, int(rng.integers(1, 5)))
    problem = replace(problem, capacity=np.full(4, float(rng.integers(30, 90))))
    program, m = StageProgram(problem, range(5)), problem.micro_batches
    for most in (1, 2, 4):
        columns = program.columns(min(most, m))
        values = [
            value(picked, m)
            for picked in covers(columns, 4)
            if len(picked) <= most and used(picked) <= 4
        ]
        stages = program.solve(most, 10.0, 0, 0.0)
        assert bool(stages) == bool(values)
        if values:
            assert value(stages, m) == pytest.approx(min(values), rel=1e-6)
            assert stages in list(covers(columns, 4))
            assert len(stages) <= most
            assert used(stages) <= 4


def used(picked: list[Column]) -> int:
    return sum(len(column.stage.devices) for column in picked)


def value(picked: list[Column], m: int) -> float:
    """The objective of the program."""
    seconds = [c.seconds for c in picked]
    return sum(seconds) + (m - 1) * max(seconds) + max(c.closing for c in picked)


def all_plans(problem: HybridProblem) -> Iterator[HybridPlan]:
    """Every division of the layers on every division of some devices, in two orders."""
    devices = range(1, problem.num_devices + 1)
    for count, used in product(range(1, problem.num_layers + 1), devices):
        places = permutations(range(problem.num_devices), used)
        every = product(divisions(problem.num_layers, count), places, divisions(used, count))
        for spans, chosen, parts in every:
            stages = [Stage(*span, chosen[a:b]) for span, (a, b) in zip(spans, parts, strict=True)]
            for order in (gpipe, one_f_one_b):
                yield ordered(stages, problem.micro_batches, order)


@pytest.mark.parametrize("seed", range(2))
def test_the_planner_is_as_fast_as_the_best_of_all_plans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_row(rng, servers([2, 1], 8, 2), 3, 2)
    least = min(simulate(problem, plan).step_time for plan in all_plans(problem))
    found = planner().solve(problem, Budget(20.0, 120))
    assert found.solution is not None
    assert found.solution.violations(problem) == []
    assert found.figures[PREDICTED] == simulate(problem, found.solution).step_time
    assert found.figures[PREDICTED] <= least * (1 + 1e-9)


def test_uneven_devices_get_uneven_shares() -> None:
    """Three times as fast: three quarters of every micro-batch, and no idle second."""
    problem = row(servers([1, 1], 1e9, 1e9), [4], [4], [4], micro_batches=4, speed=[3, 1])
    found = planner().solve(problem, Budget(10.0, 100))
    assert found.solution is not None
    assert found.solution.stages[0].shares == (0.75, 0.25)
    assert found.figures[PREDICTED] == pytest.approx(12.0)
    assert found.status == "optimal"


def test_what_does_not_fit_is_computed_again() -> None:
    problem = row(servers([1], 1, 1), [1, 1], [1, 1], [1, 1], [1], (), [50, 50], 4)
    tight, none = (replace(problem, capacity=np.array([room])) for room in (110.0, 90.0))
    assert stages_by(planner(), tight)
    assert "fits the memory" in planner().solve(none, Budget(10.0, 100)).reason


def test_fusion_joins_the_quickest() -> None:
    problem = row(servers([1], 1, 1), [1, 9, 1, 1, 9], [0] * 5, [0] * 5)
    assert fused(problem, 3) == [0, 1, 2, 5] or fused(problem, 3) == [0, 2, 4, 5]
