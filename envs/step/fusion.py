"""Choose groups of operators that are placed together, and contract the graph by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray, mean_able
from envs.bounds import Count, bounded
from envs.compilation import compiled
from envs.graphs.contraction import Fusion, contract, receivers, sum_rows
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.step.merging import linear_order, merge
from envs.step.problem import StepProblem

__all__ = ["Fusion", "fuse", "fuse_chains", "fused_problem"]


@bounded
def fuse(problem: StepProblem, max_groups: Count) -> Fusion:
    """Group the operators of `problem` into at most `max_groups` groups, numbered front to back.

    The forward pass of the first micro-batch is the template. Its atoms are the co-location groups
    (never split) and the free operators. Every other operator follows an atom: a backward operator
    its mirror, the k-th free operator of a micro-batch the k-th of micro-batch 0 with the same
    phase and replica (where the two sequences agree in kind), anything else its heaviest forward
    input or, without one, its heaviest input. Atoms are then merged as `merge` says.
    Deterministic.
    """
    graph = problem.graph
    atom = _atoms(graph)
    first = _first(atom)
    count = len(first)
    mean = mean_able(problem.op_seconds)
    size = sum_rows(np.stack([mean, graph.state_bytes], axis=1), atom, count)
    pairs, seconds = _traffic(problem, atom)
    group = merge(size, pairs, seconds, _arcs(graph, atom, count), first, max_groups)
    return contract(graph, group[atom], weight_gradients=problem.defers)


def fuse_chains(problem: StepProblem) -> Fusion:
    """Merge nothing but chains of the atoms of `fuse`: a sole reader with the sole source it reads.

    Groups are numbered front to back. Deterministic.
    """
    graph = problem.graph
    atom = _atoms(graph)
    first = _first(atom)
    count = len(first)
    arcs = _arcs(graph, atom, count)
    source, readers = np.arange(count), np.bincount(arcs[:, 0], minlength=count)
    sources = np.bincount(arcs[:, 1], minlength=count)
    source[arcs[:, 1]] = arcs[:, 0]
    group = np.full(count, NONE, dtype=np.int64)
    number = 0
    for node in linear_order(arcs, first):
        before = source[node]
        if readers[before] == sources[node] == 1 and group[before] != NONE:
            group[node] = group[before]
        else:
            group[node], number = number, number + 1
    return contract(graph, group[atom])


def fused_problem(problem: StepProblem, fusion: Fusion) -> StepProblem:
    """The problem of placing the pieces of `fusion`, with the durations of `problem`.

    A piece computes as long as its members one after another; a fused tensor travels as long as
    the original tensors one after another. A device that cannot run one member cannot run the
    piece. Capacities are unchanged.
    """
    graph = fusion.graph
    return replace(
        problem,
        graph=graph,
        op_seconds=sum_rows(problem.op_seconds, fusion.piece, graph.num_operators),
        transfer_seconds=sum_rows(problem.transfer_seconds, fusion.tensor, graph.num_tensors),
    )


def _atoms(graph: OpGraph) -> IntArray:
    """(N,) atom of every operator, numbered as they are found."""
    template = _template(graph)  # always in the same phase
    forward = graph.phase == Phase.FORWARD
    models_first = np.argsort(np.where(forward, template != NONE, 2), kind="stable")
    atom: IntArray = _follow(
        models_first, graph.colocation, template, forward, graph.mirror, _heaviest_input(graph)
    )
    return atom


def _first(atom: IntArray) -> IntArray:
    """(A,) the first operator of every atom."""
    first = np.full(int(atom.max(initial=NONE)) + 1, len(atom), dtype=np.int64)
    np.minimum.at(first, atom, np.arange(len(atom)))
    return first


@compiled
def _follow(
    order: IntArray,
    colocation: IntArray,
    template: IntArray,
    forward: BoolArray,
    mirror: IntArray,
    heaviest: IntArray,
) -> IntArray:
    """(N,) atoms of operators looked at in `order`."""
    atom, of_colocation = np.full(len(order), NONE), np.full(len(order), NONE)
    count = 0
    for op in order:
        found = NONE
        if colocation[op] != NONE:
            found = of_colocation[colocation[op]]
        elif template[op] != NONE and atom[template[op]] != NONE:
            found = atom[template[op]]
        elif not forward[op] and mirror[op] != NONE and atom[mirror[op]] != NONE:
            found = atom[mirror[op]]
        elif not forward[op] and heaviest[op] != NONE:
            found = atom[heaviest[op]]
        if found == NONE:
            found, count = count, count + 1
        if colocation[op] != NONE:
            of_colocation[colocation[op]] = found
        atom[op] = found
    return atom


def _template(graph: OpGraph) -> IntArray:
    """(N,) the free operator of micro-batch 0 that each free operator repeats, or NONE."""
    template = np.full(graph.num_operators, NONE, dtype=np.int64)
    free = (graph.colocation == NONE) & (graph.phase != Phase.OPTIMIZER)
    for replica in np.unique(graph.replica):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            part = free & (graph.replica == replica) & (graph.phase == phase)
            model = np.flatnonzero(part & (graph.micro_batch == 0))
            for number in range(1, graph.num_micro_batches):
                copy = np.flatnonzero(part & (graph.micro_batch == number))
                if np.array_equal(graph.kind[copy], graph.kind[model]):
                    template[copy] = model
    return template


def _heaviest_input(graph: OpGraph) -> IntArray:
    """(N,) producer of each operator's largest forward input, or of its largest, or NONE."""
    edges = graph.edges
    from_forward = graph.phase[edges[:, 0]] == Phase.FORWARD
    order = np.lexsort((-edges[:, 0], graph.tensor_bytes[edges[:, 2]], from_forward))
    heaviest = np.full(graph.num_operators, NONE, dtype=np.int64)
    heaviest[edges[order, 1]] = edges[order, 0]
    return heaviest


def _arcs(graph: OpGraph, atom: IntArray, count: int) -> IntArray:
    """(E, 2) dependencies between atoms in the forward pass; atoms without a part in it: in any."""
    forward = graph.phase == Phase.FORWARD
    in_forward = np.zeros(count, np.bool_)
    in_forward[atom[forward]] = True
    edges = graph.edges
    u, v = edges[:, 0], edges[:, 1]
    source, target = atom[u], atom[v]
    kept = (forward[u] & forward[v]) | ~in_forward[source] | ~in_forward[target]
    kept &= source != target
    codes = np.unique(source[kept] * count + target[kept])
    return np.stack([codes // count, codes % count], axis=1)


def _traffic(problem: StepProblem, atom: IntArray) -> tuple[IntArray, FloatArray]:
    """(P, 2) atoms, the smaller first, and (P,) mean transfer seconds between them.

    Each tensor once per receiving atom.
    """
    graph = problem.graph
    seconds = mean_able(problem.transfer_seconds[:, 1:])
    sender = atom[graph.producer]
    ptr, receiver = receivers(sender, graph.consumer_ptr, graph.consumer, atom)
    tensor = np.repeat(np.arange(graph.num_tensors), np.diff(ptr))
    sender, count = sender[tensor], len(atom)
    code = np.minimum(sender, receiver) * count + np.maximum(sender, receiver)
    pairs, pair = np.unique(code, return_inverse=True)
    total = sum_rows(seconds[tensor], pair.reshape(-1), len(pairs))
    return np.stack([pairs // count, pairs % count], axis=1), total
