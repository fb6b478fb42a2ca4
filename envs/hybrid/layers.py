"""From a graph of operators on devices to layers in a row: a `HybridProblem`."""

from __future__ import annotations

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.hybrid.plan import Sharding
from envs.hybrid.problem import HybridProblem
from envs.hybrid.states import LayerGraph, layers_in_a_row
from envs.step.problem import StepProblem

LEAST_SHARE = 0.1
NEAR = 4.0  # mean layers


def hybrid_problem(
    step: StepProblem, layer: IntArray, micro_batches: int, sharding: Sharding
) -> HybridProblem:
    """The layers of a step: `layer` (N,) is that of every operator, NONE: left out.

    Layers are those of micro-batch 0, and every one of the step's `micro_batches` is like it. A
    parameter that several layers use counts in the layer of its owner. What the profile of a whole
    backward pass gives is not divided into gradients of inputs and of weights.
    """
    graph = step.graph
    count = int(layer.max()) + 1
    weight = graph.weight_gradient & (len(graph.profile_classes) == 0)

    def seconds(chosen: BoolArray) -> FloatArray:
        total = np.zeros((count, step.topology.num_devices))
        np.add.at(total, layer[chosen], step.op_seconds[chosen])
        return total

    one = layer != NONE
    forward, backward = (one & (graph.phase == p) for p in (Phase.FORWARD, Phase.BACKWARD))
    first = np.where(forward & (graph.micro_batch == 0), layer, NONE)
    kept = layer[graph.parameter_owner] != NONE
    owner = layer[graph.parameter_owner[kept]]
    held = graph.parameter_bytes + graph.gradient_bytes + graph.optimizer_bytes
    return HybridProblem(
        name=graph.name,
        layer_names=_names(graph, layer, count),
        topology=step.topology,
        forward=seconds(forward),
        input_gradient=seconds(backward & ~weight),
        weight_gradient=seconds(backward & weight),
        update=seconds(one & (graph.phase == Phase.OPTIMIZER)),
        cut_bytes=_passing(graph, first, count),
        gradient_bytes=_sums(owner, graph.gradient_bytes[kept], count),
        state_bytes=_sums(owner, held[kept], count),
        saved_bytes=_saved_bytes(graph, layer, count),
        micro_batches=micro_batches,
        capacity=step.capacity,
        sharding=sharding,
        profile=LayerGraph.of(graph) if graph.profile_classes else None,
    )


def profiled_layers(graph: OpGraph) -> IntArray:
    """(N,) the layer of every operator of a profile of layers, each a layer of its own.

    Branches stand one after the other (`layers_in_a_row`); inputs are in no layer.

    Raises:
        InputError: the graph is not one micro-batch of training.
    """
    layer = np.full(graph.num_operators, NONE)
    operators = layers_in_a_row(graph)
    layer[operators] = np.arange(len(operators))
    return _extended(graph, layer)


def layers_of(step: StepProblem, most: int) -> IntArray:
    """(N,) the layer of every operator, `most` or fewer; NONE for those of other micro-batches.

    A backward operator is in the layer of its forward operator, an update in that of its
    parameters. The forward operators of micro-batch 0 stand in topological order, with a cut
    between any two, but where fewer bytes pass a little before and a little after; then layers are
    joined, the quickest ones first, while there are more than `most`, or one takes less than
    `LEAST_SHARE` of a mean one's time.

    Raises:
        InputError: the graph has no forward pass.
    """
    graph = step.graph
    forward = np.flatnonzero((graph.phase == Phase.FORWARD) & (graph.micro_batch == 0))
    if not len(forward):
        raise InputError("has no forward pass", file=f"graph {graph.name}")
    position = np.full(graph.num_operators, NONE)
    position[forward] = np.arange(len(forward))
    width = _passing(graph, position, len(forward))
    work = sums_before(step.op_seconds[forward].min(axis=1))
    near = NEAR * work[-1] / most
    cuts = [c for c in range(1, len(forward)) if not _between_narrower(c, width, work, near)]
    while cuts:
        ends = np.array([0, *cuts, len(forward)])
        if len(cuts) < most and np.diff(work[ends]).min() >= LEAST_SHARE * work[-1] / (
            len(cuts) + 1
        ):
            break
        span = work[ends[2:]] - work[ends[:-2]]  # of the two layers beside each cut
        small = np.minimum(*(np.diff(work[ends])[k : k + len(cuts)] for k in (0, 1)))
        del cuts[int(np.lexsort((small, span) if len(cuts) >= most else (span, small))[0])]
    layer = np.full(graph.num_operators, NONE)
    layer[forward] = np.searchsorted(
        np.array(cuts, dtype=np.int64), np.arange(len(forward)), "right"
    )
    return _extended(graph, layer)


def _between_narrower(cut: int, width: FloatArray, work: FloatArray, near: float) -> bool:
    """Whether less passes a little before and a little after: within `near` seconds of work."""
    narrower = np.flatnonzero(width[1:-1] < width[cut]) + 1
    at = int(np.searchsorted(narrower, cut))
    return bool(0 < at < len(narrower) and work[narrower[at]] - work[narrower[at - 1]] <= near)


def _extended(graph: OpGraph, layer: IntArray) -> IntArray:
    """Backward operators of micro-batch 0 and updates join the layers of forward operators."""
    found = layer.copy()
    backward = np.flatnonzero((graph.phase == Phase.BACKWARD) & (graph.micro_batch == 0))
    mirror = graph.mirror[backward]
    found[backward] = np.where(mirror != NONE, layer[mirror], layer.max())
    home = np.full(graph.num_groups, NONE)
    grouped = np.flatnonzero((graph.colocation != NONE) & (layer != NONE))
    home[graph.colocation[grouped][::-1]] = layer[grouped][::-1]
    updates = np.flatnonzero((graph.phase == Phase.OPTIMIZER) & (graph.colocation != NONE))
    found[updates] = home[graph.colocation[updates]]
    return found


def _passing(graph: OpGraph, place: IntArray, count: int) -> FloatArray:
    """(count + 1,) bytes that pass each border between two places, each tensor once.

    `place` (N,) is NONE for operators that are not looked at.
    """
    edges = graph.edges
    edges = edges[(place[edges[:, 0]] != NONE) & (place[edges[:, 1]] != NONE)]
    farthest = np.full(graph.num_tensors, NONE)
    np.maximum.at(farthest, edges[:, 2], place[edges[:, 1]])
    used = np.flatnonzero(farthest != NONE)
    change = np.zeros((count + 2, 2))  # bytes, and how many tensors: none are no bytes at all
    begin = place[graph.producer[used]]
    over = farthest[used] > begin
    size = np.stack([graph.tensor_bytes[used[over]], np.ones(over.sum())], axis=1)
    np.add.at(change, begin[over] + 1, size)
    np.add.at(change, farthest[used[over]] + 1, -size)
    nbytes, tensors = np.cumsum(change, axis=0)[: count + 1].T
    return np.where(tensors > 0, nbytes, 0.0)


def _saved_bytes(graph: OpGraph, layer: IntArray, count: int) -> FloatArray:
    """(L,) bytes of a micro-batch's forward tensors that its backward pass reads, where made."""
    edges = graph.edges
    forward = (graph.phase == Phase.FORWARD) & (layer != NONE)
    kept = forward[edges[:, 0]] & (graph.phase[edges[:, 1]] == Phase.BACKWARD)
    tensors = np.unique(edges[kept, 2])
    return _sums(layer[graph.producer[tensors]], graph.tensor_bytes[tensors], count)


def _sums(place: IntArray, values: FloatArray, count: int) -> FloatArray:
    """(count,) sums of the values of each place."""
    return np.bincount(place, values, count).astype(np.float64)


def _names(graph: OpGraph, layer: IntArray, count: int) -> tuple[str, ...]:
    """The first operator of each layer, without what all of them begin with."""
    forward = (graph.phase == Phase.FORWARD) & (layer != NONE)
    first = [int(np.flatnonzero(forward & (layer == k))[0]) for k in range(count)]
    return tuple(graph.op_names[op].removeprefix("mb0/").removeprefix("forward/") for op in first)
