"""The peak memory of a schedule: always that of the timeline, after any change."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from random_steps import placed_problems

from envs.step.incremental import Schedule, schedule_of, settle_all
from envs.step.live_memory import peak_bytes, stored_of, streams_of
from envs.step.step import StepSimulator
from tests.strength import SEEDS, examples


@examples(100)
@given(placed=placed_problems(max_operators=40), seed=SEEDS)
def test_the_peak_of_a_schedule_is_that_of_its_timeline(placed, seed: int) -> None:
    problem, device, order = placed
    random = np.random.default_rng(seed)
    schedule, simulator = schedule_of(problem, device, order), StepSimulator(problem)
    stored, streams = stored_of(problem), streams_of(problem)
    peak = np.full(problem.topology.num_devices, np.nan)
    for _ in range(10):
        found = peaks(schedule, stored, streams, peak)
        timeline = simulator.run(schedule.chosen.device.astype(np.int64), order)
        np.testing.assert_array_equal(found, timeline.peak_memory)
        op = random.integers(len(device))
        schedule.chosen.device[op] = random.integers(problem.topology.num_devices)
        settle_all(*schedule)


def peaks(schedule: Schedule, stored, streams, peak: np.ndarray) -> np.ndarray:
    facts, chosen, times, _ = schedule
    peak_bytes(facts, chosen, times, stored, streams, peak)
    return peak
