"""Weights of transfers: never slower than fair sharing, promises kept, small cases tried out."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given

from agents.bandwidth.weights import USUAL, WeightDescent, weights_of
from agents.solver import Budget
from agents.step.lower_bound import lower_bound
from envs.graphs.builder import GraphBuilder
from envs.step.fair import FairSimulator
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from tests.agents.bandwidth.joint_steps import AMPLE_S, check_promises
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, plan_of, problem_of
from tests.strength import examples


@examples(20)
@given(step=placed_steps())
def test_weights_make_no_plan_slower(step: tuple[StepProblem, Plan]) -> None:
    problem, plan = step
    result = WeightDescent(patience=1).improve(
        problem, plan, Budget(AMPLE_S, 99), lower_bound(problem).seconds
    )
    fair = FairSimulator(problem, multipath=True).step_time(plan.placement.device, plan.order)
    if result.solution is None:  # its memory
        assert result.reason
        return
    check_promises(problem, result)
    assert result.value <= fair
    sent = np.zeros_like(weights_of(result.solution, problem))
    edges, device = problem.graph.edges, plan.placement.device
    sent[device[edges[:, 0]], device[edges[:, 1]]] = 1
    assert (weights_of(result.solution, problem)[sent == 0] == 1).all()


def hurried() -> tuple[StepProblem, Plan]:
    """One server sends to two others over one link; one of these has much to do."""
    builder = GraphBuilder("hurried")
    for op in range(3):
        builder.add_operator(f"op{op}")
    for op, size in ((1, 2.0), (2, 2.0)):
        builder.add_use(builder.add_tensor(0, size), op)
    problem = problem_of(builder, [0.5, 8.0, 0.5], cluster(3, 1, 1))
    return problem, plan_of(problem, {"op0": 0, "op1": 1, "op2": 2})


def test_who_has_more_to_do_gets_more_of_the_link() -> None:
    problem, plan = hurried()
    found = WeightDescent().improve(problem, plan, Budget(AMPLE_S))
    assert found.solution is not None
    weight = weights_of(found.solution, problem)
    assert weight[0, 1] > USUAL >= weight[0, 2] or weight[0, 1] >= USUAL > weight[0, 2]
    simulator = FairSimulator(problem, multipath=True)
    fair = simulator.step_time(plan.placement.device, plan.order)
    first = 0.5 + 2.0 + 8.0  # one link of 1 byte/s, all of it for the longer one
    assert first < found.value < fair == 0.5 + 4.0 + 8.0
    tried = []
    for a, b in product([1, 4, 16, 64, 256, 1024, 4096], repeat=2):
        simulator.weigh(np.array([[1, a, b], [1, 1, 1], [1, 1, 1]]))
        tried.append(simulator.step_time(plan.placement.device, plan.order))
    assert found.value <= min(tried) * (1 + 1e-3)


def test_a_wrong_placement_is_told() -> None:
    problem, wrong = hurried()
    wrong.placement.device[0] = 9
    found = WeightDescent().improve(problem, wrong, Budget(AMPLE_S))
    assert found.status == "infeasible"
    assert "is on device 9" in found.reason
