"""Put an `OpGraph` together operator by operator, in any order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError, refused_in
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.units import DTYPES


@dataclass
class _Operator:
    name: str
    kind: Kind
    phase: Phase
    micro_batch: int
    replica: int
    flop: float
    bytes_read: float
    bytes_written: float
    dtype: int
    colocation: int
    mirror: int
    profile: Sequence[float]


@dataclass
class _Tensor:
    bytes: float
    dtype: int
    producer: int
    link: Sequence[float]
    consumers: set[int] = field(default_factory=set)


@dataclass
class GraphBuilder:
    """Collects operators, tensors, uses and parameters; `build` sorts and checks them.

    `source` names the file (or model) in error messages. Operators keep their order of insertion
    wherever the dependencies allow it.
    """

    name: str
    source: str = ""
    profile_classes: tuple[str, ...] = ()
    link_classes: tuple[str, ...] = ()
    _operators: list[_Operator] = field(default_factory=list)
    _tensors: list[_Tensor] = field(default_factory=list)
    _parameters: list[tuple[str, float, float, float, int]] = field(default_factory=list)

    def add_operator(
        self,
        name: str,
        *,
        kind: Kind = Kind.OTHER,
        phase: Phase = Phase.FORWARD,
        micro_batch: int = 0,
        replica: int = 0,
        flop: float = 0.0,
        bytes_read: float = 0.0,
        bytes_written: float = 0.0,
        dtype: str = "float32",
        colocation: int = NONE,
        mirror: int = NONE,
        profile: Sequence[float] = (),
    ) -> int:
        """A new operator; returns its handle. `profile` is seconds per profile class."""
        self._operators.append(
            _Operator(name, kind, phase, micro_batch, replica, flop, bytes_read, bytes_written,
                      DTYPES.index(dtype), colocation, mirror, profile)
        )  # fmt: skip
        return len(self._operators) - 1

    def add_tensor(
        self, producer: int, nbytes: float, *, dtype: str = "float32", link: Sequence[float] = ()
    ) -> int:
        """A new tensor written by operator `producer`; `link` is seconds per link class."""
        self._tensors.append(_Tensor(nbytes, DTYPES.index(dtype), producer, link))
        return len(self._tensors) - 1

    def add_use(self, tensor: int, consumer: int) -> None:
        """Operator `consumer` reads `tensor`; saying so twice changes nothing."""
        self._tensors[tensor].consumers.add(consumer)

    def add_parameter(
        self, name: str, owner: int, *, parameter: float, gradient: float, optimizer: float
    ) -> None:
        """A parameter resident beside operator `owner`; sizes in bytes."""
        self._parameters.append((name, parameter, gradient, optimizer, owner))

    def build(self) -> OpGraph:
        """The checked graph.

        Raises:
            InputError: the dependencies have a cycle, or `OpGraph` finds a bad column.
        """
        with refused_in(self.source):
            return self._build()

    def _build(self) -> OpGraph:
        order = self._topological()
        rank = np.empty(len(order) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = NONE  # so that handle NONE maps to NONE
        ops = [self._operators[index] for index in order]
        tensors = sorted(self._tensors, key=lambda tensor: int(rank[tensor.producer]))
        rows = [np.sort(rank[list(tensor.consumers)]) for tensor in tensors]
        renumber: dict[int, int] = {}
        for op in ops:
            if op.colocation != NONE:
                renumber.setdefault(op.colocation, len(renumber))
        names, sizes, gradients, states, owners = (
            zip(*self._parameters, strict=True) if self._parameters else ((), (), (), (), ())
        )

        def ints(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(values, dtype=np.int64)

        def floats(
            values: Sequence[float] | Sequence[Sequence[float]],
        ) -> FloatArray:
            return np.array(values, dtype=np.float64)

        return OpGraph(
            name=self.name,
            op_names=tuple(op.name for op in ops),
            kind=ints([op.kind for op in ops]),
            phase=ints([op.phase for op in ops]),
            micro_batch=ints([op.micro_batch for op in ops]),
            replica=ints([op.replica for op in ops]),
            flop=floats([op.flop for op in ops]),
            bytes_read=floats([op.bytes_read for op in ops]),
            bytes_written=floats([op.bytes_written for op in ops]),
            op_dtype=ints([op.dtype for op in ops]),
            colocation=ints([renumber.get(op.colocation, NONE) for op in ops]),
            mirror=ints([rank[op.mirror] for op in ops]),
            tensor_bytes=floats([tensor.bytes for tensor in tensors]),
            tensor_dtype=ints([tensor.dtype for tensor in tensors]),
            producer=ints([rank[tensor.producer] for tensor in tensors]),
            consumer_ptr=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(
                np.int64
            ),
            consumer=np.concatenate([*rows, []]).astype(np.int64),
            parameter_names=tuple(names),
            parameter_bytes=floats(sizes),
            gradient_bytes=floats(gradients),
            optimizer_bytes=floats(states),
            parameter_owner=ints([rank[owner] for owner in owners]),
            profile_classes=self.profile_classes,
            profile_seconds=floats([op.profile for op in ops]).reshape(
                len(ops), len(self.profile_classes)
            )
            if self.profile_classes
            else np.zeros((0, 0)),
            link_classes=self.link_classes,
            link_seconds=floats([tensor.link for tensor in tensors]).reshape(
                len(tensors), len(self.link_classes)
            )
            if self.link_classes
            else np.zeros((0, 0)),
        )

    def _topological(self) -> list[int]:
        """Kahn's algorithm, earliest insertion first."""
        successors: list[list[int]] = [[] for _ in self._operators]
        missing = [0] * len(self._operators)
        for tensor in self._tensors:
            for consumer in tensor.consumers:
                successors[tensor.producer].append(consumer)
                missing[consumer] += 1
        ready = [index for index, count in enumerate(missing) if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            index = heapq.heappop(ready)
            order.append(index)
            for successor in successors[index]:
                missing[successor] -= 1
                if missing[successor] == 0:
                    heapq.heappush(ready, successor)
        if len(order) < len(self._operators):
            stuck = next(index for index, count in enumerate(missing) if count > 0)
            raise InputError(
                "lies on or behind a cycle: the graph is not acyclic",
                file=self.source or f"graph {self.name}",
                record=self._operators[stuck].name,
                field="edges",
            )
        return order
