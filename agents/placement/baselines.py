"""Plans without a search: one device, random placements, contiguous splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agents.solver import Budget
from agents.step.fitting import Attempt, Fitting, shapes
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent, StepSolver
from envs.arrays import FloatArray, IntArray, mean_able, sums_before
from envs.bounds import Count, bounded

_FINER = 3  # times that the number of groups is doubled where memory is tight


class SingleDevice(StepSolver):
    """The fastest device that can hold the whole step by itself; all devices are tried.

    When none can, the status is `infeasible` and the reason says by how many bytes the step does
    not fit the device that comes closest.

    Guarantees:
        The best of all plans that use one device.

    Source:
        The trivial yardstick.
    """

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """Needs no budget: there are D plans."""
        problem, incumbent.without_plan = incumbent.problem, "infeasible"
        count = problem.graph.num_operators
        refused: list[tuple[float, str]] = []
        for index, device in enumerate(problem.topology.devices):
            if np.isinf(problem.op_seconds[:, index]).any():
                refused.append((np.inf, f"{device.name!r} cannot run every operator"))
                continue
            excess = float(incumbent.offer(np.full(count, index, dtype=np.int64)).sum())
            short = f"{device.name!r} has {excess:.0f} bytes too few at the peak"
            refused.append((excess, f"does not fit: {short}"))
        return "" if incumbent.plan is not None else min(refused)[1]


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class RandomPlacement(StepSolver):
    """The best of `samples` random placements of the groups of the fused graph.

    Groups are placed in random order, each uniformly on one of the devices that can run it and
    still have room for its parameters and state. A sample in which a group finds no room counts
    as a sample. If none of them is feasible, more are drawn as `Fitting` says.

    Guarantees:
        None: it is the floor.

    Source:
        The trivial yardstick.

    Args:
        groups: groups of the fused graph.
        samples: placements drawn; `Budget.evaluations` lowers it.
        seed: of the generator.
    """

    groups: int = 32
    samples: Count = 16
    seed: int = 0

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """`Budget.evaluations` counts samples."""
        grouped = incumbent.group(self.groups)
        if grouped is None:
            return ""
        random = np.random.default_rng(self.seed)

        def attempt(groups: GroupedProblem, room: FloatArray) -> tuple[IntArray, None] | None:
            """None when a group finds no room."""
            free, device = room.copy(), np.zeros(groups.num_groups, dtype=np.int64)
            for group in random.permutation(groups.num_groups):
                fits = np.flatnonzero(groups.allowed[group] & (groups.state[group] <= free))
                if not len(fits):
                    return None
                device[group] = random.choice(fits)
                free[device[group]] -= groups.state[group]
            return device, None

        for sample in range(min(self.samples, budget.evaluations or self.samples)):
            if sample > 0 and incumbent.seconds > budget.seconds:
                break
            made = attempt(grouped, incumbent.problem.capacity)
            if made is not None:
                incumbent.offer(grouped.fusion.expand(made[0]))
        if incumbent.plan is None:
            fitting = Fitting(incumbent, budget)
            fitting.run(grouped, attempt)
            fitting.insist()
        return "no sample was feasible" if incumbent.plan is None else ""


class Shares(Protocol):
    """What a split balances."""

    def devices(self, grouped: GroupedProblem) -> IntArray:
        """(D,) devices in the order of their segments."""

    def weight(self, grouped: GroupedProblem) -> FloatArray:
        """(G, D) load of each group on each device, inf where it cannot be."""


class EqualShares:
    """Every device gets the same amount of work, whatever its speed; devices as numbered."""

    def devices(self, grouped: GroupedProblem) -> IntArray:
        """(D,) 0..D-1."""
        return np.arange(grouped.problem.topology.num_devices)

    def weight(self, grouped: GroupedProblem) -> FloatArray:
        """(G, D) mean seconds over the devices that can run the group."""
        return np.where(grouped.allowed, mean_able(grouped.seconds)[:, None], np.inf)


class SpeedShares:
    """Every device gets work in proportion to its speed: what an expert does by hand.

    Devices stand server by server, the fastest first.
    """

    def devices(self, grouped: GroupedProblem) -> IntArray:
        """(D,) `GroupedProblem.device_order`."""
        return grouped.device_order()

    def weight(self, grouped: GroupedProblem) -> FloatArray:
        """(G, D) seconds of the group on the device."""
        return np.where(grouped.allowed, grouped.seconds, np.inf)


@dataclass(frozen=True, eq=False, kw_only=True)
class ContiguousSplit(StepSolver):
    """The split into contiguous segments whose largest load is smallest, memory respected.

    Dynamic programming over (device, groups placed so far) finds the exact optimum of
    max_d sum of weights of d's segment, subject to the segment's state fitting the device; a
    segment may be empty. The line of devices is gone along once and, where an order is allowed that
    is made for it, twice round, and there and back. `Fitting` says what happens when memory is
    short; then more groups are tried, too.

    Guarantees:
        The smallest largest load of all contiguous splits of these groups; nothing of the step.

    Source:
        What is done by hand; as a dynamic program in Narayanan et al., "PipeDream: Generalized
        Pipeline Parallelism for DNN Training", SOSP 2019.

    Args:
        groups: groups of the fused graph.
        shares: what is balanced.
    """

    groups: int = 16
    shares: Shares = EqualShares()

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """Needs no budget, except to make room in memory."""
        fitting = Fitting(incumbent, budget)
        for finer in range(_FINER + 1):
            grouped = GroupedProblem.of(incumbent.problem, self.groups << finer)
            for devices in shapes(incumbent.problem, self.shares.devices(grouped)):
                fitting.run(grouped, self._attempt(devices))
            if not fitting.binds or not fitting.goes_on:
                break
        fitting.insist()
        return "" if incumbent.plan else "no contiguous split fits"

    def _attempt(self, devices: IntArray) -> Attempt:
        """The split whose segments are on `devices`, which may come more than once."""
        times = np.bincount(devices)[devices]

        def attempt(grouped: GroupedProblem, room: FloatArray) -> tuple[IntArray, None] | None:
            weight = self.shares.weight(grouped)[:, devices]
            segment = _split(weight, grouped.state, room[devices] / times)
            return None if segment is None else (devices[segment], None)

        return attempt


def _split(weight: FloatArray, state: FloatArray, room: FloatArray) -> IntArray | None:
    """(G,) segment of each group, or None when no contiguous split fits.

    `weight` is (G, D), `state` (G,) bytes, `room` (D,) bytes. best[g] is the smallest largest load
    of a split of the first g groups over the devices seen so far.
    """
    groups, devices = weight.shape
    held = sums_before(state)
    best = np.full(groups + 1, np.inf)
    best[0] = 0.0
    cut = np.zeros((devices, groups + 1), dtype=np.int64)  # where the segment begins
    for d in range(devices):
        finite = np.where(np.isfinite(weight[:, d]), weight[:, d], 0.0)
        load = sums_before(finite)
        barred = sums_before(~np.isfinite(weight[:, d]))
        following = best.copy()
        cut[d] = np.arange(groups + 1)
        for end in range(1, groups + 1):
            begin = np.arange(end)
            fits = (held[end] - held[begin] <= room[d]) & (barred[end] == barred[begin])
            value = np.where(fits, np.maximum(best[:end], load[end] - load[begin]), np.inf)
            first = int(value.argmin())
            if value[first] < following[end]:
                following[end], cut[d, end] = value[first], first
        best = following
    if np.isinf(best[groups]):
        return None
    segment = np.zeros(groups, dtype=np.int64)
    end = groups
    for d in range(devices - 1, -1, -1):
        segment[cut[d, end] : end] = d
        end = int(cut[d, end])
    return segment
