"""The 1F1B order rule on pipelines whose schedule is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from random_steps import topology_of

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.step.order import OneFOneB, TopologicalOrder
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

FORWARD_S, BACKWARD_S = 1.0, 2.0


def pipeline(stages: int, micro_batches: int) -> tuple[StepProblem, np.ndarray]:
    """One forward and one backward operator per stage and micro-batch, one stage per device."""
    builder = GraphBuilder("pipeline")
    device = []
    for m in range(micro_batches):
        chain = [
            builder.add_operator(f"f{m}.{s}", phase=Phase.FORWARD, micro_batch=m)
            for s in range(stages)
        ]
        chain += [
            builder.add_operator(f"b{m}.{s}", phase=Phase.BACKWARD, micro_batch=m)
            for s in reversed(range(stages))
        ]
        device += [*range(stages), *reversed(range(stages))]
        activations = []
        for s, (u, v) in enumerate(pairwise(chain)):
            activations.append(builder.add_tensor(u, 1.0 if s < stages else 0.0))
            builder.add_use(activations[-1], v)
        for s in range(stages):  # the forward's output is kept for its own backward
            kept = builder.add_tensor(chain[s], 1.0)
            builder.add_use(kept, chain[2 * stages - 1 - s])
    graph = builder.build()
    topology = topology_of([0] * stages, False)
    forward = graph.phase == Phase.FORWARD
    seconds = np.where(forward, FORWARD_S, BACKWARD_S)[:, None].repeat(stages, axis=1)
    problem = StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=seconds,
        transfer_seconds=np.zeros((graph.num_tensors, 3)),
        capacity=topology.memory_bytes,
    )
    return problem, np.array(device)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 4), (4, 4), (4, 9), (5, 2)])
def test_one_f_one_b_reaches_the_pipeline_bound(stages, micro_batches):
    problem, device = pipeline(stages, micro_batches)
    bubble = (stages - 1) * (FORWARD_S + BACKWARD_S)
    expected = micro_batches * (FORWARD_S + BACKWARD_S) + bubble
    assert StepSimulator(problem).step_time(device) == pytest.approx(expected)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 6), (4, 8)])
def test_a_stage_keeps_at_most_its_depth_of_micro_batches_in_flight(stages, micro_batches):
    problem, device = pipeline(stages, micro_batches)
    order = OneFOneB()(problem.graph, device)
    for stage in range(stages):
        in_flight = most = 0
        for op in order[device[order] == stage]:
            in_flight += 1 if problem.graph.phase[op] == Phase.FORWARD else -1
            most = max(most, in_flight)
        assert most == stages - stage


def test_the_topological_order_runs_micro_batches_one_after_the_other():
    problem, device = pipeline(3, 4)
    serial = StepSimulator(problem, order_rule=TopologicalOrder()).step_time(device)
    assert serial == pytest.approx(4 * 3 * (FORWARD_S + BACKWARD_S))
