"""Seconds and costs of one batch on workers in groups, each group a pipeline with a share of it.

Reconstructed after Ling et al., "Joint Dynamic Data and Model Parallelism for Distributed Training
of DNNs Over Heterogeneous Infrastructure", IEEE TPDS 2025, of which only the abstract was at hand.

Group g takes e_g + a_g x_g seconds for x_g samples. a_g is the slowest of its stages and ports; e_g
is what the first sample takes beyond it, and the synchronisation of gradients at the end. All that
have a share end together at tau, so that tau = (B + sum e/a) / sum(1/a) over them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.bounds import Count, Positive, bounded
from envs.compilation import compiled, compiled_inner

Groups = tuple[tuple[int, ...], ...]  # the workers of each group, in the order of its stages

COSTS = ("rent", "traffic")  # of a batch: of the workers that take part; bytes over the network
_CLOSE = 1e-12  # relative: not earlier


@dataclass(frozen=True, eq=False)
class Layers:
    """L layers in a row, timed on a device of speed 1."""

    seconds: FloatArray  # (L,) forward and backward of one sample
    cut_bytes: FloatArray  # (L + 1,) of one sample before each layer, back as many; 0 at the ends
    gradient_bytes: FloatArray  # (L,)


@bounded
def transformer(
    blocks: Count = 12,  # layers that are kept together
    per_block: Count = 2,  # blocks of the model in each
    hidden: Count = 1024,
    sequence: Count = 512,  # tokens of a sample
    flops: Positive = 5.0e13,  # reached by a worker of speed 1
    number_bytes: Count = 2,  # of an activation or a gradient
) -> Layers:
    """`blocks` equal layers, each of `per_block` blocks of a transformer; a sample is a sequence.

    A block is 24 s h^2 + 4 s^2 h FLOP forward, twice that backward, and 12 h^2 parameters
    (Narayanan et al., SC 2021, section 5.1); `flops` are reached by the device of speed 1.
    """
    forward = per_block * (24.0 * sequence * hidden**2 + 4.0 * sequence**2 * hidden)
    cut = np.full(blocks + 1, float(sequence * hidden * number_bytes))
    cut[[0, -1]] = 0.0
    gradient = np.full(blocks, per_block * 12.0 * hidden**2 * number_bytes)
    return Layers(np.full(blocks, 3.0 * forward / flops), cut, gradient)


class Pipeline(NamedTuple):
    """A group, its stages and its share of the batch."""

    workers: tuple[int, ...]
    ends: tuple[int, ...]  # of each stage, the layer after its last
    share: float  # samples, not rounded; those of a plan sum up to B


Plan = tuple[Pipeline, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """A plan in a slot."""

    plan: Plan
    seconds: float
    cost: FloatArray  # (2,) as `COSTS`

    @property
    def groups(self) -> Groups:
        return tuple(pipeline.workers for pipeline in self.plan)


class BatchTime:
    """Batches of `samples` samples in a slot; what was found once is kept.

    Args:
        layers: of the model.
        samples: B.
        slot: (W, 3) of `Slots`.
    """

    def __init__(self, layers: Layers, samples: float, slot: FloatArray) -> None:
        self.layers, self.samples = layers, samples
        self.speed, self.bandwidth, self.rent = slot.T
        self._below = sums_before(layers.seconds), sums_before(layers.gradient_bytes)
        self._fronts: dict[tuple[int, ...], tuple[FloatArray, IntArray]] = {}
        self._best: dict[Groups, Batch] = {}

    def best(self, groups: Groups) -> Batch:
        """The fastest stages and shares of these groups, exactly.

        A group that should get no samples is left out, and the others synchronise without it.
        """
        if groups in self._best:
            return self._best[groups]
        for group in groups:
            room = 16
            while group not in self._fronts or not len(self._fronts[group][0]):
                room *= 2
                self._fronts[group] = front(self._row(group), room)
        labels, ends = zip(*(self._fronts[group] for group in groups), strict=True)
        start = np.cumsum([0, *map(len, labels)])
        seconds, share, row = divided(
            np.concatenate(labels), start, _rings(len(groups)), self.samples
        )
        if all(share):
            own = (tuple(e[k].tolist()) for e, k in zip(ends, row, strict=True))
            plan = tuple(map(Pipeline, groups, own, share.tolist()))
            found = Batch(plan, seconds, self._cost(plan))
        else:
            found = self.best(tuple(itertools.compress(groups, share)))
        self._best[groups] = found
        return found

    def of(self, plan: Plan) -> Batch:
        """The same plan, made for another slot."""
        seconds = 0.0
        for group, ends, share in plan:
            row, pieces = self._row(group), enumerate(itertools.pairwise((0, *ends)))
            slower, fill, rings = zip(*(stage(row, k, *piece) for k, piece in pieces), strict=True)
            fixed = sum(fill) - max(slower) + _rings(len(plan)) * max(rings)
            seconds = max(seconds, fixed + max(slower) * share)
        return Batch(plan, seconds, self._cost(plan))

    def moving(self, before: Plan, after: Plan) -> float:
        """Seconds until every worker has the parameters of its layers that it did not have."""
        held = np.zeros((2, len(self.speed), len(self.layers.seconds)), dtype=np.bool_)
        for now, plan in zip(held, (before, after), strict=True):
            for group, ends, _ in plan:
                for worker, (first, end) in zip(group, itertools.pairwise((0, *ends)), strict=True):
                    now[worker, first:end] = True
        return float(((held[1] & ~held[0]) @ self.layers.gradient_bytes / self.bandwidth).max())

    def _row(self, group: tuple[int, ...]) -> Row:
        own = list(group)
        return Row(*self._below, self.layers.cut_bytes, self.speed[own], self.bandwidth[own])

    def _cost(self, plan: Plan) -> FloatArray:
        cost = np.array([0.0, 2.0 * (len(plan) - 1) * self._below[1][-1]])
        for group, ends, share in plan:
            sent = 2.0 * share * self.layers.cut_bytes[list(ends)].sum()
            cost += self.rent[list(group)].sum(), sent
        return cost


def _rings(groups: int) -> float:
    """Bytes that a ring all-reduce sends out of each member, over twice the bytes reduced."""
    return (groups - 1) / groups


class Row(NamedTuple):
    """The workers of a group in their order, and the layers that they divide."""

    seconds: FloatArray  # (L + 1,) of all layers before each
    gradient: FloatArray  # (L + 1,) bytes, likewise
    cut: FloatArray  # (L + 1,) bytes of a sample before each
    speed: FloatArray  # (K,)
    port: FloatArray  # (K,) bytes/s


@compiled
def stage(row: Row, k: int, first: int, end: int) -> tuple[float, float, float]:
    """Layers first..end-1 as the k-th stage of a group.

    Returns:
        Seconds of a sample in the slower of worker and port; of the first sample, with its way from
        the stage before and back; of sending all gradients out twice.
    """
    cut, port = row.cut, row.port
    compute = (row.seconds[end] - row.seconds[first]) / row.speed[k]
    transfer = 2.0 * cut[first] / min(port[k - 1], port[k]) if k else 0.0
    slower = max(compute, (cut[first] + cut[end]) / port[k])
    return slower, compute + transfer, 2.0 * (row.gradient[end] - row.gradient[first]) / port[k]


@compiled
def front(row: Row, room: int) -> tuple[FloatArray, IntArray]:
    """All cuts into stages but those that another is as good as in every respect.

    A dynamic program over stages and layers that keeps the Pareto front of every state: what the
    first k stages make of the layers before `end`.

    Returns:
        (n, 3) slowest stage, fill, longest synchronisation; (n, K) the end of each stage. Empty
        where a state has more than `room` that are worth keeping.
    """
    stages, layers = len(row.speed), len(row.cut) - 1
    label = np.zeros((stages + 1, layers + 1, room, 3))
    ends = np.zeros((stages + 1, layers + 1, room, stages), dtype=np.int64)
    count = np.zeros((stages + 1, layers + 1), dtype=np.int64)
    count[0, 0] = 1
    for k in range(stages):
        left = stages - 1 - k
        for end in range(k + 1 if left else layers, layers - left + 1):
            for first in range(k, end):
                a, e, y = stage(row, k, first, end)
                for i in range(count[k, first]):
                    old = label[k, first, i]
                    new = max(a, old[0]), e + old[1], max(y, old[2])
                    size = _keep(label[k + 1, end], ends[k + 1, end], count[k + 1, end], new)
                    if size == room:
                        return label[0, 0, :0].copy(), ends[0, 0, :0].copy()
                    if size >= 0:
                        label[k + 1, end, size] = new
                        ends[k + 1, end, size] = ends[k, first, i]
                        ends[k + 1, end, size, k] = end
                        count[k + 1, end] = size + 1
    found = count[stages, layers]
    return label[stages, layers, :found].copy(), ends[stages, layers, :found].copy()


@compiled_inner
def _keep(label: FloatArray, ends: IntArray, count: int, new: tuple[float, float, float]) -> int:
    """Drop labels that `new` is as good as; how many are left, -1 where one is as good as it."""
    kept = 0
    for j in range(count):
        a, e, y = label[j]
        if a <= new[0] and e <= new[1] and y <= new[2]:
            return -1  # nothing has been dropped: that would be as good as what it is dropped for
        if new[0] > a or new[1] > e or new[2] > y:
            label[kept], ends[kept] = label[j], ends[j]
            kept += 1
    return kept


@compiled
def divided(
    label: FloatArray, start: IntArray, rings: float, samples: float
) -> tuple[float, FloatArray, IntArray]:
    """Least tau, shares, and the row of each group, whose rows of `label` begin at `start[g]`.

    What groups finish by tau, each with its best row, is convex and piecewise linear in tau, so
    that Newton's steps from above end at the tau at which it is `samples`: each is tau =
    (B + sum e/a) / sum(1/a) over the groups with e < tau, the only ones with a share.
    """
    fixed = label[:, 1] - label[:, 0] + rings * label[:, 2]
    rows = start[:-1].copy()
    tau = np.inf
    while True:
        load, rate = samples, 0.0
        for row in rows:
            if fixed[row] < tau:
                load += fixed[row] / label[row, 0]
                rate += 1.0 / label[row, 0]
        if not load / rate < tau * (1.0 - _CLOSE):
            share = np.maximum(0.0, (tau - fixed[rows]) / label[rows, 0])
            return tau, share, rows - start[:-1]
        tau = load / rate
        for g in range(len(rows)):
            own = slice(start[g], start[g + 1])
            rows[g] = start[g] + np.argmax((tau - fixed[own]) / label[own, 0])
