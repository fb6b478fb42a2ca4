"""Why a simulated step takes as long as it does: its critical path, by group."""

from __future__ import annotations

import numpy as np

from agents.placement.grouping import FloatArray, GroupedProblem, IntArray
from envs.step.step import StepSimulator


def critical_seconds(
    simulator: StepSimulator, grouped: GroupedProblem, group_device: IntArray
) -> FloatArray:
    """(G,) seconds of the critical path that each group is responsible for.

    `simulator` plays the pieces. The path is followed backwards from the operator that ends last:
    an operator starts when an input arrives or when its device becomes free. A group answers for
    the compute of its pieces on the path and for the transfers (waiting for ports included) that
    they receive along it. The seconds add up to the step time.
    """
    graph, group = grouped.problem.graph, grouped.fusion.piece_group
    device = grouped.fusion.expand_pieces(group_device)
    order = simulator.order(device)
    timeline = simulator.run(device, order)
    before = np.full(graph.num_operators, -1, dtype=np.int64)  # on the same device
    for d in np.unique(device):
        mine = order[device[order] == d]
        before[mine[1:]] = mine[:-1]
    inputs: list[list[int]] = [[] for _ in range(graph.num_operators)]
    for _, consumer, tensor in graph.edges.tolist():
        inputs[consumer].append(tensor)
    received = zip(
        timeline.transfer_tensor.tolist(), timeline.transfer_destination.tolist(), strict=True
    )
    arrival = dict(zip(received, timeline.transfer_finish.tolist(), strict=True))
    start, finish = timeline.op_start, timeline.op_finish
    seconds = np.zeros(grouped.num_groups)
    op = int(finish.argmax()) if len(finish) else -1
    while op >= 0:
        seconds[group[op]] += finish[op] - start[op]
        cause = int(before[op])
        for tensor in inputs[op]:
            producer = int(graph.producer[tensor])
            at = arrival.get((tensor, int(device[op])), finish[producer])
            if at == start[op] > 0.0:
                seconds[group[op]] += at - finish[producer]
                cause = producer
                break
        op = cause if start[op] > 0.0 else -1
    return seconds
