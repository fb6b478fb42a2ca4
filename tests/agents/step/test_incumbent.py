"""What is offered to an incumbent is a device for every operator."""

from __future__ import annotations

import numpy as np
import pytest

from agents.step.incumbent import StepIncumbent
from tests.agents.placement.random_problems import cluster, pipeline
from tests.refusal import refusal


@pytest.mark.parametrize("wrong", [[0, 1], [0] * 99, [[0] * 12], [0] * 11 + [2], [-1] + [0] * 11])
def test_what_is_no_placement_is_refused(wrong: list[int]) -> None:
    problem = pipeline([1.0] * 4, 1, cluster([0, 0]))
    assert problem.op_seconds.shape == (12, 2)
    incumbent = StepIncumbent(problem)
    with refusal("0 to 1, for each of 12 operators"):
        incumbent.offer(np.array(wrong))
    incumbent.offer(np.zeros(12, np.int64))
    assert incumbent.plan is not None
