"""The moves of the local search, and its walk, on random problems against the simulator."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given

from agents.placement.neighbourhood.levels import Level, levels_of
from agents.placement.neighbourhood.moves import (
    HIGH,
    LOW,
    clear,
    no_move,
    propose,
    reorder,
    undo,
)
from agents.placement.neighbourhood.walk import RuledWalker, Walker
from agents.step.random_numbers import draw
from envs.step.incremental import Schedule, schedule_of, settle, within
from envs.step.plans import Placement, Plan
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import problems
from tests.strength import SEEDS, examples

ROOMY = problems(max_operators=25, max_devices=4, tight=False, unsupported=False)


def start(problem: StepProblem) -> tuple[Level, Schedule]:
    level = levels_of(problem, (), 10**6)[-1]
    count = problem.graph.num_operators
    return level, schedule_of(problem, np.zeros(count, np.int64), np.arange(count))


def stands(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    chosen = schedule.chosen
    return chosen.device.astype(np.int64), chosen.order.astype(np.int64)


def violations(problem: StepProblem, device: np.ndarray, order: np.ndarray) -> list[str]:
    return Plan(Placement(device), order).violations(problem)


@examples(100)
@given(problem=ROOMY, seed=SEEDS)
def test_moves_keep_the_plan_feasible_are_judged_exactly_and_can_be_undone(
    problem: StepProblem, seed: int
) -> None:
    level, schedule = start(problem)
    simulator = StepSimulator(problem)
    move, random = no_move(problem.graph.num_operators), np.array([seed], dtype=np.uint64)
    now = simulator.step_time(*stands(schedule))
    for number in range(40):
        facts, chosen, times, _ = schedule
        old = [array.copy() for array in chosen]
        made = propose(facts, chosen, times, level.units, move, now, random)
        low, high = int(move.counter[LOW]), int(move.counter[HIGH])
        if not made:
            for array, was in zip(chosen, old, strict=True):
                np.testing.assert_array_equal(array, was)
            continue
        assert violations(problem, *stands(schedule)) == []
        then = simulator.step_time(*stands(schedule))
        for limit in (now, max(now, then), 1.05 * now):
            assert within(*schedule, low, high, limit) == (then <= limit * (1.0 + 1e-11))
        if number % 2:
            assert settle(*schedule, low, high) == then
            now = then
        else:
            undo(facts, chosen, level.units, move)
            for array, was in zip(chosen, old, strict=True):
                np.testing.assert_array_equal(array, was)


@examples(100)
@given(problem=ROOMY, seed=SEEDS)
def test_a_shift_takes_along_what_it_must_and_nothing_else(problem: StepProblem, seed: int) -> None:
    _, schedule = start(problem)
    facts, chosen = schedule.facts, schedule.chosen
    count = problem.graph.num_operators
    move, random = no_move(count), np.random.default_rng(seed)
    reach = np.eye(count, dtype=bool)  # reach[u, v]: there is a path from u to v
    for u in range(count - 1, -1, -1):
        for v in facts.uses[facts.use_ptr[u] : facts.use_ptr[u + 1], 0].tolist():
            reach[u] |= reach[v]
    for _ in range(20):
        clear(move, count)
        old = chosen.order.tolist()
        op, target = int(random.integers(count)), int(random.integers(count))
        here = int(chosen.position[op])
        made = reorder(facts, chosen, move, op, target)
        if target < here:
            part = old[target : here + 1]
            carried = [other for other in part if reach[other, op]]
            expected = old[:target] + carried + [o for o in part if o not in carried]
        else:
            part = old[here : target + 1]
            carried = [other for other in part if reach[op, other]]
            expected = old[:here] + [o for o in part if o not in carried] + carried
        expected += old[len(expected) :]
        assert made == (target != here and old[target] not in carried)
        assert chosen.order.tolist() == (expected if made else old)


def walkers(problem: StepProblem, kind: type[Walker], seed: int) -> list[Walker]:
    """One at the first device of every unit, where each may be somewhere."""
    level = levels_of(problem, (), 10**6)[-1]
    if not level.units.allowed.any(axis=1).all():
        return []
    first = level.units.allowed.argmax(axis=1)[level.units.of]
    return [kind(level, first, np.arange(len(first)), problem.capacity, 1.0, seed)]


@examples(60)
@given(problem=problems(max_operators=20, unsupported=False), seed=SEEDS)
def test_a_walk_remembers_the_best_plan_that_fits_and_its_step_time(
    problem: StepProblem, seed: int
) -> None:
    simulator = StepSimulator(problem)
    for walker, temperature in product(walkers(problem, Walker, seed), (1.0, 0.1, 0.01)):
        walker.run(temperature, 200)
        assert walker.seconds == simulator.step_time(*walker.plan)
        fits = not violations(problem, *walker.best)
        assert fits == (walker.best_overflow == 0.0) == np.isfinite(walker.best_seconds)
        if fits:
            assert walker.best_seconds == simulator.step_time(*walker.best)
            assert walker.best_seconds <= walker.seconds or violations(problem, *walker.plan)


@examples(30)
@given(problem=problems(max_operators=20, unsupported=False), seed=SEEDS)
def test_a_walk_under_a_rule_remembers_the_best_placement_and_its_price(
    problem: StepProblem, seed: int
) -> None:
    pricer, rules = Pricer(problem), set()
    for walker, temperature in product(walkers(problem, RuledWalker, seed), (1.0, 0.1, 0.01)):
        rules.add(walker.price.rule)
        walker.run(temperature, 100)
        found = [pricer.price(walker.best[0], (rule,)) for rule in rules]
        if np.isfinite(walker.best_seconds):
            assert walker.best_seconds in [price.seconds for price in found if price.excess == 0.0]
        else:
            assert all(price.excess > 0.0 for price in found)
        now = pricer.price(walker.plan[0], (walker.price.rule,))
        assert (walker.seconds, walker.overflow > 0.0) == (now.seconds, now.excess > 0.0)
        walker.start_from(*walker.plan)


def test_drawn_numbers_are_uniform_and_follow_the_published_generator() -> None:
    state = np.array([1234567], dtype=np.uint64)
    # the first outputs of SplitMix64 from this seed, as its authors' reference prints them
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    for value in published:
        assert draw(state) == (value >> 11) * 2.0**-53
    drawn = np.array([draw(state) for _ in range(20000)])
    assert ((drawn >= 0.0) & (drawn < 1.0)).all()
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(np.histogram(drawn, 10, (0.0, 1.0))[0] - 2000).max() < 200
