"""What sharing a layer costs: the best signatures of its operators, with copies at its ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from agents.hybrid.choice import ChoiceProgram, choose
from agents.hybrid.machines import HybridSolver, planned
from agents.pipeline.published import one_f_one_b
from agents.solver import Budget, Result
from envs.arrays import FloatArray, IntArray
from envs.cost import MEMORY_BOUND_DTYPES, RooflineCost
from envs.errors import InputError
from envs.graphs.op_graph import NONE, Kind, OpGraph
from envs.hardware.devices import CATALOGUE
from envs.hardware.fabric import Fabric
from envs.hardware.topology import fabric_topology
from envs.hybrid.plan import HybridPlan, Shard, Sharding, Stage, ordered
from envs.hybrid.problem import HybridProblem
from envs.hybrid.signatures import (
    BROADCAST,
    FEATURES,
    PARTIAL,
    ROWS,
    ForwardOperators,
    Operator,
    Sbp,
    Signature,
    boxing_bytes,
    boxing_messages,
    signatures,
)
from envs.hybrid.timing import all_reduce_seconds, stage_seconds
from envs.units import DTYPES, GIGA, MICROSECOND

# Signatures are chosen for one machine, so that a `Sharding` holds on all devices of a topology:
# the datasheet of the H100 SXM with NVLink 4, 450 GB/s each way. A collective is launched too.
_SPEC = CATALOGUE["H100"]
_BANDWIDTH, _LATENCY = 450 * GIGA, 2 * MICROSECOND
_BUDGET_S = 10.0  # for layers too wide to be eliminated
_Forms = Sequence[tuple[Sbp, Sbp]]  # of a tensor and of its gradient, by option
_ALONE = (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)  # an entry of each column of one device
_COPIES = ((BROADCAST, BROADCAST),)
_SHARED = ((BROADCAST, BROADCAST), (BROADCAST, PARTIAL), (ROWS, ROWS), (FEATURES, FEATURES))
_PRODUCTS = (Kind.MATMUL, Kind.CONVOLUTION, Kind.EMBEDDING)


def sharding_of(
    graph: OpGraph, layer_of_operator: IntArray, layers: int, degrees: Sequence[int]
) -> Sharding:
    """Every layer shared among so many devices, by the signatures that cost the least time.

    A layer is the forward operators of micro-batch 0 that `layer_of_operator` gives its number, and
    their mirrors. What enters and leaves it lies on every shard as a copy, and so do the gradients.
    A tensor with several readers takes one form for all of them, from which they take theirs, and
    its gradients are summed before they are sent. Products always split their weights: by columns
    or by rows, so that the state is shared. They never split rows of activations (tokens), because
    that is what replicas do, with one sum of gradients a step; nor does attention, which mixes
    them. What operators without a split do remains, and so does every launch. Sums of the gradients
    of weights that all shards hold (of normalisations), once a step, are left out.

    Args:
        layer_of_operator: (N,) layer 0..L-1; NONE: none. Only the forward operators' is read.
        layers: L.
        degrees: ascending, 1 first.

    Raises:
        InputError: the degrees do not begin with 1 and ascend.
    """
    if not degrees or degrees[0] != 1 or (np.diff(degrees) <= 0).any():
        raise InputError(f"{list(degrees)} do not ascend from 1", field="degrees")
    row = _Reader(graph).layers(layer_of_operator, layers)
    share = cache(_share)
    found = {
        degree: [share(layer, degree) if degree > 1 else _ALONE for layer in row]
        for degree in degrees
    }
    return {degree: Shard(*np.array(table, dtype=np.float64).T) for degree, table in found.items()}


class _Tensor(NamedTuple):
    """A tensor written or read by a layer; operators by their place in it."""

    size: float  # bytes
    graded: bool  # it has a gradient
    source: int  # NONE: it comes from outside
    readers: tuple[tuple[int, int], ...]  # operator, number of the input
    leaves: bool
    keepers: tuple[int, ...]  # operators whose mirrors read it; NONE: of another layer


class _Layer(NamedTuple):
    """A layer; equal ones are solved once."""

    operators: tuple[Operator, ...]
    seconds: tuple[float, ...]  # of each and its mirrors, launches apart
    tensors: tuple[_Tensor, ...]
    weights: tuple[float, ...]  # bytes of the parameters of each
    fixed_seconds: float  # that no signature shares: launches, operators without learned inputs


class _Reader:
    """Layers out of a graph."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.operators = ForwardOperators(graph)
        machine = Fabric("one device")
        machine.add_device("0", _SPEC, 0)
        one = fabric_topology("one device", machine)
        seconds = RooflineCost().operator_seconds(graph, one)[:, 0]
        mirrored = graph.mirror != NONE
        real = np.array([name not in MEMORY_BOUND_DTYPES for name in DTYPES])
        self.graded = real[graph.tensor_dtype] & mirrored.any()
        owner = np.where(mirrored, graph.mirror, np.arange(graph.num_operators))
        once = np.minimum(seconds, _SPEC.launch_overhead_s)
        self.launches = np.bincount(owner, weights=once, minlength=graph.num_operators)
        self.work = np.bincount(owner, weights=seconds - once, minlength=graph.num_operators)
        group = np.where(graph.colocation == NONE, graph.num_groups, graph.colocation)
        held = np.bincount(
            group[graph.parameter_owner], graph.parameter_bytes, graph.num_groups + 1
        )
        self.weights = np.where(graph.colocation == NONE, 0.0, held[group])

    def layers(self, layer_of_operator: IntArray, count: int) -> list[_Layer]:
        """In the order of their numbers."""
        members: list[list[int]] = [[] for _ in range(count)]
        for op in np.flatnonzero(self.operators.forward & (layer_of_operator != NONE)).tolist():
            members[layer_of_operator[op]].append(op)
        return [self._layer(ops) for ops in members]

    def _layer(self, ops: Sequence[int]) -> _Layer:
        known = self.operators
        learned = [op for op in ops if known.learned[op]]
        others = [op for op in ops if not known.learned[op]]
        place = {op: number for number, op in enumerate(learned)}
        tensors = dict.fromkeys(
            t for op in learned for t in (*known.inputs[op], *known.outputs(op))
        )
        return _Layer(
            operators=tuple(known[op] for op in learned),
            seconds=tuple(self.work[learned].tolist()),
            tensors=tuple(self._tensor(int(tensor), place) for tensor in tensors),
            weights=tuple(self.weights[learned].tolist()),
            fixed_seconds=float(self.launches[ops].sum() + self.work[others].sum()),
        )

    def _tensor(self, tensor: int, place: dict[int, int]) -> _Tensor:
        graph, known = self.graph, self.operators
        source, users = int(graph.producer[tensor]), graph.consumers(tensor)
        forward = users[known.forward[users]].tolist()
        mirrors = graph.mirror[users]
        return _Tensor(
            size=float(graph.tensor_bytes[tensor]),
            graded=bool(self.graded[tensor]),
            source=place.get(source, NONE),
            readers=tuple(
                (place[op], known.inputs[op].index(tensor)) for op in forward if op in place
            ),
            leaves=any(op not in place for op in forward),
            keepers=tuple(
                dict.fromkeys(place.get(m, NONE) for m in mirrors[mirrors != NONE].tolist())
            ),
        )


def _share(layer: _Layer, degree: int) -> tuple[float, ...]:
    """The signatures of a layer on `degree` shards: an entry of each column of `Shard`."""
    options = [_offered(operator) for operator in layer.operators]
    sizes, edges, sent = _edges(layer, options, degree)
    way = PARTIAL, BROADCAST  # of all-reduces within an operator
    own = [
        np.array([_sent(way, s.forward_summed, way, s.backward_summed, degree) for s in every])
        for every in options
    ]
    work = [
        seconds * np.array([1 / degree if s.shared else 1.0 for s in every])
        for seconds, every in zip(layer.seconds, options, strict=True)
    ]
    rest = [np.zeros(size) for size in sizes[len(options) :]]
    seconds = [a + _seconds(b) for a, b in zip(work, own, strict=True)]
    tables = tuple(_seconds(table) for table in sent)
    best = choose(ChoiceProgram((*seconds, *rest), tuple(edges), tables), _BUDGET_S)
    if best is None:
        return _ALONE
    chosen = [every[o] for every, o in zip(options, best, strict=False)]
    left = layer.fixed_seconds + sum(float(a[o]) for a, o in zip(work, best, strict=False))
    whole = layer.fixed_seconds + sum(layer.seconds)
    state = [(size, s.weight) for size, s in zip(layer.weights, chosen, strict=True)]
    saved = [(t.size, _kept(t, chosen)) for t in layer.tensors if t.keepers and t.source != NONE]
    total = sum((a[o] for a, o in zip(own, best, strict=False)), np.zeros(4))
    total = sum((t[best[u], best[v]] for t, (u, v) in zip(sent, edges, strict=True)), total)
    return (left / whole if whole else 1.0, _part(state, degree), _part(saved, degree), *total)


def _edges(
    layer: _Layer, options: Sequence[Sequence[Signature]], degree: int
) -> tuple[list[int], list[tuple[int, int]], list[FloatArray]]:
    """The program's nodes, by how many options they have, its edges, and what those send.

    (a, b, 4) for every pair of options, as `_sent`; inf where no boxing does it. Behind the
    operators there is a node for each tensor with several readers, and one for what enters or
    leaves: a copy.
    """
    sizes, edges, sent = [len(every) for every in options], [], []

    def node(forms: _Forms) -> tuple[int, _Forms]:
        sizes.append(len(forms))
        return len(sizes) - 1, forms

    for tensor in layer.tensors:
        takers: list[tuple[int, _Forms]] = [
            (op, [(s.inputs[slot], s.input_gradients[slot]) for s in options[op]])
            for op, slot in tensor.readers
        ]
        if tensor.leaves:
            takers.append(node(_COPIES))
        if not takers:
            continue
        giver = node(_COPIES) if tensor.source == NONE else (tensor.source, [
            (s.output, s.output_gradient) for s in options[tensor.source]
        ])  # fmt: skip
        pairs = [(giver, taker) for taker in takers]
        if len(takers) > 1:
            shared = node(_SHARED)
            pairs = [(giver, shared), *((shared, taker) for taker in takers)]
        back = tensor.size if tensor.graded else 0.0
        for (u, given), (v, taken) in pairs:
            edges.append((u, v))
            rows = [
                [_sent((a, c), tensor.size, (d, b), back, degree) for c, d in taken]
                for a, b in given
            ]
            sent.append(np.array(rows))
    return sizes, edges, sent


def _sent(
    forward: tuple[Sbp, Sbp], size: float, backward: tuple[Sbp, Sbp], back: float, degree: int
) -> tuple[float, ...]:
    """Bytes forward and backward, messages forward and backward, of every shard."""
    ways = [_boxed(*forward, size, degree), _boxed(*backward, back, degree)]
    return tuple(column for pair in zip(*ways, strict=True) for column in pair)


def _boxed(source: Sbp, target: Sbp, size: float, degree: int) -> tuple[float, float]:
    """(bytes, messages) of every shard.

    A copy is a partial sum whose other parts are zero: what is added to one needs no sending.
    """
    if size == 0 or (source, target) == (BROADCAST, PARTIAL):
        return 0.0, 0
    nbytes = boxing_bytes(source, target, size, degree) / degree
    messages = boxing_messages(source, target, degree) if nbytes < np.inf else np.inf
    return (nbytes, messages) if messages else (0.0, 0)


def _seconds(sent: FloatArray) -> FloatArray:
    """(...) seconds of what is sent, (..., 4) as `_sent`."""
    launched = (sent[..., 2:] > 0).sum(axis=-1) * _SPEC.launch_overhead_s
    sending = sent[..., :2].sum(axis=-1) / _BANDWIDTH
    return np.asarray(sending + sent[..., 2:].sum(axis=-1) * _LATENCY + launched)


def _offered(operator: Operator) -> tuple[Signature, ...]:
    """Weights are split wherever they are products; rows of products and attention never are."""
    every = signatures(operator)
    if operator.kind not in (*_PRODUCTS, Kind.ATTENTION):
        return every
    split = tuple(s for s in every if s.output != ROWS)
    return split[1:] if operator.weights and operator.kind in _PRODUCTS else split


def _kept(tensor: _Tensor, chosen: Sequence[Signature]) -> Sbp:
    """The largest form in which the backward pass wants a tensor of this layer."""
    slots = dict(tensor.readers)
    forms = [
        chosen[op].inputs[slots[op]] if op in slots
        else chosen[op].output if op == tensor.source
        else BROADCAST
        for op in tensor.keepers
    ]  # fmt: skip
    return next((form for form in forms if form.form != "S"), forms[0])


def _part(sizes: Sequence[tuple[float, Sbp]], degree: int) -> float:
    """The share of some bytes that one shard holds."""
    whole = sum(size for size, _ in sizes)
    held = sum(size / (degree if form.form == "S" else 1) for size, form in sizes)
    return held / whole if whole else 1.0


class SBP(HybridSolver):
    """One stage on all devices: replicas, each shared by tensor shards.

    The signatures of operators are those of `HybridProblem.sharding`, the best ones for every
    degree (`agents.hybrid.sharding`): within a replica what is split, broadcast or a partial sum;
    between replicas rows are split and gradients are partial sums. All degrees that divide the
    devices are tried; shards are next to each other in their server. One micro-batch is there at a
    time, so that computing activations again would save nothing.

    Guarantees:
        The degree is the best that fits, under the formula
        M (forward + backward pass of a micro-batch) + sum of gradients + update.

    Source:
        Yuan et al., "OneFlow: Redesign the Distributed Deep Learning Framework from Scratch",
        arXiv 2110.15032.
    """

    def _solve(self, problem: HybridProblem, budget: Budget) -> Result[HybridPlan]:
        """The few plans there are are all looked at."""
        devices = np.argsort(problem.topology.server, kind="stable").tolist()
        best: HybridPlan | None = None
        predicted, tried = np.inf, 0
        for shards in problem.sharding:
            if len(devices) % shards:
                continue
            stage = Stage(0, problem.num_layers, tuple(devices), shards)
            plan = ordered((stage,), problem.micro_batches, one_f_one_b)
            seconds, tried = one_stage_seconds(problem, stage), tried + 1
            if seconds < predicted and not plan.violations(problem):
                best, predicted = plan, seconds
        if best is None:
            reason = "no replicas and shards of the whole model fit the memory"
            return Result(None, "infeasible", evaluations=tried, reason=reason)
        return planned(best, predicted, tried)


def one_stage_seconds(problem: HybridProblem, stage: Stage) -> float:
    """Seconds of a step whose one stage has all layers."""
    held = problem.held[stage.shards]
    nbytes = float(held.gradient_bytes.sum())
    passes = problem.micro_batches * float(stage_seconds(problem, stage).passes.max())
    update = held.update[:, stage.devices]
    return passes + all_reduce_seconds(problem, stage, nbytes) + float(update.sum(axis=0).max())
