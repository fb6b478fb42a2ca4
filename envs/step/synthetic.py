"""Random problems of one step from a seeded generator."""

from __future__ import annotations

import numpy as np

from envs.cost.transfer import link_transfer_seconds
from envs.graphs.synthetic import GENERATORS, log_uniform, random_topology, synthetic_training_graph
from envs.step.problem import StepProblem

Rng = np.random.Generator


def random_problem(rng: Rng, operators: int, devices: int) -> StepProblem:
    """A random graph on random devices, with random durations and enough memory everywhere.

    The graph is a chain, layered or series-parallel one of `operators` operators, or (one time in
    four, and with about as many) a training step. Durations are log-uniform per operator, scaled
    by the device; one in ten is 0; a transfer takes latency + bytes / bandwidth.
    """
    choice = int(rng.integers(len(GENERATORS) + 1))
    if choice < len(GENERATORS) or operators < 6:
        graph = GENERATORS[choice % len(GENERATORS)](rng, operators)
    else:
        graph = synthetic_training_graph(rng, max(1, operators // 10), 2, 2)
    topology = random_topology(rng, devices)
    seconds = log_uniform(rng, 1e-4, 1e-2, graph.num_operators)
    seconds[rng.random(graph.num_operators) < 0.1] = 0.0
    speed = log_uniform(rng, 0.5, 2.0, devices)
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=seconds[:, None] / speed[None, :],
        transfer_seconds=link_transfer_seconds(graph, topology),
        capacity=topology.memory_bytes,
    )
