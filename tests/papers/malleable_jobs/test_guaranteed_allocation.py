"""GADGET, SMD and randomised rounding: sizes, slot programs and what is proved of them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from numpy.random import default_rng

from experiments.papers.malleable_jobs.exact import ExactAllocation, configurations
from experiments.papers.malleable_jobs.gadget import Choices, Gadget, drawn
from experiments.papers.malleable_jobs.generated import SpeedName, random_problem
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.relaxation import relaxed
from experiments.papers.malleable_jobs.rounding import Draws, RandomisedRounding
from experiments.papers.malleable_jobs.sizes import AllocationSolver, Sizes, Slot
from experiments.papers.malleable_jobs.smd import Smd, sum_of_ratios
from tests.refusal import refusal
from tests.strength import trials

SPEEDS = get_args(SpeedName)


def problems(utility: str, count: int, **sizes: int) -> list[AllocationProblem]:
    return [
        random_problem(default_rng(seed), SPEEDS[seed % 3], utility, **sizes)  # type: ignore[arg-type]
        for seed in range(count)
    ]


def choices_of(problem: AllocationProblem, now: int) -> Choices:
    slot = Slot(problem, now, np.zeros(len(problem.jobs)))
    return Choices.of(slot, {j: Sizes.of(problem, problem.jobs[j]) for j in slot.active})


def best_choice(choices: Choices) -> float:
    """The most that whole sizes gain on all machines together, by looking at all of them."""
    states = [(np.zeros(choices.demand.shape[1]), 0.0)]
    for j in np.unique(choices.job):
        states += [
            (taken + choices.demand[k], worth + choices.gain[k])
            for taken, worth in states
            for k in np.flatnonzero(choices.job == j)
            if (taken + choices.demand[k] <= 1.0 + 1e-9).all()
        ]
    return max(worth for _, worth in states)


def test_no_placement_is_faster_or_smaller_than_its_size() -> None:
    for problem in problems("log", 3, machines=3, most_workers=3):
        for j, job in enumerate(problem.jobs):
            sizes = Sizes.of(problem, job)
            for way in configurations(problem, j):
                no_worse = (sizes.progress >= way.progress * (1.0 - 1e-12)) & np.all(
                    sizes.demand <= way.demand.sum(axis=0) * (1.0 + 1e-12), axis=1
                )
                assert no_worse.any()


def test_knapsacks_bounds_and_sums_of_ratios_against_every_choice() -> None:
    optimal = fixed = 0
    slots = problems("log", trials(60, 6), jobs=4)
    for problem in slots:
        choices = choices_of(problem, 1)
        optimum = best_choice(choices)
        share, _, _ = choices.knapsack(choices.gain, exact=True)
        assert share @ choices.gain == pytest.approx(optimum)
        assert choices.knapsack(choices.gain)[2] >= optimum * (1.0 - 1e-9)
        share, ratios, converged = sum_of_ratios(choices, exact=True)
        assert ratios == pytest.approx(share @ choices.gain)
        assert np.all(share @ choices.demand <= 1.0 + 1e-9)
        assert ratios <= optimum * (1.0 + 1e-9)
        optimal, fixed = optimal + (ratios > optimum * (1.0 - 1e-9)), fixed + converged
        if converged:
            rho = choices.pace.max() ** 2
            assert ratios >= optimum / rho
    assert optimal >= 0.8 * len(slots)
    assert fixed >= 0.5 * len(slots)


def test_draws_have_the_probabilities_of_their_shares() -> None:
    group, share = np.array([0, 0, 2, 3, 3]), np.array([0.2, 0.5, 1.0, 0.3, 0.3])
    rng = default_rng(0)
    count = np.zeros(5)
    for _ in range(1000):
        chosen = drawn(group, share, rng.random(3))
        assert len(np.unique(group[chosen])) == len(chosen)
        count[chosen] += 1
    assert count / 1000 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("utility", ["log", "sigmoid"])
def test_what_is_proved_holds_beside_the_optimum(utility: str) -> None:
    for problem in problems(utility, 3, jobs=3, slots=4):
        exact = ExactAllocation().solve(problem)
        assert exact.status == "optimal"
        for planner in (Gadget(), Smd(), Smd(exact=True), RandomisedRounding()):
            found = planner.solve(problem)
            assert found.solution is not None
            assert problem.violations(found.solution) == []
            assert found.value <= exact.value * (1.0 + 1e-6)
            assert found.bound >= exact.value * (1.0 - 1e-6)
            guarantee = found.figures.get("guarantee", 0.0)
            assert found.value >= guarantee * exact.value * (1.0 - 1e-9)
            assert (guarantee > 0.0) == (utility == "log" and isinstance(planner, Gadget))


@pytest.mark.slow
def test_lone_jobs_are_given_what_is_proved_wherever_a_split_fits() -> None:
    """A job's best configuration in every slot is the optimum."""
    feasible = seed = 0
    while feasible < 400:
        rng = default_rng(seed)
        sizes = {"gpus": int(rng.integers(1, 4)), "most_workers": int(rng.integers(1, 5))}
        whole = random_problem(rng, SPEEDS[seed % 3], "log", 1, int(rng.integers(1, 4)), 3, **sizes)
        left = whole.capacity * rng.uniform(0.2, 1.0, whole.capacity.shape)
        problem = replace(whole, capacity=np.maximum(left, np.array([1.0, 0.0, 0.0, 0.0])))
        job, ways = problem.jobs[0], configurations(problem, 0)
        seed, feasible = seed + 1, feasible + bool(ways)
        if not ways:
            continue
        made = len(problem.windows[0]) * max(way.progress for way in ways)
        optimum = job.utility.of(min(1.0, made))
        for planner in (Gadget(), Smd()):
            found = planner.solve(problem)
            assert found.solution is not None
            assert problem.violations(found.solution) == []
            assert found.solution.workers.any(), seed
            assert found.value >= found.figures["guarantee"] * optimum
            assert found.value >= 0.5 * optimum


@pytest.mark.parametrize("planner", [Gadget(), Smd()])
def test_slots_know_nothing_of_later_jobs(planner: AllocationSolver) -> None:
    problem = random_problem(default_rng(3), "layered", "mixed", jobs=8, slots=8)
    whole = planner.solve(problem).solution
    for now in range(1, 4):
        jobs = [j for j, job in enumerate(problem.jobs) if job.arrival < now]
        known = planner.solve(replace(problem, jobs=tuple(problem.jobs[j] for j in jobs))).solution
        assert whole is not None
        assert known is not None
        assert np.array_equal(whole.workers[:now, jobs], known.workers[:now])


@pytest.mark.parametrize("utility", ["log", "sigmoid"])
def test_violations_are_no_more_probable_than_chernoff_says(utility: str) -> None:
    problem = random_problem(default_rng(5), "parameter_server", utility, jobs=12)  # type: ignore[arg-type]
    draws = Draws(problem, relaxed(problem))
    safe = draws.safe_scale(0.5)
    assert 0.0 < safe < 1.0
    assert draws.bounds(safe, 0.5).packing.sum() == pytest.approx(0.5, abs=1e-3)
    for scale in (safe, 0.7):
        bounds, found = draws.bounds(scale, 0.5), draws.measured(scale, 0.5, 300, seed=0)
        for most, measured in (
            (bounds.packing, found.packing), (bounds.covering, found.covering)
        ):  # fmt: skip
            assert np.all(measured <= most + 3.0 * np.sqrt(most / 300) + 0.01)
    assert found.packing.max() > 0.0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Gadget(draws=0), "draws"),
        (lambda: Smd(rounds=0), "rounds"),
        (lambda: RandomisedRounding(chance=1.5), "chance"),
        (lambda: RandomisedRounding(time_limit=0.0), "time_limit"),
    ],
)
def test_planners_out_of_bounds_are_refused(make: object, field: str) -> None:
    with refusal(field):
        make()  # type: ignore[operator]
