"""Optima against every plan there is, and bounds that hold for each of them."""

from __future__ import annotations

from itertools import product
from typing import get_args

import numpy as np
import pytest
from numpy.random import default_rng
from scipy.optimize import linprog

from envs.arrays import FloatArray
from experiments.papers.malleable_jobs.exact import ExactAllocation, configurations
from experiments.papers.malleable_jobs.generated import SpeedName, UtilityName, random_problem
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.relaxation import levels_of, relaxed

SPEEDS = get_args(SpeedName)


def best_of_all(problem: AllocationProblem) -> float:
    """What the best plan is worth, by looking at all of them."""
    ways: list[list[tuple[FloatArray, float]]] = []
    for job in problem.jobs:
        own = [(np.zeros_like(problem.capacity), 0.0)]
        numbers = range(job.most_workers + 1), range(job.most_servers + 1)
        for count in product(*numbers, repeat=problem.machines):
            w, p = np.array(count).reshape(-1, 2).T
            if job.least_workers <= w.sum() <= job.most_workers and p.sum() <= job.most_servers:
                own.append((job.demand(w, p), problem.progress(job, w, p)))
        ways.append(own)
    slots = []
    for t in range(problem.slots):
        there = [w if t in at else w[:1] for w, at in zip(ways, problem.windows, strict=True)]
        slots.append(
            {
                tuple(made for _, made in way)
                for way in product(*there)
                if np.all(sum(taken for taken, _ in way) <= problem.capacity * (1.0 + 1e-9))
            }
        )
    best = 0.0
    for way in product(*slots):
        done = np.minimum(np.cumsum(np.array(way), axis=0), 1.0)
        best = max(best, sum(job.worth(done[:, j]) for j, job in enumerate(problem.jobs)))
    return best


@pytest.mark.parametrize(
    ("speed", "utility", "seed"),
    [("ring", "sigmoid", 0), ("ring", "log", 1), ("parameter_server", "linear", 2),
     ("layered", "mixed", 3)],
)  # fmt: skip
def test_the_integer_program_finds_the_best_of_all_plans(
    speed: SpeedName, utility: UtilityName, seed: int
) -> None:
    rng = default_rng(seed)
    problem = random_problem(rng, speed, utility, 2, 2, 3, gpus=2, most_workers=2)
    result = ExactAllocation().solve(problem)
    assert result.status == "optimal"
    assert result.solution is not None
    assert problem.violations(result.solution) == []
    assert result.value == pytest.approx(best_of_all(problem), rel=2e-6)
    assert relaxed(problem).bound >= result.value


@pytest.mark.parametrize("speed", SPEEDS)
def test_levels_in_shares_are_as_good_as_any_configuration(speed: SpeedName) -> None:
    rng = default_rng(5)
    for seed in range(2):
        problem = random_problem(default_rng(seed), speed, jobs=2, machines=3)
        for j in range(len(problem.jobs)):
            levels, ways = levels_of(problem, j), configurations(problem, j)
            for _ in range(10):
                prices = rng.exponential(size=4) * rng.integers(0, 2, 4) / problem.capacity.sum(0)
                worth = rng.exponential() * 3.0 / ways[0].progress
                gains = [worth * way.progress - way.demand.sum(axis=0) @ prices for way in ways]
                best = max([0.0, *(worth * levels.progress - levels.demand @ prices)])
                assert best >= max(gains) - 1e-9


def test_the_relaxation_is_the_linear_program() -> None:
    problem = random_problem(default_rng(4), "ring", "linear", 8, 2, 6)
    found = relaxed(problem, gap=1e-7)
    levels = found.levels
    ends = [(j, t) for j, window in enumerate(problem.windows) for t in window]
    runs = [(e, t, c) for e, (j, end) in enumerate(ends) for t in problem.windows[j] if t <= end
            for c in range(len(levels[j]))]  # fmt: skip
    end, slot, _ = np.array(runs).T
    run = [(levels[ends[e][0]], c) for e, _, c in runs]
    progress, demand = (np.array([getattr(own, name)[c] for own, c in run])
                        for name in ("progress", "demand"))  # fmt: skip
    rows, right = [], []
    for e, (j, last) in enumerate(ends):  # one level in a slot, and all progress by the end
        one = -(np.arange(len(ends)) == e).astype(float)
        rows += [np.r_[one, (end == e) & (slot == t)] for t in problem.windows[j] if t <= last]
        rows.append(np.r_[-one, -progress * (end == e)])
    right += [0.0] * len(rows)
    rows += [np.r_[[own == j for own, _ in ends], np.zeros(len(run))] for j in range(8)]
    right += [1.0] * 8
    for t in range(problem.slots):
        rows += [np.r_[np.zeros(len(ends)), taken] for taken in demand.T * (slot == t)]
        right += list(problem.capacity.sum(axis=0))
    worth = [problem.jobs[j].utility.at(t - problem.jobs[j].arrival + 1) for j, t in ends]
    best = -linprog(-np.array(worth + [0.0] * len(run)), np.array(rows), right).fun
    assert found.value <= best * (1.0 + 1e-6)
    assert found.bound == pytest.approx(best, rel=1e-6)
    shares = np.zeros((8, 6))
    np.add.at(shares, (found.job, found.slot), found.share)
    assert shares.max() <= 1.0 + 1e-9
