"""What list schedulers know beforehand: upward ranks, and the favourite child of each piece."""

from __future__ import annotations

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray, IntArray, mean_able
from envs.compilation import compiled
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE, OpGraph
from envs.step.problem import StepProblem


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
    rank = mean_able(problem.op_seconds)
    add_behind(graph.use_ptr, graph.use_op, mean_transfer(problem)[graph.uses[:, 1]], rank)
    return rank


@compiled
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


_DEAREST_FIRST = 1e-3  # of the objective: favourites that do not shorten the step save transfers
_HALF = 0.5 - 1e-6  # an edge is favoured below; no two edges of one operator can be


def favourite_children(
    problem: StepProblem, time_limit: float, iteration_limit: int | None = None
) -> IntArray | None:
    """(N,) the favourite child of each operator, or NONE; None when a limit stopped the solver.

    On as many devices as one likes, an operator j starts after its input i has ended, and c[i, j]
    seconds later unless j is the favourite child of i, next to which it runs; an operator has at
    most one favourite child and is that of at most one other. With x[i, j] = 0 for favourites, 1
    else, p mean compute and c mean transfer seconds,

        minimise w subject to    s[j] >= s[i] + p[i] + c[i, j] x[i, j]    w >= s[i] + p[i]
        sum_j x[i, j] >= (children of i) - 1        sum_i x[i, j] >= (parents of j) - 1

    The relaxation 0 <= x <= 1 is solved by HiGHS, and favourites are the edges with x < 1/2
    (Hanen, Munier, "An approximation algorithm for scheduling dependent tasks on m processors with
    small communication delays", 1995). Where favourites do not shorten the step, those are chosen
    that save most transfer seconds. The program is solved for the first micro-batch and the
    optimizer; the other micro-batches repeat its favourites.

    Args:
        problem: the operators; in a fused graph its pieces.
        time_limit: seconds for the solver.
        iteration_limit: of the simplex method; None: only the time counts.
    """
    graph = problem.graph
    template = _template(graph)
    pairs, seconds = _arcs(problem)
    model = template[pairs] == pairs  # both ends in the first micro-batch or the optimizer
    chosen = model.all(axis=1)
    favoured = _solve(
        pairs[chosen], seconds[chosen], mean_able(problem.op_seconds),
        float(upward_rank(problem).max()), time_limit, iteration_limit,
    )  # fmt: skip
    if favoured is None:
        return None
    child = np.full(graph.num_operators, NONE, dtype=np.int64)
    child[favoured[:, 0]] = favoured[:, 1]
    copies = pairs[~model[:, 0] & ~model[:, 1]]
    repeats = child[template[copies[:, 0]]] == template[copies[:, 1]]
    same = graph.micro_batch[copies[:, 0]] == graph.micro_batch[copies[:, 1]]
    copies = copies[repeats & same]
    child[copies[:, 0]] = copies[:, 1]
    return child


def _arcs(problem: StepProblem) -> tuple[IntArray, FloatArray]:
    """(E, 2) operators with a tensor between them, and (E,) mean seconds of all their tensors."""
    edges = problem.graph.edges
    pairs, inverse = np.unique(edges[:, :2], axis=0, return_inverse=True)
    return pairs, sum_rows(mean_transfer(problem)[edges[:, 2]], inverse.ravel(), len(pairs))


def _template(graph: OpGraph) -> IntArray:
    """(N,) the operator of the first micro-batch that each operator repeats, itself, or NONE.

    The k-th operator of a group, phase and replica in a micro-batch repeats the k-th in the first.
    """
    n = graph.num_operators
    kinds = np.stack([graph.colocation, graph.phase, graph.replica, graph.micro_batch], axis=1)
    kind, counts = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)[1:]
    by_kind = np.argsort(kind.reshape(-1), kind="stable")
    kinds[by_kind, 3] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)  # k
    alike = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    first, models = np.flatnonzero(graph.micro_batch == 0), np.full(n, NONE, dtype=np.int64)
    models[alike[first]] = first
    return np.where(graph.micro_batch < 0, np.arange(n), models[alike])


def _solve(
    pairs: IntArray,  # (E, 2) operators
    moved: FloatArray,  # (E,) seconds
    compute: FloatArray,  # (N,) seconds
    scale: float,  # seconds, of the size of the step
    time_limit: float,
    iteration_limit: int | None,
) -> IntArray | None:
    """(F, 2) the favoured pairs, or None when a limit was reached."""
    total = float(moved.sum())
    if total <= 0.0:
        return pairs[:0]
    program = LinearProgram()
    nodes, inverse = np.unique(pairs, return_inverse=True)
    local: IntArray = inverse.reshape(pairs.shape)
    end = program.add_columns(1, cost=1.0)
    start = program.add_columns(len(nodes))
    apart = program.add_columns(len(pairs), upper=1.0)
    ways = [(start[local], np.array([[-1.0, 1.0]])), (apart, -moved / scale)]
    program.add_rows(len(pairs), ways, lower=compute[pairs[:, 0]] / scale)
    ends = [(np.repeat(end, len(nodes)), 1.0), (start, -1.0)]
    program.add_rows(len(nodes), ends, lower=compute[nodes] / scale)
    for side in (0, 1):
        for edges in _rows(local[:, side]):
            program.add_row([(apart[edges], 1.0)], lower=len(edges) - 1.0)
    solver = program.solver(time_limit=time_limit)
    for edge, seconds in enumerate(moved.tolist()):
        solver.changeColCost(int(apart[edge]), _DEAREST_FIRST * seconds / total)
    if iteration_limit is not None:
        solver.setOptionValue("simplex_iteration_limit", iteration_limit)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    value = np.array(solver.getSolution().col_value)[apart]
    return pairs[value < _HALF]


def _rows(of: IntArray) -> list[IntArray]:
    """Indices by value of `of`."""
    order = np.argsort(of, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(of[order])) + 1)
