"""Put an `OpGraph` together operator by operator, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import networkx
import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.unroll import WORK, Operator, Value, column, columns
from envs.units import DTYPES


@dataclass(kw_only=True)
class _Operator(Operator):
    micro_batch: int
    replica: int
    colocation: int
    profile: Sequence[float]


@dataclass(kw_only=True)
class _Tensor(Value):
    link: Sequence[float]


class _Parameter(NamedTuple):
    name: str
    parameter: float  # bytes
    gradient: float  # bytes
    optimizer: float  # bytes
    owner: int


@dataclass
class GraphBuilder:
    """Collects operators, tensors, uses and parameters; `build` sorts and checks them.

    Operators keep their order of insertion wherever the dependencies allow it.
    """

    name: str
    profile_classes: tuple[str, ...] = ()
    link_classes: tuple[str, ...] = ()
    _operators: list[_Operator] = field(default_factory=list)
    _tensors: list[_Tensor] = field(default_factory=list)
    _parameters: list[_Parameter] = field(default_factory=list)

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
            _Operator(
                name, kind, phase, flop, bytes_read, bytes_written, DTYPES.index(dtype), mirror,
                micro_batch=micro_batch, replica=replica, colocation=colocation, profile=profile,
            )
        )  # fmt: skip
        return len(self._operators) - 1

    def add_tensor(
        self, producer: int, nbytes: float, *, dtype: str = "float32", link: Sequence[float] = ()
    ) -> int:
        """A new tensor written by operator `producer`; `link` is seconds per link class."""
        self._tensors.append(_Tensor(nbytes, DTYPES.index(dtype), producer, link=link))
        return len(self._tensors) - 1

    def add_use(self, tensor: int, consumer: int) -> None:
        """Operator `consumer` reads `tensor`; saying so twice changes nothing."""
        self._tensors[tensor].consumers.append(consumer)

    def add_parameter(
        self,
        name: str,
        owner: int,
        *,
        parameter: float,
        gradient: float = 0.0,
        optimizer: float = 0.0,
    ) -> None:
        """A parameter resident beside operator `owner`; sizes in bytes."""
        self._parameters.append(_Parameter(name, parameter, gradient, optimizer, owner))

    def build(self) -> OpGraph:
        """The checked graph.

        Raises:
            InputError: the dependencies have a cycle, or `OpGraph` finds a bad column.
        """
        order = self._topological()
        rank = np.empty(len(order) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = NONE  # so that handle NONE maps to NONE
        ops = [self._operators[index] for index in order]
        tensors = sorted(self._tensors, key=lambda tensor: int(rank[tensor.producer]))
        rows = [np.unique(rank[tensor.consumers]) for tensor in tensors]
        renumber: dict[int, int] = {}
        for op in ops:
            if op.colocation != NONE:
                renumber.setdefault(op.colocation, len(renumber))

        def table(rows: Sequence[object], key: str, classes: tuple[str, ...]) -> FloatArray:
            if not classes:
                return np.zeros((0, 0))
            return column(rows, key, np.float64).reshape(len(rows), len(classes))

        return OpGraph(
            name=self.name,
            op_names=tuple(op.name for op in ops),
            **columns(ops, "kind", "phase", "micro_batch", "replica", *WORK),
            op_dtype=column(ops, "dtype"),
            colocation=np.array([renumber.get(op.colocation, NONE) for op in ops], np.int64),
            mirror=rank[column(ops, "mirror")],
            tensor_bytes=column(tensors, "bytes", np.float64),
            tensor_dtype=column(tensors, "dtype"),
            producer=rank[column(tensors, "producer")],
            consumer_ptr=np.cumsum([0, *map(len, rows)]).astype(np.int64),
            consumer=np.concatenate([*rows, []]).astype(np.int64),
            parameter_names=tuple(parameter.name for parameter in self._parameters),
            parameter_bytes=column(self._parameters, "parameter", np.float64),
            gradient_bytes=column(self._parameters, "gradient", np.float64),
            optimizer_bytes=column(self._parameters, "optimizer", np.float64),
            parameter_owner=rank[column(self._parameters, "owner")],
            profile_classes=self.profile_classes,
            profile_seconds=table(ops, "profile", self.profile_classes),
            link_classes=self.link_classes,
            link_seconds=table(tensors, "link", self.link_classes),
        )

    def _topological(self) -> list[int]:
        """The operators, earliest insertion first."""
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(self._operators)))
        graph.add_edges_from((t.producer, user) for t in self._tensors for user in t.consumers)
        try:
            return list(networkx.lexicographical_topological_sort(graph))
        except networkx.NetworkXUnfeasible:
            first = min(op for op, _ in networkx.find_cycle(graph))
            raise InputError(
                "lies on a cycle: the graph is not acyclic",
                file=f"graph {self.name}",
                record=self._operators[first].name,
                field="edges",
            ) from None
