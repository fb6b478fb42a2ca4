"""Devices as machines that are alike, and the groups that DAPPLE gives to a stage after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agents.solver import DirectSolver, Result
from envs.arrays import FloatArray, sums_before
from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.hybrid.plan import HybridPlan, Stage
from envs.hybrid.problem import HybridProblem
from envs.hybrid.timing import all_reduce_seconds

PREDICTED = "predicted_s"  # the figure of a result: what the solver's own formula says of its plan


class HybridSolver(DirectSolver[HybridProblem, HybridPlan]):
    """Divides layers in a row into stages on groups of devices, replicated and sharded."""

    solves = (HybridProblem,)


def planned(
    plan: HybridPlan, predicted: float, evaluations: int = 0, **formula: float
) -> Result[HybridPlan]:
    """A plan with its predicted seconds of a step, and further figures of the formula."""
    figures = {PREDICTED: predicted, **formula}
    return Result(plan, "feasible", evaluations=evaluations, figures=figures)


def spans(values: FloatArray) -> FloatArray:
    """(L + 1, L + 1, ...) sums of the rows i..j-1 of `values` (L, ...)."""
    total = sums_before(values)
    return np.asarray(total[None, :] - total[:, None])


def sum_line(problem: HybridProblem, stage: Stage, nbytes: float) -> tuple[float, float]:
    """Seconds in which replicas sum nothing, and those of each byte, taken from `nbytes`."""
    once = all_reduce_seconds(problem, stage, 0.0)
    return once, (all_reduce_seconds(problem, stage, nbytes) - once) / nbytes


Group = tuple[int, ...]  # devices on each machine

_MOST = 4000  # steps that a plan is searched in


def servers_of(topology: Topology) -> list[list[int]]:
    """The devices of every server that has some."""
    found: dict[int, list[int]] = {}
    for device, server in enumerate(topology.server.tolist()):
        found.setdefault(server, []).append(device)
    return list(found.values())


@dataclass(frozen=True)
class Pool:
    """Devices of one kind: whole servers of equal size."""

    servers: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """Server by server."""
        return sum(self.servers, ())

    @property
    def sizes(self) -> list[int]:
        """Of groups: powers of two inside a server, whole servers beyond."""
        inside, whole = len(self.servers[0]), len(self.servers)
        small = [2**k for k in range(inside.bit_length()) if 2**k < inside]
        return [*small, *(inside * count for count in range(1, whole + 1))]


@dataclass(frozen=True)
class Rates:
    """What passes between the devices of machines, bytes/s."""

    inside: float  # a machine, between two devices
    between: float  # from one machine to another
    collective: float  # among devices of several machines
    pairs: bool  # inside a machine, every two devices add a ring for sums

    @staticmethod
    def slowest(topology: Topology) -> Rates:
        """Those of the slowest link within a server, and between two; inf where there is none."""
        same = topology.server[:, None] == topology.server
        apart = ~np.eye(topology.num_devices, dtype=np.bool_)
        within, between = topology.bandwidth[same & apart], topology.bandwidth[~same]
        slowest = float(between.min(initial=np.inf))
        return Rates(float(within.min(initial=np.inf)), slowest, slowest, pairs=False)

    def moving(self, source: Group, destination: Group) -> float:
        """Seconds per byte from one group to another."""
        if sum(count > 0 for count in destination) > 1:
            return 1.0 / self.collective
        outside = sum(a for a, b in zip(source, destination, strict=True) if b == 0)
        return outside / sum(source) / self.between if outside else 1.0 / self.inside

    def summing(self, group: Group) -> float:
        """Seconds per byte of gradients that a group sums."""
        count = sum(group)
        once = 2 * (count - 1) / count
        if sum(part > 0 for part in group) > 1:
            return once / self.collective
        return once / self.inside / (max(1, count // 2) if self.pairs else 1)


class Step(NamedTuple):
    """The group of a stage, and what was free before."""

    left: Group
    group: Group

    @property
    def after(self) -> Group:
        """What is free behind it."""
        return tuple(a - b for a, b in zip(self.left, self.group, strict=True))

    def devices(self, servers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The group's devices: machines are used from their first device on."""
        parts = zip(servers, self.left, self.group, strict=True)
        return tuple(d for server, left, count in parts for d in server[-left:][:count])


class Groups(NamedTuple):
    """All steps from a cluster without stages on, and which follow which."""

    steps: list[Step]  # the largest groups first
    first: list[int]  # steps of a first stage
    arcs: list[tuple[int, int]]  # step, next step


def all_groups(sizes: Sequence[int], unit: int) -> Groups | None:
    """What three policies reach on machines of so many devices; None: too many to search.

    A stage takes its devices from fresh machines first, from machines in use first, or from all in
    turn (Fan et al., "DAPPLE", PPoPP 2021, section 4.3). Groups are multiples of `unit` devices,
    which are taken one time after the other, by any policy each.
    """
    steps: dict[Group, list[Step]] = {}  # by what is free before
    waiting = [tuple(sizes)]
    while waiting:
        left = waiting.pop()
        if left not in steps:
            steps[left] = [Step(left, group) for group in sorted(_groups(sizes, left, unit))]
            waiting += [step.after for step in steps[left]]
        if sum(map(len, steps.values())) > _MOST:
            return None
    every = sorted((s for some in steps.values() for s in some), key=lambda s: -sum(s.group))
    number = {step: place for place, step in enumerate(every)}
    arcs = [(number[step], number[then]) for step in every for then in steps[step.after]]
    return Groups(every, [number[step] for step in steps[tuple(sizes)]], arcs)


def few_groups(sizes: Sequence[int]) -> Groups:
    """All groups of single devices, or of bunches of 2, 4, ... where there are too many others.

    Raises:
        InputError: there are too many even of whole machines.
    """
    bunch = 1
    while (groups := all_groups([size // bunch for size in sizes], 1)) is None:
        bunch *= 2
        if bunch > max(sizes):
            raise InputError(f"{len(sizes)} machines are too many to plan groups on")
    scaled = [Step(*(tuple(bunch * part for part in some) for some in s)) for s in groups.steps]
    return groups._replace(steps=scaled)


def _groups(sizes: Sequence[int], left: Group, unit: int) -> set[Group]:
    found: set[Group] = set()
    for need in range(1, sum(left) // unit + 1):
        steps = {Step(left, (0,) * len(sizes))}
        for _ in range(unit):
            steps = {
                Step(left, tuple(a + b for a, b in zip(step.group, more, strict=True)))
                for step in steps
                for more in _policies(sizes, step.after, need)
            }
        found |= {step.group for step in steps}
    return found


def _policies(sizes: Sequence[int], left: Group, need: int) -> set[Group]:
    """Fresh machines first, those in use first, all in turn."""
    every = range(len(sizes))
    used = [a < b for a, b in zip(left, sizes, strict=True)]
    found = set()
    for order, at_once in (
        (sorted(every, key=lambda machine: used[machine]), need),
        (sorted(every, key=lambda machine: not used[machine]), need),
        (every, 1),
    ):
        group, missing = [0] * len(sizes), need
        while missing:
            for machine in order:
                more = min(at_once, missing, left[machine] - group[machine])
                group[machine] += more
                missing -= more
        found.add(tuple(group))
    return found
