"""From the trace of one micro-batch to the graph of a whole training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envs.arrays import FloatArray, IntArray, sums_before
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase


@dataclass
class Operator:
    """An operator of one micro-batch."""

    name: str
    kind: Kind
    phase: Phase
    flop: float
    bytes_read: float
    bytes_written: float
    dtype: int  # index into DTYPES
    mirror: int = NONE  # forward operator


@dataclass
class Value:
    """What one operator leaves in one storage: a tensor of the graph.

    A later in-place operator makes a new value of the same storage.
    """

    bytes: float
    dtype: int  # index into DTYPES
    producer: int  # operator
    consumers: list[int] = field(default_factory=list)  # operators


def column(rows: Sequence[Any], key: str, dtype: type[Any] = np.int64) -> NDArray[Any]:
    """One attribute of every row."""
    return np.array([getattr(row, key) for row in rows], dtype=dtype)


WORK = ("flop", "bytes_read", "bytes_written")  # of an operator, no whole numbers


def columns(operators: Sequence[Operator], *keys: str) -> dict[str, NDArray[Any]]:
    """Attributes of operators by their names."""
    kinds = {key: np.float64 if key in WORK else np.int64 for key in keys}
    return {key: column(operators, key, kind) for key, kind in kinds.items()}


def numbered(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels, and `#2`, `#3`, ... where one repeats."""
    seen: Counter[str] = Counter()
    names = []
    for label in labels:
        seen[label] += 1
        names.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return tuple(names)


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One micro-batch, forward and backward: n operators in topological order, t tensors."""

    names: tuple[str, ...]  # (n,) unique, "forward/..." or "backward/..."
    kind: IntArray  # (n,) Kind
    phase: IntArray  # (n,) Phase
    flop: FloatArray  # (n,) FLOP
    bytes_read: FloatArray  # (n,) bytes
    bytes_written: FloatArray  # (n,) bytes
    dtype: IntArray  # (n,) index into DTYPES
    mirror: IntArray  # (n,) forward operator, or NONE
    tensor_bytes: FloatArray  # (t,) bytes
    tensor_dtype: IntArray  # (t,) index into DTYPES
    producer: IntArray  # (t,) operator
    uses: IntArray  # (c, 2) rows of tensor, consumer

    @classmethod
    def of(
        cls, labels: Iterable[str], operators: Sequence[Operator], values: Sequence[Value]
    ) -> Self:
        """Of operators in topological order, `numbered` by their labels, and their tensors."""
        uses = [(t, consumer) for t, value in enumerate(values) for consumer in value.consumers]
        return cls(
            names=numbered(labels),
            **columns(operators, "kind", "phase", "dtype", "mirror", *WORK),
            tensor_bytes=column(values, "bytes", np.float64),
            tensor_dtype=column(values, "dtype"),
            producer=column(values, "producer"),
            uses=np.array(uses, dtype=np.int64).reshape(-1, 2),
        )


@dataclass(frozen=True)
class ParameterUse:
    """A parameter of the module and everything that happens to it in one micro-batch."""

    name: str
    bytes: float
    dtype: int  # index into DTYPES
    users: tuple[int, ...]  # operators that read or write it, or produce its gradient
    gradient: int = NONE  # tensor that holds its gradient; NONE: it gets none
    update_flop: float = 0.0
    update_read: float = 0.0  # bytes
    update_written: float = 0.0  # bytes
    state_bytes: float = 0.0


def unrolled(
    name: str,
    step: MicroBatch,
    parameters: Sequence[ParameterUse],
    shared: Sequence[tuple[int, ...]],
    micro_batches: int,
) -> OpGraph:
    """The training step of M equal micro-batches with shared parameters, `a` of them trained.

    Micro-batch 0 writes its gradients straight into the gradient buffers, so those tensors have 0
    bytes beside `gradient_bytes`. In every later micro-batch m an *accumulate* operator adds the
    new gradient (a real, short-lived tensor) to the buffer; it waits for the accumulate of m - 1
    through a tensor of 0 bytes. The update of a parameter waits for its last accumulate.

    Operators stand micro-batch by micro-batch, an accumulate right behind the producer of its
    gradient, the updates at the end: M (n + a) operators. All users of a parameter, in every
    micro-batch, are one co-location group; `shared` names further sets of operators that share
    mutated state.
    """
    trained = [p for p in parameters if p.gradient != NONE]
    n, a, later = len(step.names), len(trained), micro_batches - 1
    gradient, dtype = column(trained, "gradient"), column(trained, "dtype")
    maker, buffer = step.producer[gradient], step.tensor_bytes[gradient]  # (a,), (a,) bytes
    # (n + a,) operators of a later micro-batch in order: template, then accumulates
    order = np.argsort(np.concatenate([np.arange(n) * 2, maker * 2 + 1]), kind="stable")
    # (M, n + a) where they stand in the whole graph; the first micro-batch has no accumulates
    start = n + (n + a) * np.arange(later)
    position = np.stack([np.arange(n + a), *(start[:, None] + np.argsort(order))])
    update = n + (n + a) * later + np.arange(a)

    def whole(of: NDArray[Any], accumulate: NDArray[Any], updates: ArrayLike) -> NDArray[Any]:
        """Of all operators, from those of the template, the accumulates and the updates."""
        again = np.tile(np.concatenate([of, accumulate])[order], later)
        return np.concatenate([of, again, np.array(updates, dtype=of.dtype)])

    labels = (*step.names, *(f"accumulate/{p.name}" for p in trained))
    linked = np.concatenate([step.mirror, step.mirror[maker]])
    names: list[str] = []
    mirrors: list[IntArray] = []
    for m in range(micro_batches):
        here = order if m else np.arange(n)
        names += [f"mb{m}/{labels[i]}" for i in here]
        mirrors.append(np.where(linked[here] == NONE, NONE, position[m][linked[here]]))
    names += [f"optimizer/{p.name}" for p in trained]
    groups = _groups(n, parameters, shared)
    group = groups[[p.users[0] for p in trained]]
    updates = dict(zip((p.name for p in trained), update, strict=True))
    tensor_bytes, tensor_dtype, producer, pointer, consumer = _tensors(
        step, gradient, position, update
    )
    return OpGraph(
        name=name,
        op_names=tuple(names),
        kind=whole(step.kind, _full(a, Kind.ELEMENTWISE), _full(a, Kind.UPDATE)),
        phase=whole(step.phase, _full(a, Phase.BACKWARD), _full(a, Phase.OPTIMIZER)),
        micro_batch=np.concatenate(
            [np.repeat(np.arange(micro_batches), [n] + [n + a] * later), _full(a, NONE)]
        ),
        replica=_full(len(names), 0),
        flop=whole(step.flop, np.zeros(a), [p.update_flop for p in trained]),
        bytes_read=whole(step.bytes_read, 2 * buffer, [p.update_read for p in trained]),
        bytes_written=whole(step.bytes_written, buffer, [p.update_written for p in trained]),
        op_dtype=whole(step.dtype, dtype, dtype),
        colocation=whole(groups, group, group),
        mirror=np.concatenate([*mirrors, _full(a, NONE)]),
        tensor_bytes=tensor_bytes,
        tensor_dtype=tensor_dtype,
        producer=producer,
        consumer_ptr=pointer,
        consumer=consumer,
        parameter_names=tuple(p.name for p in parameters),
        parameter_bytes=column(parameters, "bytes", np.float64),
        gradient_bytes=np.array(
            [0.0 if p.gradient == NONE else p.bytes for p in parameters], dtype=np.float64
        ),
        optimizer_bytes=column(parameters, "state_bytes", np.float64),
        parameter_owner=np.array(
            [updates.get(p.name, p.users[0] if p.users else 0) for p in parameters], dtype=np.int64
        ),
    )


def _tensors(
    step: MicroBatch, gradient: IntArray, position: IntArray, update: IntArray
) -> tuple[FloatArray, IntArray, IntArray, IntArray, IntArray]:
    """Bytes, type and producer of every tensor, and its consumers in compressed rows."""
    t, a = len(step.producer), len(gradient)
    bytes_, dtypes, producers, uses = [], [], [], []
    accumulates = position[:, len(step.names) :]
    first = 0
    for m, following in enumerate([*accumulates[1:], update]):
        nbytes = step.tensor_bytes.copy()
        bytes_.append(nbytes)
        dtypes.append(step.tensor_dtype)
        producers.append(position[m][step.producer])
        uses.append(np.stack([first + step.uses[:, 0], position[m][step.uses[:, 1]]], axis=1))
        if m == 0:
            nbytes[gradient] = 0.0  # it is the gradient buffer itself
            uses.append(np.stack([first + gradient, following], axis=1))
        else:
            uses.append(np.stack([first + gradient, accumulates[m]], axis=1))
            bytes_.append(np.zeros(a))
            dtypes.append(step.tensor_dtype[gradient])
            producers.append(accumulates[m])
            uses.append(np.stack([first + t + np.arange(a), following], axis=1))
        first += t if m == 0 else t + a
    pairs = np.unique(np.concatenate(uses), axis=0)
    count = np.bincount(pairs[:, 0], minlength=first)
    read = count > 0  # a tensor without readers is none
    return (
        np.concatenate(bytes_)[read],
        np.concatenate(dtypes)[read],
        np.concatenate(producers)[read],
        sums_before(count[read]),
        pairs[:, 1].copy(),
    )


def _groups(
    n: int, parameters: Sequence[ParameterUse], shared: Sequence[tuple[int, ...]]
) -> IntArray:
    """(n,) co-location group of each template operator, numbered as they appear; NONE: free."""
    parent = list(range(n))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    bound: set[int] = set()
    for users in [*(p.users for p in parameters), *shared]:
        bound.update(users)
        for other in users[1:]:
            parent[root(other)] = root(users[0])
    number: dict[int, int] = {}
    return np.array(
        [number.setdefault(root(i), len(number)) if i in bound else NONE for i in range(n)],
        dtype=np.int64,
    )


def _full(size: int, value: int) -> IntArray:
    return np.full(size, int(value), dtype=np.int64)
