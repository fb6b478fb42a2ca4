"""Drift plus penalty: least time under budgets that hold on average, slot by slot.

A virtual queue per budget grows by what a slot spends beyond it and shrinks by what is left. In a
slot the action is taken with least V * time + sum of queue * cost. Whatever happens, the average
cost is at most budget + queue(T) / T; where states are independent and alike, the average time is
at most B / V above the optimum, B = sum of max (cost - budget)^2 / 2 (Neely, Stochastic Network
Optimization with Application to Communication and Queueing Systems, 2010, chapter 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agents.hybrid.grouping import search
from envs.arrays import FloatArray
from envs.hybrid.batch_time import Batch, BatchTime, GroupPlan, Groups

# What a policy does with a slot, given the queues (K,) and the groups of the slot before, if any.
Policy = Callable[[BatchTime, FloatArray, Sequence[Groups]], Batch]


@dataclass(frozen=True)
class Static:
    """The same plan in every slot."""

    plan: GroupPlan

    def __call__(self, batch: BatchTime, queue: FloatArray, before: Sequence[Groups]) -> Batch:
        """The batch of the plan in this slot."""
        del queue, before
        return batch.of(self.plan)


@dataclass(frozen=True, eq=False)
class Greedy:
    """The fastest plan of every slot by itself, within `limit` (K,) in each."""

    limit: FloatArray

    def __call__(self, batch: BatchTime, queue: FloatArray, before: Sequence[Groups]) -> Batch:
        """The batch of the plan that is found."""
        del queue
        return search(batch, before, limit=self.limit)


@dataclass(frozen=True, eq=False)
class Lyapunov:
    """Drift plus penalty with groups that are searched for.

    `weight` is V where time counts in `scale` seconds, and queues and costs in budgets of a slot.
    """

    weight: float
    scale: float
    budget: FloatArray  # (K,)

    def __call__(self, batch: BatchTime, queue: FloatArray, before: Sequence[Groups]) -> Batch:
        """The batch of the plan that is found."""
        price = queue / self.budget * (self.scale / self.weight)
        return search(batch, before, price=price)


@dataclass(frozen=True, eq=False)
class Played:
    """What a policy did in T slots."""

    batches: tuple[Batch, ...]
    spent: FloatArray  # (T, K) budgets of a slot
    queue: FloatArray  # (T, K) budgets of a slot, after each
    moving: (
        FloatArray  # (T,) seconds to bring parameters to where they were not; in no batch's time
    )

    @property
    def seconds(self) -> FloatArray:
        """(T,) of the batches."""
        return np.array([batch.seconds for batch in self.batches])


def play(policy: Policy, slots: Sequence[BatchTime], budget: FloatArray) -> Played:
    """Let a policy decide slot after slot; `budget` (K,), inf where there is none."""
    queue = np.zeros(len(budget))
    batches: list[Batch] = []
    spent, queues, moving = [], [], []
    for slot in slots:
        before = [batch.plan for batch in batches[-1:]]
        batch = policy(slot, queue, [plan.groups for plan in before])
        moving.append(sum(slot.moving(plan, batch.plan) for plan in before))
        spent.append(batch.cost / budget)
        queue = np.maximum(queue + spent[-1] - 1.0, 0.0)
        queues.append(queue)
        batches.append(batch)
    return Played(tuple(batches), np.array(spent), np.array(queues), np.array(moving))


def best_kept(slots: Sequence[BatchTime], budget: FloatArray, played: Sequence[Played]) -> Static:
    """Of all plans that any policy had in some slot, the one that should have been kept.

    Least average seconds, of those whose average costs keep to `budget`.
    """
    plans = {batch.plan: None for own in played for batch in own.batches}

    def kept(plan: GroupPlan) -> tuple[float, float]:
        batches = [slot.of(plan) for slot in slots]
        spent = np.mean([batch.cost / budget for batch in batches], axis=0)
        return max(0.0, float(spent.max()) - 1.0), float(np.mean([b.seconds for b in batches]))

    return Static(min(plans, key=kept))


def even(batch: BatchTime) -> GroupPlan:
    """Plain data parallelism: every worker has all layers and an equal share."""
    workers = range(batch.num_workers)
    ends = ((len(batch.layers.seconds),),) * len(workers)
    share = batch.samples / len(workers)
    return GroupPlan(tuple((worker,) for worker in workers), ends, (share,) * len(workers))
