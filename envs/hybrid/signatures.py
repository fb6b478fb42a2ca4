"""Split, broadcast, partial: how an operator's tensors lie on the devices that share it.

Yuan et al., "OneFlow: Redesign the Distributed Deep Learning Framework from Scratch",
arXiv 2110.15032, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.units import DTYPES

_WIDTH: FloatArray = np.array(  # bytes of an element, by type
    [int("".join(filter(str.isdecimal, name)) or 8) / 8 for name in DTYPES]
)
_SLICE = 1.0  # "bytes" of taking a part of what is there already: nothing is sent
_PENALTY = 8.0  # of making partial sums of what is no partial sum, by tensors and devices


class Sbp(NamedTuple):
    """One tensor on p devices: split along an axis, broadcast (a copy each), or partial sums."""

    form: Literal["S", "B", "P"]
    axis: int = NONE  # of a split

    def __str__(self) -> str:
        return f"S{self.axis}" if self.form == "S" else self.form


ROWS, FEATURES = Sbp("S", 0), Sbp("S", 1)
BROADCAST, PARTIAL = Sbp("B"), Sbp("P")


def boxing_bytes(source: Sbp, target: Sbp, size: float, devices: int) -> float:
    """Bytes, over all devices, that make the form `target` of a tensor that lies as `source`.

    `size` bytes is the whole tensor; it comes to lie on the same devices. inf: no boxing makes
    partial sums of a split tensor. The constants are OneFlow's: a slice of a copy counts as 1 byte,
    and partial sums of what is whole are punished by 8 times the tensor for every device.
    """
    if source == target:
        return 0.0
    if target == PARTIAL:
        return np.inf if source.form == "S" else _PENALTY * size * devices
    if source == BROADCAST:
        return _SLICE
    if source.form == target.form:
        return size * (devices - 1) / devices
    return size * (devices - 1) * ((source == PARTIAL) + (target == BROADCAST))


def boxing_messages(source: Sbp, target: Sbp, devices: int) -> int:
    """Messages one after another on the same devices, round a ring; 0 where nothing is sent."""
    if source in {target, BROADCAST} or target == PARTIAL:
        return 0
    return (devices - 1) * (1 + (source == PARTIAL and target == BROADCAST))


class Operator(NamedTuple):
    """What signatures need to know of one operator of the forward pass."""

    kind: Kind
    weights: bool  # it, or its co-location group, owns parameters
    inputs: tuple[bool, ...]  # of each activation read: as many elements as the largest has
    heads: bool  # the features of what it reads are heads: it may mix all else of a row
    channels: bool  # it keeps channels apart: pooling, batch normalisation
    scalar: bool  # all it writes is one number
    statistics: float  # bytes of one number for every row; 0 where not known


class Signature(NamedTuple):
    """How an operator is shared: forms it needs and gives, forward and backward.

    The gradient of what is read as a copy is a partial sum where the work was split, and whole
    where every device did it all; the gradient of a split is split.
    """

    inputs: tuple[Sbp, ...]
    output: Sbp
    output_gradient: Sbp  # needed
    input_gradients: tuple[Sbp, ...]  # given
    weight: Sbp = BROADCAST  # of its parameters, where it has some
    shared: bool = True  # every device does a p-th of the work
    forward_summed: float = 0.0  # bytes all-reduced within it
    backward_summed: float = 0.0


def signatures(operator: Operator) -> tuple[Signature, ...]:
    """All signatures by which `operator` can be shared; the first one shares nothing.

    Axis 0 is the rows (samples, tokens), axis 1 the features, which are channels in a convolution
    and heads within attention: weights may be permuted so that a split is by heads.

    - Products with weights: rows; columns of the weight, B -> S(1); rows of it, S(1) -> P.
    - Products of activations and attention: samples, or heads.
    - Embeddings: columns of the table, or the vocabulary, -> P.
    - Element-wise: rows, features; what is smaller than the largest input is a copy beside features
      and is taken for a column beside rows. No partial sums: whether it is linear is unknown.
    - Moves: rows, features and partial sums.
    - Normalisation: rows; features where they are heads or channels, else a softmax all-reduces
      its maxima and sums, if the number of rows is known.
    - Reductions: rows; of everything to one number -> P; pooling keeps channels too.
    - Whatever else is done by every device.
    """
    kind, count = operator.kind, len(operator.inputs)
    found = [_alike(BROADCAST, count)._replace(shared=False)]
    rows, features = _alike(ROWS, count), _alike(FEATURES, count)._replace(weight=ROWS)
    if kind in (Kind.MATMUL, Kind.CONVOLUTION, Kind.EMBEDDING) and operator.weights:
        column = _alike(FEATURES, count)._replace(
            inputs=(BROADCAST,) * count, input_gradients=(PARTIAL,) * count, weight=FEATURES
        )
        row = features._replace(output=PARTIAL, output_gradient=BROADCAST)
        found += [rows, column, row]
    elif kind in (Kind.MATMUL, Kind.ATTENTION):
        found += [rows, features]
    elif kind is Kind.ELEMENTWISE:
        forms = tuple(FEATURES if whole else BROADCAST for whole in operator.inputs)
        gradients = tuple(FEATURES if whole else PARTIAL for whole in operator.inputs)
        found += [rows, features._replace(inputs=forms, input_gradients=gradients)]
    elif kind is Kind.DATA_MOVEMENT:
        partial = found[0]._replace(inputs=(PARTIAL,) * count, output=PARTIAL)
        found += [rows, features, partial]
    elif kind is Kind.NORMALIZATION:
        found.append(rows)
        if operator.heads or operator.channels:
            found.append(features)
        elif operator.statistics and not operator.weights:
            one = operator.statistics
            found.append(features._replace(forward_summed=2 * one, backward_summed=one))
    elif kind is Kind.REDUCTION and operator.scalar:
        for split in (rows, features):
            found.append(split._replace(output=PARTIAL, output_gradient=BROADCAST))
    elif kind is Kind.REDUCTION:
        found += [rows, features] if operator.channels else [rows]
    return tuple(found)


def _alike(form: Sbp, inputs: int) -> Signature:
    return Signature((form,) * inputs, form, form, (form,) * inputs)


class ForwardOperators:
    """The forward pass of micro-batch 0 of a captured graph, as signatures see it.

    A graph knows no shapes. What is read off it instead: the rows of a product with weights are
    2 * in * out / FLOP (elements), and stay until the next product; a product or attention without
    weights is attention, whose heads stay until the next product with weights; batch normalisation
    and pooling are known by name. What does not come from parameters (masks, positions) is made by
    every device. That sizes can be divided is not known and taken for granted.
    """

    def __init__(self, graph: OpGraph) -> None:
        count = graph.num_operators
        self.forward: BoolArray = (graph.phase == Phase.FORWARD) & (graph.micro_batch <= 0)
        groups = np.unique(graph.colocation[graph.parameter_owner])
        self.weights: BoolArray = np.isin(graph.colocation, groups[groups != NONE])
        self.weights[graph.parameter_owner] = True
        self.learned: BoolArray = self.weights & self.forward
        self.inputs: dict[int, list[int]] = {}  # operator: tensors it reads that are learned
        self._graph = graph
        self._heads: BoolArray = np.zeros(count, dtype=bool)
        self._rows: FloatArray = np.zeros(count)
        self._elements: FloatArray = graph.tensor_bytes / _WIDTH[graph.tensor_dtype]
        edges = graph.edges[np.argsort(graph.edges[:, 1], kind="stable")]
        edges = edges[self.forward[edges[:, 1]]]
        reads: dict[int, list[tuple[int, int]]] = {}
        for source, reader, tensor in edges.tolist():
            reads.setdefault(reader, []).append((source, tensor))
        for op in np.flatnonzero(self.forward).tolist():
            known = [(u, t) for u, t in reads.get(op, ()) if self.learned[u]]
            self.learned[op] |= bool(known)
            self.inputs[op] = [tensor for _, tensor in known]
            self._label(op, [u for u, _ in known])

    def _label(self, op: int, sources: Sequence[int]) -> None:
        graph = self._graph
        product = graph.kind[op] in (Kind.MATMUL, Kind.ATTENTION)
        if product and self.weights[op] and graph.flop[op] > 0:
            read = self._elements[self.inputs[op]].sum()
            self._rows[op] = 2 * read * self.written(op) / graph.flop[op]
        elif not product and sources:
            self._rows[op] = self._rows[sources].max()
        self._heads[op] = not self.weights[op] and (product or bool(self._heads[sources].any()))

    def written(self, op: int) -> float:
        """Elements of all that an operator writes."""
        return float(self._elements[self.outputs(op)].sum())

    def outputs(self, op: int) -> IntArray:
        """The tensors an operator writes."""
        pointer = self._graph.output_ptr
        return self._graph.output[pointer[op] : pointer[op + 1]]

    def __getitem__(self, op: int) -> Operator:
        graph = self._graph
        sizes = self._elements[self.inputs[op]]
        name = graph.op_names[op]
        return Operator(
            kind=Kind(graph.kind[op]),
            weights=bool(self.weights[op]),
            inputs=tuple((sizes == sizes.max(initial=0.0)).tolist()),
            heads=bool(self._heads[op]),
            channels="batch_norm" in name or "pool" in name,
            scalar=all(self._elements[tensor] <= 1 for tensor in self.outputs(op)),
            statistics=4.0 * self._rows[op] if graph.kind[op] == Kind.NORMALIZATION else 0.0,
        )
