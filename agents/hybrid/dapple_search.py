"""DAPPLE's space: the best pipeline whose slowest stage keeps to a limit.

What is left of a pipeline is known by its first layer, the devices of its first stage and those
still free. For a limit on the time of every stage and every transfer, such rests are made from the
last layer to the first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agents.hybrid.limits import Limited
from agents.hybrid.machines import Groups, Rates
from agents.hybrid.pipedream import Cuts
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled

_ROUNDING = 1 + 1e-12  # of limits that a stage just keeps to
_NONE = -1


PlacedStage = tuple[int, int, int]  # first cut, end, step


class Weights(NamedTuple):
    """What is known of groups and cuts, and what a plan costs besides its slowest stage.

    U steps and V arcs of `Groups`, S + 1 cuts. All seconds and bytes are of all micro-batches
    together, but `saved`.
    """

    size: FloatArray  # (U,) devices of a step's group, descending
    summed: FloatArray  # (U,) seconds per byte of gradients
    moved: FloatArray  # (V,) seconds per byte of activations
    gradients: FloatArray  # (S + 1,) bytes up to a cut, where a stage ends there
    state: FloatArray  # (S + 1,) bytes of each replica up to a cut
    saved: FloatArray  # (S + 1,) bytes up to a cut for each micro-batch under way
    capacity: float  # bytes of a device
    passes: float  # transfers of a cut's bytes must keep to the limit together
    rounds: float  # micro-batches
    through: float  # share of a stage's seconds that the first micro-batch adds
    over: float  # share of a transfer's


def speeds(groups: Groups, rates: Rates) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The first three columns of `Weights`."""
    steps = [step.group for step in groups.steps]
    return (
        np.array([float(sum(group)) for group in steps]),
        np.array([rates.summing(group) for group in steps]),
        np.array([rates.moving(steps[a], steps[b]) for a, b in groups.arcs]),
    )


def limits(cuts: Cuts, weights: Weights) -> FloatArray:
    """What a slowest stage or transfer can take, ascending."""
    work = (cuts.seconds - cuts.seconds[:, None])[cuts.before]
    stages = work[:, None] / np.unique(weights.size)
    transfers = weights.passes * cuts.sent[:, None] * np.unique(weights.moved)
    return np.unique(np.concatenate([stages.ravel(), transfers.ravel()]))


class Solver:
    """The plan of a limit with the fewest seconds besides its slowest stage.

    Of two rests that sum late and little, or early and much, the one with the smaller sum is kept.
    """

    def __init__(self, cuts: Cuts, groups: Groups, weights: Weights) -> None:
        arcs = np.array(groups.arcs, dtype=np.int64).reshape(-1, 2)
        order = np.argsort(arcs[:, 0], kind="stable")
        counts = np.bincount(arcs[:, 0], minlength=len(groups.steps))
        self._pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._following = np.ascontiguousarray(arcs[order, 1])
        self._first = np.array(groups.first, dtype=np.int64)
        self._cuts = cuts
        self._weights = weights._replace(moved=weights.moved[order])

    def __call__(self, limit: float) -> Limited[list[PlacedStage]] | None:
        """The plan whose stages and transfers take no longer than `limit`; None: there is none."""
        cuts = self._cuts
        cost, late, top, end, following = _rests(
            limit, cuts.seconds, cuts.parameters, cuts.sent, cuts.before, *self._weights,
            self._pointer, self._following,
        )  # fmt: skip
        total = cost[0, self._first] + late[0, self._first]
        start = int(np.argmin(total))
        if not np.isfinite(total[start]):
            return None
        stages: list[PlacedStage] = []
        cut, step = 0, int(self._first[start])
        while cut != len(cuts.seconds) - 1:
            stages.append((cut, int(end[cut, step]), step))
            cut = stages[-1][1]
            step = int(following[cut, step])
        return Limited(float(top[0, self._first[start]]), float(total[start]), stages)


@compiled
def _rests(
    limit: float,
    seconds: FloatArray,
    parameters: FloatArray,
    sent: FloatArray,
    before: BoolArray,
    size: FloatArray,
    summed: FloatArray,
    moved: FloatArray,
    gradients: FloatArray,
    state: FloatArray,
    saved: FloatArray,
    capacity: float,
    passes: float,
    rounds: float,
    through: float,
    over: float,
    pointer: IntArray,
    following: IntArray,
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray, IntArray]:
    """Of the rests that begin at a cut with a step: (S + 1, U) each.

    The seconds that add up; those by which sums of gradients end late; those of the slowest stage
    or transfer; where the first stage ends; and, for a stage of this step that ends at this cut,
    the step behind it.
    """
    last, steps = len(seconds) - 1, len(size)
    cost, late = np.full((last + 1, steps), np.inf), np.zeros((last + 1, steps))
    top, behind_top = np.zeros((last + 1, steps)), np.zeros((last + 1, steps))
    end = np.full((last + 1, steps), _NONE)
    behind_cost = np.full((last + 1, steps), np.inf)  # of the best rest after a stage of a step
    behind_late = np.zeros((last + 1, steps))
    depth = np.zeros((last + 1, steps), dtype=np.int64)  # stages of that rest
    own = np.zeros((last + 1, steps), dtype=np.int64)
    best_step = np.full((last + 1, steps), _NONE)
    behind_cost[last] = 0.0
    for k in range(last - 1, -1, -1):
        for j in range(k + 1, last + 1):
            work = seconds[j] - seconds[k]
            if not before[k, j]:
                continue
            owed = gradients[j] - parameters[k]
            held, kept = state[j] - state[k], saved[j] - saved[k]
            for u in range(steps):
                if work > limit * size[u] * _ROUNDING:
                    break
                under_way = min(depth[j, u] + 1.0, rounds)
                if behind_cost[j, u] == np.inf or held + under_way * kept / size[u] > capacity:
                    continue
                total = behind_cost[j, u] + work / size[u] * through
                delay = max(behind_late[j, u], owed * summed[u])
                if total + delay < cost[k, u] + late[k, u]:
                    cost[k, u], late[k, u] = total, delay
                    top[k, u] = max(behind_top[j, u], work / size[u])
                    end[k, u], own[k, u] = j, depth[j, u] + 1
        if k == 0:
            break
        for u in range(steps):
            for arc in range(pointer[u], pointer[u + 1]):
                v = following[arc]
                move = moved[arc] * sent[k]
                if cost[k, v] == np.inf or passes * move > limit * _ROUNDING:
                    continue
                total = cost[k, v] + move * over
                delay = max(0.0, late[k, v] - limit / rounds)
                if total + delay < behind_cost[k, u] + behind_late[k, u]:
                    behind_cost[k, u], behind_late[k, u] = total, delay
                    behind_top[k, u] = max(top[k, v], passes * move)
                    depth[k, u], best_step[k, u] = own[k, v], v
    return cost, late, top, end, best_step
