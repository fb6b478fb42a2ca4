"""The moves of a descent: placements of groups that are one move away from another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.step.grouping import device_classes
from envs.arrays import BoolArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.step.problem import StepProblem

HashArray = NDArray[np.uint64]

LEFT, RIGHT, ANYWHERE, EXCHANGE, SHIFT, RENAME = 0.25, 0.5, 0.83, 0.9, 0.92, 0.93  # shares, added
_KNOWN = 1 << 16  # slots for hashes of placements; half of them are used


class Moves:
    """Draws placements one move away from a placement of groups, none of them twice.

    A move is, with the shares above: a run of consecutive groups goes where its left neighbour is,
    its right one, or anywhere; two devices change places within a run; every border between
    devices shifts by as many groups, as where layers repeat; two devices change places everywhere;
    or two groups do. Runs are short more often than long, a third of all groups at most.

    Placements that differ in the names of interchangeable devices alone count as one. What was
    drawn before is not drawn again, until `forget`.

    Args:
        problem: says which devices are interchangeable.
        random: draws the moves.
    """

    def __init__(self, problem: StepProblem, random: np.random.Generator) -> None:
        self.random = random
        self._class = np.zeros(problem.topology.num_devices, dtype=np.int64)
        for number, members in enumerate(device_classes(problem)):
            self._class[members] = number
        self._known: HashArray = np.zeros(_KNOWN, dtype=np.uint64)

    def forget(self) -> None:
        """Everything may be drawn again."""
        self._known[:] = 0

    def draw(self, device: IntArray, allowed: BoolArray, count: int) -> IntArray:
        """(B, G) at most `count` placements, each one move from `device` (G,); `allowed` (G, D)."""
        moved = np.empty((count, len(device)), dtype=np.int64)
        found = draw_moves(device, allowed, self._class, self._known, self.random, moved)
        return moved[:found]


@compiled
def draw_moves(
    device: IntArray,  # (G,)
    allowed: BoolArray,  # (G, D)
    alike: IntArray,  # (D,) class of interchangeable devices
    known: HashArray,  # (a power of two,) in and out: hashes of placements drawn, 0: none
    random: np.random.Generator,
    moved: IntArray,  # (B, G) out
) -> int:
    """How many of B draws are new, allowed and lead elsewhere; they stand first in `moved`."""
    groups, found = len(device), 0
    name = np.empty(len(alike), dtype=np.int64)
    used = np.empty(len(alike), dtype=np.int64)
    remember(device, alike, known, name, used)
    for _ in range(len(moved)):
        row = moved[found]
        row[:] = device
        make_move(device, row, len(alike), random)
        good = True
        for g in range(groups):
            good = good and allowed[g, row[g]]
        if good and remember(row, alike, known, name, used):
            found += 1
    return found


@compiled
def make_move(
    device: IntArray,  # (G,)
    row: IntArray,  # (G,) in: as `device`; out: after the move
    devices: int,
    random: np.random.Generator,
) -> None:
    """Draw one move."""
    groups = len(device)
    length = 1 + int(random.random() ** 2 * max(groups / 3.0, 1.0))
    drawn = int(random.integers(0, groups)) - length // 2
    end = min(max(drawn + length, 1), groups)
    first = min(max(drawn, 0), groups - 1)
    kind, other = random.random(), int(random.integers(0, groups))
    target = int(random.integers(0, devices))
    if kind < ANYWHERE:
        if kind < LEFT:
            target = int(device[max(first - 1, 0)])
        elif kind < RIGHT:
            target = int(device[min(end, groups - 1)])
        row[first:end] = target
    elif kind < EXCHANGE or SHIFT <= kind < RENAME:
        here, there = int(device[first]), device[other]
        if kind >= EXCHANGE:
            first, end, here = 0, groups, target
        for g in range(first, end):
            if device[g] == here:
                row[g] = there
            elif device[g] == there:
                row[g] = here
    elif kind < SHIFT:
        by = 1 + length // 4
        by = by if target % 2 == 0 else -by
        for g in range(groups):
            row[g] = device[min(max(g + by, 0), groups - 1)]
    else:
        row[first], row[other] = device[other], device[first]


@compiled_inner
def remember(
    device: IntArray,  # (G,)
    alike: IntArray,  # (D,)
    known: HashArray,  # (a power of two,)
    name: IntArray,  # (D,) scratch
    used: IntArray,  # (D,) scratch
) -> bool:
    """Whether the placement is not in `known`, with interchangeable devices by their first use.

    It is then put there; where more than half of the slots are used, all others are forgotten.
    """
    name[:] = -1
    used[:] = 0
    value = np.uint64(0xCBF29CE484222325)
    for d in device:
        if name[d] < 0:
            name[d] = used[alike[d]] * len(alike) + alike[d]
            used[alike[d]] += 1
        value = (value ^ np.uint64(name[d])) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
    if value == np.uint64(0):
        value = np.uint64(1)
    mask = np.uint64(len(known) - 1)
    slot = value & mask
    for _ in range(len(known) // 2):
        if known[slot] == value:
            return False
        if known[slot] == np.uint64(0):
            known[slot] = value
            return True
        slot = (slot + np.uint64(1)) & mask
    known[:] = 0
    known[value & mask] = value
    return True
