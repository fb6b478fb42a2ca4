"""Where workers go on machines, against every way to put them there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from agents.cluster.allocation.placing import Slot, SlotBySlot, place, servers_for
from envs.cluster.allocation.generated import SpeedName, random_problem
from envs.cluster.allocation.problem import violations


class Greedy(SlotBySlot):
    """First come, as many as fit."""

    def fill(self, slot: Slot) -> None:
        for j in slot.active:
            any(slot.give(j, w) for w in range(slot.problem.jobs[j].most_workers, 0, -1))


@pytest.mark.parametrize("speed", ["ring", "parameter_server", "layered"])
def test_workers_fit_where_they_are_put(speed: SpeedName) -> None:
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), speed, machines=3, jobs=5)
        result = Greedy().give(problem)
        assert result.plan is not None
        assert violations(problem, result.plan) == []


def test_workers_alone_find_a_place_where_there_is_one_and_span_the_fewest() -> None:
    rng = np.random.default_rng(3)
    for seed in range(30):
        problem = random_problem(np.random.default_rng(seed), machines=3)
        left = np.floor(problem.capacity * rng.uniform(0.2, 1.0, problem.capacity.shape))
        for job in problem.jobs:
            workers = int(rng.integers(1, job.most_workers + 1))
            ways = [np.array(way) for way in product(range(workers + 1), repeat=3)
                    if sum(way) == workers]  # fmt: skip
            none = np.zeros(3, np.int64)
            spans = [np.count_nonzero(way) for way in ways if np.all(job.demand(way, none) <= left)]
            found = place(job, workers, servers_for(job, workers), left)
            assert (found is None) == (not spans)
            if found is not None:
                assert np.count_nonzero(found[0]) == min(spans)
