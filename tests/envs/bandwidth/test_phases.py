"""Orders are cut where the rules say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.bandwidth.generator import FixedCut
from envs.bandwidth.types import PassBoundaries
from envs.graphs.op_graph import Phase
from envs.placement.generator import toy_pipeline
from envs.step.order import OneFOneB
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem


@pytest.fixture
def pipeline() -> tuple[StepProblem, Plan]:
    """Six layers over three devices, three micro-batches, 1F1B."""
    problem = toy_pipeline()
    device = np.repeat([0, 1, 2], 2)[problem.graph.colocation].astype(np.int64)
    return problem, Plan(Placement(device), OneFOneB()(problem.graph, device))


def test_a_pipeline_is_cut_into_filling_steady_state_draining_and_update(
    pipeline: tuple[StepProblem, Plan],
) -> None:
    problem, plan = pipeline
    begins = PassBoundaries()(problem, plan)
    passes = problem.graph.phase[plan.order]
    assert len(begins) == PassBoundaries().most == 4
    filling, steady, draining, update = np.split(passes, begins[1:])
    assert (filling == Phase.FORWARD).all()
    assert steady[0] == Phase.BACKWARD
    assert steady[-1] == Phase.FORWARD
    assert (draining == Phase.BACKWARD).all()
    assert update[0] == Phase.OPTIMIZER
    assert (update != Phase.FORWARD).all()


def test_passes_that_a_step_lacks_are_left_out(pipeline: tuple[StepProblem, Plan]) -> None:
    problem, plan = pipeline
    forward = np.full_like(problem.graph.phase, Phase.FORWARD)
    inference = replace(problem, graph=replace(problem.graph, phase=forward))
    assert PassBoundaries()(inference, plan).tolist() == [0]
    assert FixedCut((0,))(problem, plan).tolist() == [0]
