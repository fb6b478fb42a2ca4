"""Slots filled one after another."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.papers.malleable_jobs.generated import SpeedName, random_problem
from experiments.papers.malleable_jobs.sizes import Slot, SlotBySlot


class Greedy(SlotBySlot):
    """First come, as many as fit."""

    def fill(self, slot: Slot) -> None:
        for j in slot.active:
            any(slot.give(j, w) for w in range(slot.problem.jobs[j].most_workers, 0, -1))


@pytest.mark.parametrize("speed", ["ring", "parameter_server", "layered"])
def test_workers_fit_where_they_are_put(speed: SpeedName) -> None:
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), speed, machines=3, jobs=5)
        result = Greedy().solve(problem)
        assert result.solution is not None
        assert problem.violations(result.solution) == []
