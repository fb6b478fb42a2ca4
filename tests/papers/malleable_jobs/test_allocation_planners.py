"""Rules by hand; GADGET, SMD and randomised rounding: what is proved of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.random import default_rng

from agents.cluster.rule_numbers import NUMBERS_KIND
from experiments.papers.malleable_jobs.exact import ExactAllocation, configurations
from experiments.papers.malleable_jobs.gadget import (
    Choices,
    Gadget,
    GainWeights,
    Smd,
    drawn,
    gains,
    sum_of_ratios,
)
from experiments.papers.malleable_jobs.generated import SpeedName, UtilityName, random_problem
from experiments.papers.malleable_jobs.planners import (
    BASELINES,
    PLANNERS,
    Draws,
    RandomisedRounding,
)
from experiments.papers.malleable_jobs.problem import (
    AllocationProblem,
    LogUtility,
    MalleableJob,
    RingSpeed,
)
from experiments.papers.malleable_jobs.relaxation import relaxed
from experiments.papers.malleable_jobs.slots import AllocationSolver, Fifo, Sizes, Slot
from tests.refusal import refusal
from tests.strength import trials

SPEEDS = get_args(SpeedName)
ring = MalleableJob(
    "first", 0, 4, 1e9, 1, 6, 0, (1.0, 2.0, 0.0), (0.0, 0.0, 0.0), 1e9,
    RingSpeed(8, 1.0, 0.0), LogUtility(1.0),
)  # fmt: skip
wide = replace(ring, name="second", worker=(1.0, 8.0, 0.0))
by_hand = AllocationProblem((ring, wide), np.array([[6.0, 32.0, 0.0, 1e9]]), 1e10, 1, 1.0)


def problems(utility: UtilityName, count: int, **sizes: int) -> list[AllocationProblem]:
    return [
        random_problem(default_rng(seed), SPEEDS[seed % 3], utility, **sizes)
        for seed in range(count)
    ]


def solved(planner: AllocationSolver, problem: AllocationProblem) -> tuple[float, float, float]:
    """Value, bound and guarantee of a plan that is feasible."""
    found = planner.solve(problem)
    assert found.solution is not None
    assert problem.violations(found.solution) == []
    return found.value, found.bound, found.figures.get("guarantee", 0.0)


@pytest.mark.parametrize(
    ("rule", "workers"),
    [
        (BASELINES["fifo"](), [6, 0]),
        (Fifo(0.5), [3, 3]),
        (BASELINES["equal_share"](), [3, 3]),
        (BASELINES["drf"](), [4, 2]),  # a sixth of the GPUs each against a quarter of the cores
        (BASELINES["optimus"](), [3, 3]),
    ],
)
def test_one_slot_by_hand(rule: AllocationSolver, workers: list[int]) -> None:
    plan = rule.solve(by_hand).solution
    assert plan is not None
    assert plan.workers[0, :, 0].tolist() == workers


@pytest.mark.parametrize("utility", ["linear", "log"])
def test_weights_of_gains_by_hand(utility: UtilityName) -> None:
    problem, made = random_problem(default_rng(3), "ring", utility, slots=8), np.r_[0.2, 0.3, 0.5]
    j = int(np.argmax([len(window) for window in problem.windows]))
    slot = Slot(problem, problem.windows[j].start, np.full(len(problem.jobs), 0.5))
    own, left = gains(slot, j, made), len(problem.windows[j])
    assert (own > 0.0).any()
    weights = GainWeights(part=2.0, done=0.4, slack=0.6, wait=0.5, partial=-0.3)
    if utility == "log":
        factor = np.full(3, left**0.5 * np.exp(-0.3))
    else:
        slots = np.ceil(0.5 / made - 1e-9)
        factor = np.minimum(made / 0.5, 1.0) * np.exp(0.4 * 0.5 + 0.6 * (1.0 - slots / left))
    np.testing.assert_allclose(gains(slot, j, made, weights), own * factor)


def test_gadgets_own_weights_make_its_own_plan_and_others_have_no_guarantee(tmp_path: Path) -> None:
    (problem,), path = problems("log", 1), tmp_path / "gains.json"

    def weighted(numbers: object) -> Gadget:
        path.write_text(json.dumps({"kind": NUMBERS_KIND, "numbers": numbers}))
        return Gadget(weights=str(path))

    assert solved(weighted({"part": 1.0, "slack": 0.0}), problem) == solved(Gadget(), problem)
    assert solved(weighted({"slack": 1.0}), problem)[2] == 0.0
    for numbers, says in (
        ({"hurry": 1.0}, "unknown"), ({"part": "1"}, "no float"), ({"part": -1.0}, "part")
    ):  # fmt: skip
        with refusal(says):
            weighted(numbers)


def test_no_placement_is_faster_or_smaller_than_its_size() -> None:
    for problem in problems("log", 3, machines=3, most_workers=3):
        for j, job in enumerate(problem.jobs):
            sizes = Sizes.of(problem, job)
            for way in configurations(problem, j):
                no_slower = sizes.progress >= way.progress * (1.0 - 1e-12)
                no_larger = sizes.demand <= way.demand.sum(axis=0) * (1.0 + 1e-12)
                assert (no_slower & no_larger.all(axis=1)).any()


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


def test_knapsacks_bounds_and_sums_of_ratios_against_every_choice() -> None:
    optimal = fixed = 0
    slots = problems("log", trials(60, 6), jobs=4)
    for problem in slots:
        slot = Slot(problem, 1, np.zeros(len(problem.jobs)))
        sizes = {j: Sizes.of(problem, problem.jobs[j]) for j in slot.active}
        choices = Choices.of(slot, sizes)
        optimum = best_choice(choices)
        share, _, _ = choices.knapsack(choices.gain, exact=True)
        assert share @ choices.gain == pytest.approx(optimum)
        assert choices.knapsack(choices.gain)[2] >= optimum * (1.0 - 1e-9)
        share, ratios, converged = sum_of_ratios(choices, exact=True)
        assert ratios == pytest.approx(share @ choices.gain)
        assert np.all(share @ choices.demand <= 1.0 + 1e-9)
        assert ratios <= optimum * (1.0 + 1e-9)
        optimal, fixed = optimal + (ratios > optimum * (1.0 - 1e-9)), fixed + converged
        assert not converged or ratios >= optimum / choices.pace.max() ** 2  # which is rho
    assert optimal >= 0.8 * len(slots)
    assert fixed >= 0.5 * len(slots)


def test_draws_have_the_probabilities_of_their_shares() -> None:
    group, share = np.array([0, 0, 2, 3, 3]), np.array([0.2, 0.5, 1.0, 0.3, 0.3])
    rng, count = default_rng(0), np.zeros(5)
    for _ in range(1000):
        chosen = drawn(group, share, rng.random(3))
        assert len(np.unique(group[chosen])) == len(chosen)
        count[chosen] += 1
    assert count / 1000 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("utility", ["log", "sigmoid"])
def test_what_is_proved_holds_beside_the_optimum(utility: UtilityName) -> None:
    proved = [Gadget(), Smd(), Smd(exact=True), RandomisedRounding()]
    for problem in problems(utility, 3, jobs=3, slots=4):
        exact = ExactAllocation().solve(problem)
        assert exact.status == "optimal"
        for planner in [*proved, *(make() for make in BASELINES.values())]:
            value, bound, guarantee = solved(planner, problem)
            assert value <= exact.value * (1.0 + 1e-6)
            assert bound >= exact.value * (1.0 - 1e-6)
            assert value >= guarantee * exact.value * (1.0 - 1e-9)
            assert (guarantee > 0.0) == (utility == "log" and isinstance(planner, Gadget))


def test_nothing_runs_where_no_job_fits_a_machine() -> None:
    (whole,) = problems("mixed", 1)
    small = replace(whole, capacity=whole.capacity * 0.01)
    assert relaxed(small).bound == 0.0
    assert {solved(make(), small)[0] for make in PLANNERS.values()} == {0.0}


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
        ways = configurations(problem, 0)
        seed, feasible = seed + 1, feasible + bool(ways)
        if not ways:
            continue
        made = len(problem.windows[0]) * max(way.progress for way in ways)
        optimum = problem.jobs[0].utility.of(min(1.0, made))
        for planner in (Gadget(), Smd()):
            value, _, guarantee = solved(planner, problem)
            assert value >= max(guarantee, 0.5) * optimum > 0.0, seed


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
def test_violations_are_no_more_probable_than_chernoff_says(utility: UtilityName) -> None:
    problem = random_problem(default_rng(5), "parameter_server", utility, jobs=12)
    draws = Draws(problem, relaxed(problem))
    safe = draws.safe_scale()
    assert 0.0 < safe < 1.0
    assert draws.bounds(safe).packing.sum() == pytest.approx(0.5, abs=1e-3)
    for scale in (safe, 0.7):
        bounds, found = draws.bounds(scale), draws.measured(scale, 300, seed=0)
        for name in ("packing", "covering"):
            most, measured = getattr(bounds, name), getattr(found, name)
            assert np.all(measured <= most + 3.0 * np.sqrt(most / 300) + 0.01)
    assert found.packing.max() > 0.0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Gadget(draws=0), "draws"),
        (lambda: Smd(rounds=0), "rounds"),
        (lambda: RandomisedRounding(time_limit=0.0), "time_limit"),
        (lambda: ExactAllocation(most=10).solve(problems("log", 1, machines=6)[0]), "too many"),
    ],
)
def test_planners_out_of_bounds_are_refused(make: Callable[[], object], field: str) -> None:
    with refusal(field):
        make()
