"""DAPPLE's published program, written out: its formula, and the best plan of its space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from agents.hybrid.choice import best_of_limits
from agents.hybrid.dapple import Weights, limits, solver, speeds
from agents.hybrid.machines import Group, Groups, Rates, all_groups
from agents.hybrid.pipedream import Cuts
from envs.compilation import clock
from envs.graphs.op_graph import FloatArray

PROGRAM = Rates(inside=25e9, between=1e9, collective=3e9, pairs=True)  # HPGO 0.9.2


class GroupStage(NamedTuple):
    """The layers between two cuts, on so many devices of each machine."""

    first: int
    end: int
    group: Group


def latency(
    cuts: Cuts,
    stages: Sequence[GroupStage],
    rates: Rates,
    *,
    batch: int,
    replicas: int,
    passes: float | None = None,
) -> float:
    """Seconds of a step by the formula of DAPPLE's published program (HPGO 0.9.2).

    T = t (M - 1) + C / (r M) + transfers of a micro-batch + what sums of gradients end late by,
    where t = slowest / M and M = batch / r. Its ways are kept: the second term counts all layers on
    one device, and a stage that is not the last sums the first layer behind it too.

    Args:
        cuts: of all layers and the whole batch.
        stages: in a row.
        rates: of the cluster.
        batch: micro-batches of the least size.
        replicas: r, of the whole pipeline, which its stages are made of.
        passes: of a micro-batch over a cut, which are compared with the slowest stage: 1 where
            PipeDream's plans are compared; None: 2, there and back, but 1 in pipelines of two.
    """
    micro_batches, passes = batch // replicas, passes or (1.0 if len(stages) == 2 else 2.0)
    computing = [(cuts.seconds[s.end] - cuts.seconds[s.first]) / sum(s.group) for s in stages]
    moving = [rates.moving(a.group, b.group) * cuts.sent[a.end] for a, b in pairwise(stages)]
    per_batch = max(computing + [passes * seconds for seconds in moving]) / micro_batches
    paid = _paid(cuts)
    late = max(
        rates.summing(stage.group) * (paid[stage.end] - cuts.parameters[stage.first])
        - place * per_batch
        for place, stage in enumerate(stages)
    )
    one = (cuts.seconds[-1] + sum(moving)) / (replicas * micro_batches)
    return float(per_batch * (micro_batches - 1) + one + max(0.0, late))


def search(
    cuts: Cuts, machines: Sequence[int], rates: Rates, *, batch: int, budget_s: float
) -> float:
    """The least `latency` of plans on machines of so many devices.

    All numbers of replicas of the pipeline are tried that the program tries, and all groups that
    the three policies of placement reach; pipelines of two stages one by one.
    """
    until = clock() + budget_s
    devices, nothing = sum(machines), np.zeros(len(cuts.seconds))
    best = np.inf
    for replicas in sorted({devices // units for units in range(1, devices + 1)})[::-1]:
        groups, rounds = all_groups(machines, replicas), batch // replicas
        if groups is None or not rounds:
            continue
        weights = Weights(
            *speeds(groups, rates), _paid(cuts), state=nothing, saved=nothing, capacity=np.inf,
            passes=2.0, rounds=float(rounds), through=0.0, over=1.0 / (replicas * rounds),
        )  # fmt: skip
        once = float(cuts.seconds[-1]) / (replicas * rounds)
        plans = list(_two_stages(cuts, groups, rates, rounds, replicas))
        for found in best_of_limits(
            solver(cuts, groups, weights), limits(cuts, weights), (rounds - 1) / rounds, until,
            None, best - once,
        ):  # fmt: skip
            plans.append([GroupStage(a, b, groups.steps[step].group) for a, b, step in found.plan])
        for plan in plans:
            best = min(best, latency(cuts, plan, rates, batch=batch, replicas=replicas))
    return best


def _two_stages(
    cuts: Cuts, groups: Groups, rates: Rates, micro_batches: int, replicas: int
) -> Iterator[list[GroupStage]]:
    """For every two groups the best cut between them."""
    paid, first = _paid(cuts)[:-1], set(groups.first)
    whole, inner = cuts.seconds[-1], slice(1, -1)
    for step, following in groups.arcs:
        if step not in first:
            continue
        group, after = groups.steps[step].group, groups.steps[following].group
        moved = rates.moving(group, after) * cuts.sent
        block = np.maximum(cuts.seconds / sum(group), (whole - cuts.seconds) / sum(after))
        per_batch = np.maximum(block, moved)[inner] / micro_batches
        late = np.maximum(
            rates.summing(group) * paid[1:],
            rates.summing(after) * (cuts.parameters[-1] - cuts.parameters[inner]) - per_batch,
        )
        total = per_batch * (micro_batches - 1) + np.maximum(late, 0.0)
        total += moved[inner] / (replicas * micro_batches)
        cut = int(np.argmin(total)) + 1
        yield [GroupStage(0, cut, group), GroupStage(cut, len(cuts.seconds) - 1, after)]


def _paid(cuts: Cuts) -> FloatArray:
    """(S + 1,) bytes of parameters up to a cut and of the layer behind it."""
    return np.append(cuts.parameters[1:], cuts.parameters[-1])
