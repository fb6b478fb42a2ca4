"""The incremental schedule: always what the simulator would say, and right about changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from random_steps import placed_problems

from envs.step.incremental import Schedule, schedule_of, settle, settle_all, sort_row, within
from envs.step.step import StepSimulator
from tests.strength import SEEDS, examples

SLACK = 1e-11  # relative: tails are summed in another order than times


def step_time(simulator: StepSimulator, schedule: Schedule) -> float:
    chosen = schedule.chosen
    return simulator.step_time(chosen.device.astype(np.int64), chosen.order.astype(np.int64))


def put(schedule: Schedule, op: int, device: int) -> tuple[int, int]:
    """Put `op` elsewhere; the first and the last position with a trace of it."""
    facts, chosen = schedule.facts, schedule.chosen
    chosen.device[op] = device
    inputs = facts.inputs[facts.input_ptr[op] : facts.input_ptr[op + 1]]
    here = int(chosen.position[op])
    return min([here, *chosen.position[inputs].tolist()]), here


def swap(schedule: Schedule, at: int) -> tuple[int, int] | None:
    """Exchange the operators at positions `at` and `at` + 1, where the graph lets them."""
    facts, chosen = schedule.facts, schedule.chosen
    a, b = int(chosen.order[at]), int(chosen.order[at + 1])
    if b in facts.uses[facts.use_ptr[a] : facts.use_ptr[a + 1], 0].tolist():
        return None
    chosen.order[at], chosen.order[at + 1] = b, a
    chosen.position[a], chosen.position[b] = at + 1, at
    low = at
    for op in (a, b):
        for producer in facts.inputs[facts.input_ptr[op] : facts.input_ptr[op + 1]].tolist():
            if sort_row(facts, chosen, producer):
                low = min(low, int(chosen.position[producer]))
    return low, at + 1


@examples(150)
@given(placed=placed_problems(max_operators=40), seed=SEEDS)
def test_times_are_the_simulators_and_changes_are_judged_rightly(placed, seed: int) -> None:
    problem, device, order = placed
    random = np.random.default_rng(seed)
    simulator = StepSimulator(problem)
    schedule = schedule_of(problem, device, order)
    now = settle_all(*schedule)
    assert now == simulator.step_time(device, order)
    for _ in range(25):
        before = [array.copy() for array in schedule.chosen]
        if len(order) > 1 and random.random() < 0.5:
            change = swap(schedule, int(random.integers(len(order) - 1)))
        else:
            op, to = random.integers(len(order)), random.integers(problem.topology.num_devices)
            change = put(schedule, int(op), int(to))
        if change is None:
            continue
        then = step_time(simulator, schedule)
        for limit in (now, max(now, then), max(now, then * (1.0 - 1e-6)), 1.1 * now):
            assert within(*schedule, *change, limit) == (then <= limit * (1.0 + SLACK))
        if random.random() < 0.5:
            assert settle(*schedule, *change) == then
            now = then
        else:
            for array, old in zip(schedule.chosen, before, strict=True):
                array[:] = old
    assert settle_all(*schedule) == now


@examples(100)
@given(placed=placed_problems(max_operators=20))
def test_starts_arrivals_and_tails_are_those_of_the_timeline(placed) -> None:
    problem, device, order = placed
    schedule = schedule_of(problem, device, order)
    timeline = StepSimulator(problem).run(device, order)
    times = schedule.times
    np.testing.assert_array_equal(times.start, timeline.op_start)
    longest = float((times.start + times.tail).max())
    assert longest == pytest.approx(timeline.step_time, rel=SLACK)
    seconds = problem.op_seconds[np.arange(len(device)), device]
    assert (times.tail >= seconds).all()
    assert int(schedule.times.leads.sum()) == len(timeline.transfer_tensor)


@examples(60)
@given(placed=placed_problems(max_operators=20), seed=SEEDS)
def test_delaying_an_operator_within_its_slack_delays_nothing(placed, seed: int) -> None:
    """A tail is the longest chain of waits: a delay of the slack is free, a longer one is not."""
    problem, device, order = placed
    schedule = schedule_of(problem, device, order)
    op = int(np.random.default_rng(seed).integers(len(order)))
    whole = StepSimulator(problem).step_time(device, order)
    slack = whole - float(schedule.times.start[op] + schedule.times.tail[op])
    for extra, expected in ((slack, whole), (slack + 1.0, whole + 1.0)):
        longer = problem.op_seconds.copy()
        longer[op] += extra
        delayed = StepSimulator(type(problem)(
            problem.graph, problem.topology, longer, problem.transfer_seconds, problem.capacity
        ))  # fmt: skip
        assert delayed.step_time(device, order) == pytest.approx(expected, rel=1e-9)
