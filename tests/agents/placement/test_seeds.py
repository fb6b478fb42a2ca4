"""Orders that spare memory: whole waves of micro-batches, one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from agents.placement.neighbourhood.seeds import wave_order
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.strength import examples


@examples(60)
@given(problem=problems(tight=False, unsupported=False))
def test_waves_are_topological(problem: StepProblem) -> None:
    graph = problem.graph
    for size in (1, 2):
        order = wave_order(graph, np.arange(graph.num_operators), size)
        position = np.argsort(order)
        np.testing.assert_array_equal(np.sort(order), np.arange(graph.num_operators))
        assert (position[graph.edges[:, 0]] < position[graph.edges[:, 1]]).all()


def test_a_wave_ends_before_the_next_begins() -> None:
    problem = pipeline([1.0, 2.0], 4, cluster([0, 0], [100.0] * 2), [1, 1])
    graph = problem.graph
    order = np.arange(graph.num_operators)
    waves = graph.micro_batch[wave_order(graph, order, 2)]
    batches = waves[waves != NONE]
    half = len(batches) // 2
    assert set(batches[:half].tolist()) == {0, 1}
    assert set(batches[half:].tolist()) == {2, 3}
    assert (waves[-2:] == NONE).all()  # the optimizer
    alone = graph.micro_batch[wave_order(graph, order, 1)]
    assert alone[alone != NONE].tolist() == sorted(alone[alone != NONE].tolist())
