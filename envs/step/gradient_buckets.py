"""Buckets of gradients: what data-parallel replicas reduce together.

Li et al., PyTorch distributed: experiences on accelerating data parallel training, VLDB 13(12),
2020, sections 3.2.2 and 3.2.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.units import MEBI

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class BucketRule:
    """A bucket is closed as soon as it holds `size` bytes or more; the first one `first` bytes.

    A size of inf makes one bucket of everything, which nothing overlaps.

    Raises:
        InputError: a size is not positive.
    """

    first: float  # bytes
    size: float  # bytes

    def __post_init__(self) -> None:
        for field, value in (("first", self.first), ("size", self.size)):
            if not value > 0:
                raise InputError(f"{value} bytes is no size of a bucket", field=field)


PYTORCH = BucketRule(first=1 * MEBI, size=25 * MEBI)  # DistributedDataParallel, as it comes
ONE_BUCKET = BucketRule(first=np.inf, size=np.inf)


@dataclass(frozen=True)
class Bucket:
    """Parameters of one device whose gradients are reduced together."""

    device: int  # of the plan
    parameters: tuple[int, ...]  # in the order their gradients are ready
    size: float  # bytes of their gradients


@dataclass(frozen=True)
class Gradient:
    """What makes a parameter's gradient and what reads it."""

    makers: tuple[int, ...]  # operators that are no updates and feed one of the updates, ascending
    updates: tuple[int, ...]  # operators, ascending


def gradients(graph: OpGraph) -> dict[int, Gradient]:
    """The gradient of each trained parameter: of each one that has gradient bytes.

    A parameter's update is its owner; where that is no optimizer's operator, all those of its
    co-location group. What they read from other operators is the gradient: in a captured graph the
    sum that the last micro-batch leaves.

    Raises:
        InputError: a trained parameter has no update, or none that reads a gradient.
    """
    edges = graph.edges
    update = graph.phase == Phase.OPTIMIZER
    makers: dict[int, set[int]] = {int(op): set() for op in np.flatnonzero(update)}
    for producer, consumer, _ in edges[update[edges[:, 1]] & ~update[edges[:, 0]]]:
        makers[int(consumer)].add(int(producer))
    in_group: dict[int, list[int]] = {}
    for op in makers:
        in_group.setdefault(int(graph.colocation[op]), []).append(op)
    in_group.pop(NONE, None)
    found = {}
    for parameter in np.flatnonzero(graph.gradient_bytes > 0):
        owner = int(graph.parameter_owner[parameter])
        updates = [owner] if update[owner] else in_group.get(int(graph.colocation[owner]), [])
        made = sorted(set().union(*(makers[op] for op in updates)))
        if not made:
            raise InputError(
                "has a gradient that no update reads",
                file=f"graph {graph.name}",
                record=graph.parameter_names[parameter],
            )
        found[int(parameter)] = Gradient(tuple(made), tuple(updates))
    return found


def gradient_buckets(
    graph: OpGraph, device: IntArray, order: IntArray, rule: BucketRule
) -> tuple[Bucket, ...]:
    """The buckets of placement `device` (N,) in `order` (N,): device after device, first to last.

    Gradients go into buckets in the order in which their device makes them, which is what PyTorch
    arrives at after the first step. Every device has buckets of its own.

    Raises:
        InputError: as `gradients`.
    """
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    ready = {p: max(position[list(g.makers)]) for p, g in gradients(graph).items()}
    home = device[graph.parameter_owner]
    buckets = []
    for own in sorted({int(home[p]) for p in ready}):
        here: list[int] = []
        limit = rule.first
        for p in sorted((p for p in ready if home[p] == own), key=lambda p: (ready[p], p)):
            here.append(p)
            if graph.gradient_bytes[here].sum() >= limit:
                buckets.append(_bucket(graph, own, here))
                here, limit = [], rule.size
        if here:
            buckets.append(_bucket(graph, own, here))
    return tuple(buckets)


def updates_last(graph: OpGraph, order: IntArray) -> IntArray:
    """(N,) `order` with the optimizer's operators behind all others.

    Every device then runs its updates when its backward pass is over, as frameworks do; an update
    that waits for its bucket holds up no gradient.

    Raises:
        InputError: an operator that is no update reads what an update makes.
    """
    update = graph.phase == Phase.OPTIMIZER
    edges = graph.edges
    for producer, consumer, _ in edges[update[edges[:, 0]] & ~update[edges[:, 1]]]:
        raise InputError(
            f"feeds {graph.op_names[consumer]!r}, which is no update",
            file=f"graph {graph.name}",
            record=graph.op_names[producer],
        )
    return np.concatenate([order[~update[order]], order[update[order]]])


def updates_by_bucket(graph: OpGraph, order: IntArray, buckets: tuple[Bucket, ...]) -> IntArray:
    """(N,) `updates_last`, the updates in the order in which their buckets are reduced.

    An update then need not wait for the buckets behind its own.

    Raises:
        InputError: as `updates_last` and `gradients`.
    """
    number = np.zeros(graph.num_operators, dtype=np.int64)
    found = gradients(graph)
    for index, bucket in enumerate(buckets):
        for parameter in bucket.parameters:
            updates = list(found[parameter].updates)
            number[updates] = np.maximum(number[updates], index)
    last = updates_last(graph, order)
    first = int((graph.phase != Phase.OPTIMIZER).sum())
    last[first:] = last[first:][np.argsort(number[last[first:]], kind="stable")]
    return last


def _bucket(graph: OpGraph, device: int, parameters: list[int]) -> Bucket:
    return Bucket(device, tuple(parameters), float(graph.gradient_bytes[parameters].sum()))
