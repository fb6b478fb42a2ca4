"""Upward ranks: how far every piece is from the end of the step, on average."""

from __future__ import annotations

import numba
import numpy as np

from agents.placement.list_scheduling.schedule import FloatArray, IntArray
from envs.step.problem import StepProblem


def mean_compute(problem: StepProblem) -> FloatArray:
    """(N,) mean compute seconds over the devices that can run the operator."""
    able = np.isfinite(problem.op_seconds)
    total = np.where(able, problem.op_seconds, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(able.sum(axis=1), 1))


def mean_transfer(problem: StepProblem) -> FloatArray:
    """(T,) mean transfer seconds over all ordered pairs of devices that can send it."""
    classes = problem.topology.link_class
    apart = classes[~np.eye(len(classes), dtype=np.bool_)]
    if not len(apart):
        return np.zeros(problem.graph.num_tensors)
    used, pairs = np.unique(apart, return_counts=True)
    seconds = problem.transfer_seconds[:, used]
    able = np.isfinite(seconds)
    total = (np.where(able, seconds, 0.0) * pairs).sum(axis=1)
    return np.asarray(total / np.maximum((able * pairs).sum(axis=1), 1))


def upward_rank(problem: StepProblem) -> FloatArray:
    """(N,) seconds: the longest path from the start of each operator to the end of the step.

    Computing and transfers count with their means (Topcuoglu et al. 2002, equation 8).
    """
    graph = problem.graph
    rank = mean_compute(problem)
    add_behind(graph.use_ptr, graph.use_op, mean_transfer(problem)[graph.uses[:, 1]], rank)
    return rank


@numba.njit(cache=True, nogil=True)
def add_behind(
    use_ptr: IntArray,  # (N + 1,)
    use_op: IntArray,  # (C,)
    moved: FloatArray,  # (C,) seconds
    rank: FloatArray,  # (N,) in: own seconds; out: upward rank
) -> None:
    """`upward_rank` as a kernel."""
    for u in range(len(rank) - 1, -1, -1):
        behind = 0.0
        for k in range(use_ptr[u], use_ptr[u + 1]):
            behind = max(behind, moved[k] + rank[use_op[k]])
        rank[u] += behind
