"""`OpGraph`: the computation of one training step as operators, tensors and parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.compilation import compiled
from envs.errors import InputError
from envs.files import unprintable
from envs.units import DTYPES

if TYPE_CHECKING:
    import networkx


NONE = -1  # "no such operator / group" in every integer column


class Kind(IntEnum):
    """What an operator does; collective communication is a kind."""

    OTHER = 0
    MATMUL = 1
    CONVOLUTION = 2
    ATTENTION = 3
    NORMALIZATION = 4
    ELEMENTWISE = 5
    REDUCTION = 6
    EMBEDDING = 7
    DATA_MOVEMENT = 8
    UPDATE = 9
    COLLECTIVE = 10
    FUSED = 11


class Phase(IntEnum):
    """The part of the training step an operator belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


@dataclass(frozen=True, eq=False)
class OpGraph:
    """One training step: N operators, T tensors, P parameters, in compressed sparse rows.

    Operators are numbered in a topological order: every consumer of a tensor has a larger index
    than its producer, so the graph is acyclic by construction. Views and aliases are not operators.
    A tensor consumed by several operators is one tensor. The inputs of the step (data, parameters)
    are no tensors here: they are resident where they are used.

    Raises:
        InputError: naming the record and the field, when a column has the wrong length, a cost is
            negative or not finite, an index is out of range, an identifier stands twice, or a
            consumer comes before its producer.
    """

    name: str
    # operators
    op_names: tuple[str, ...]  # (N,) unique
    kind: IntArray  # (N,) Kind
    phase: IntArray  # (N,) Phase
    micro_batch: IntArray  # (N,) 0..M-1; NONE for the optimizer
    replica: IntArray  # (N,) data-parallel replica, 0 without data parallelism
    flop: FloatArray  # (N,) FLOP
    bytes_read: FloatArray  # (N,) bytes
    bytes_written: FloatArray  # (N,) bytes
    op_dtype: IntArray  # (N,) index into DTYPES: the type the arithmetic is done in
    colocation: IntArray  # (N,) co-location group 0..G-1, or NONE: free
    mirror: IntArray  # (N,) the forward operator a backward operator belongs to, or NONE
    # tensors
    tensor_bytes: FloatArray  # (T,) bytes
    tensor_dtype: IntArray  # (T,) index into DTYPES
    producer: IntArray  # (T,) operator
    consumer_ptr: IntArray  # (T + 1,) row pointer into `consumer`
    consumer: IntArray  # (C,) operators, ascending and unique in each row
    # parameters: resident on the device of their owner
    parameter_names: tuple[str, ...]  # (P,) unique
    parameter_bytes: FloatArray  # (P,) bytes
    gradient_bytes: FloatArray  # (P,) bytes
    optimizer_bytes: FloatArray  # (P,) bytes
    parameter_owner: IntArray  # (P,) an operator that uses it (all its users share one group)
    # tabulated facts of published graphs, in place of FLOP and bytes
    profile_classes: tuple[str, ...] = ()  # (K,) device classes that were measured
    profile_seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # (N, K) s
    link_classes: tuple[str, ...] = ()  # (L,) kinds of device pairs that were measured
    link_seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # (T, L) s

    def __post_init__(self) -> None:
        self._check_names()
        self._check_columns()
        self._check_edges()

    def __repr__(self) -> str:
        state = float(self.state_bytes.sum()) / 2**30
        return (
            f"OpGraph {self.name}: {self.num_operators:,} operators, {self.num_tensors:,} tensors, "
            f"{self.num_micro_batches} micro-batches, {self.flop.sum() / 1e12:.4g} TFLOP, "
            f"parameters with gradients and optimizer state {state:.4g} GiB"
        )

    @property
    def num_operators(self) -> int:
        """N."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """T."""
        return len(self.producer)

    @property
    def num_parameters(self) -> int:
        """P."""
        return len(self.parameter_names)

    @property
    def num_groups(self) -> int:
        """Number of co-location groups."""
        return int(self.colocation.max(initial=NONE)) + 1

    @property
    def num_micro_batches(self) -> int:
        """M, at least 1."""
        return max(1, int(self.micro_batch.max(initial=0)) + 1)

    @cached_property
    def state_bytes(self) -> FloatArray:
        """(N,) bytes of parameters, gradients and optimizer state owned by each operator."""
        total = np.zeros(self.num_operators)
        np.add.at(
            total,
            self.parameter_owner,
            self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes,
        )
        return total

    @cached_property
    def output_ptr(self) -> IntArray:
        """(N + 1,) row pointer into `output`: the tensors each operator produces."""
        counts = np.bincount(self.producer, minlength=self.num_operators)
        return sums_before(counts)

    @cached_property
    def output(self) -> IntArray:
        """(T,) tensors sorted by producer."""
        return np.argsort(self.producer, kind="stable").astype(np.int64)

    @cached_property
    def edges(self) -> IntArray:
        """(C, 3) rows of producer, consumer, tensor: one per use of a tensor."""
        tensor = np.repeat(np.arange(self.num_tensors), np.diff(self.consumer_ptr))
        return np.stack([self.producer[tensor], self.consumer, tensor], axis=1).astype(np.int64)

    @cached_property
    def uses(self) -> IntArray:
        """(C, 3) rows of consumer, tensor, slot, sorted by (producer, consumer, tensor).

        The slot numbers the tensor among its producer's outputs.
        """
        edges = self.edges
        order = np.lexsort((edges[:, 2], edges[:, 1], edges[:, 0]))
        slot = np.empty(self.num_tensors, dtype=np.int64)
        slot[self.output] = (
            np.arange(self.num_tensors) - self.output_ptr[self.producer[self.output]]
        )
        tensor = edges[order, 2]
        return np.stack([edges[order, 1], tensor, slot[tensor]], axis=1)

    @cached_property
    def use_ptr(self) -> IntArray:
        """(N + 1,) row pointer into `uses` by producing operator."""
        counts = np.bincount(self.edges[:, 0], minlength=self.num_operators)
        return sums_before(counts)

    @cached_property
    def use_op(self) -> IntArray:
        """(C,) consumers, by producing operator."""
        return np.ascontiguousarray(self.uses[:, 0])

    @cached_property
    def weight_gradient(self) -> BoolArray:
        """(N,) whether an operator computes a gradient of parameters that nothing waits for.

        A backward operator from which only backward operators of its own layer (with its mirror)
        can be reached, and accumulations over further micro-batches. All other backward operators
        compute gradients of inputs, which the layers before wait for. Where the mirror is not
        known, none may be reached.
        """
        columns = self.micro_batch, self.mirror, self.use_ptr, self.use_op
        return np.asarray(_unawaited(self.phase == Phase.BACKWARD, *columns))

    def consumers(self, tensor: int) -> IntArray:
        """The operators that read `tensor`, ascending."""
        return self.consumer[self.consumer_ptr[tensor] : self.consumer_ptr[tensor + 1]]

    def forward_flop(self) -> float:
        """FLOP of the forward phase, all micro-batches."""
        return float(self.flop[self.phase == Phase.FORWARD].sum())

    def backward_flop(self) -> float:
        """FLOP of the backward phase, all micro-batches."""
        return float(self.flop[self.phase == Phase.BACKWARD].sum())

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The graph as a networkx multigraph: a node for each operator, an edge for each use.

        Nodes are operator names, in topological order, with `kind`, `phase` (in lower case),
        `micro_batch`, `flop`, `bytes_read`, `bytes_written`, `state_bytes`, `colocation`, and
        `seconds` by device class where the graph was measured. Edges have `tensor` (its number;
        a tensor with several consumers has several edges) and `bytes`.
        """
        import networkx

        made = networkx.MultiDiGraph(name=self.name)
        keys = "micro_batch", "flop", "bytes_read", "bytes_written", "state_bytes", "colocation"
        facts: dict[str, list[Any]] = {
            "kind": [Kind(code).name.lower() for code in self.kind],
            "phase": [Phase(code).name.lower() for code in self.phase],
            **{key: getattr(self, key).tolist() for key in keys},
        }
        if self.profile_classes:
            facts["seconds"] = [
                dict(zip(self.profile_classes, row, strict=True))
                for row in self.profile_seconds.tolist()
            ]
        for name, *row in zip(self.op_names, *facts.values(), strict=True):
            made.add_node(name, **dict(zip(facts, row, strict=True)))
        for source, target, tensor in self.edges.tolist():
            size = float(self.tensor_bytes[tensor])
            names = (self.op_names[source], self.op_names[target])
            made.add_edge(*names, tensor=tensor, bytes=size)
        return made

    def _check_names(self) -> None:
        for names in (
            (self.name,), self.op_names, self.parameter_names, self.profile_classes,
            self.link_classes,
        ):  # fmt: skip
            if (place := unprintable(names)) is not None:
                self._fail("holds a control character", repr(names[place]), "id")
        for what, names in (("operator", self.op_names), ("parameter", self.parameter_names)):
            if len(set(names)) != len(names):
                twice = Counter(names).most_common(1)[0][0]
                self._fail(f"{what} {twice!r} stands twice", twice, "id")

    def _check_columns(self) -> None:
        n, t, p = self.num_operators, self.num_tensors, self.num_parameters
        work = "flop", "bytes_read", "bytes_written"
        sizes = "parameter_bytes", "gradient_bytes", "optimizer_bytes"
        codes = "kind", "phase", "micro_batch", "replica", "op_dtype", "colocation", "mirror"
        for columns, expected in (
            ((*codes, *work), n), (("tensor_bytes", "tensor_dtype", "producer"), t),
            ((*sizes, "parameter_owner"), p), (("consumer_ptr",), t + 1),
        ):  # fmt: skip
            for column in columns:
                held = len(getattr(self, column))
                if held != expected:
                    self._fail(f"has {held} entries, not {expected}", None, column)
        records: Sequence[object]
        for columns, records in (
            (work, self.op_names), (("tensor_bytes",), range(t)), (sizes, self.parameter_names),
        ):  # fmt: skip
            for column in columns:
                values = getattr(self, column)
                wrong = np.flatnonzero(~(values >= 0) | ~np.isfinite(values))
                if len(wrong):
                    reason = f"{values[wrong[0]]} is negative or not finite"
                    self._fail(reason, records[wrong[0]], column)
        for column, low, high in (
            ("kind", 0, len(Kind)), ("phase", 0, len(Phase)), ("op_dtype", 0, len(DTYPES)),
            ("micro_batch", NONE, 2**31), ("replica", 0, 2**31), ("colocation", NONE, max(n, 1)),
            ("mirror", NONE, max(n, 1)), ("tensor_dtype", 0, len(DTYPES)), ("producer", 0, n),
            ("consumer", 0, n), ("parameter_owner", 0, n),
        ):  # fmt: skip
            values = getattr(self, column)
            wrong = np.flatnonzero((values < low) | (values >= high))
            if len(wrong):
                self._fail(f"{values[wrong[0]]} is out of range", int(wrong[0]), column)
        for column, shape in (
            ("profile_seconds", (n, len(self.profile_classes))),
            ("link_seconds", (t, len(self.link_classes))),
        ):
            values = getattr(self, column)
            if shape[1] and values.shape != shape:
                self._fail(f"has shape {values.shape}, not {shape}", None, column)
            if np.isnan(values).any() or (values < 0).any():
                row = int(np.flatnonzero((np.isnan(values) | (values < 0)).any(axis=1))[0])
                self._fail("is negative or missing", row, column)

    def _check_edges(self) -> None:
        pointer = self.consumer_ptr
        if pointer[0] != 0 or pointer[-1] != len(self.consumer) or (np.diff(pointer) < 0).any():
            self._fail("is not a row pointer into 'consumer'", None, "consumer_ptr")
        edges = self.edges
        backwards = np.flatnonzero(edges[:, 0] >= edges[:, 1])
        if len(backwards):
            u, v, tensor = edges[backwards[0]]
            self._fail(
                f"operator {self.op_names[v]!r} reads from {self.op_names[u]!r} but does not come "
                "after it: operators must be in topological order",
                int(tensor),
                "consumer",
            )
        same = edges[1:, 2] == edges[:-1, 2]
        if (same & (np.diff(edges[:, 1]) <= 0)).any():
            self._fail("consumers of a tensor must ascend without repetition", None, "consumer")

    def _fail(self, message: str, record: object | None, column: str) -> None:
        raise InputError(message, file=f"graph {self.name}", record=record, field=column)


@compiled
def _unawaited(
    backward: BoolArray, part: IntArray, mirror: IntArray, use_ptr: IntArray, use_op: IntArray
) -> BoolArray:
    """`OpGraph.weight_gradient`, from the last operator to the first."""
    last = backward.copy()
    for op in range(len(last) - 1, -1, -1):
        for k in range(use_ptr[op], use_ptr[op + 1]):
            user = use_op[k]
            own = mirror[op] != NONE and mirror[user] == mirror[op]
            if backward[user] and not (last[user] and (own or part[user] != part[op])):
                last[op] = False
    return last
