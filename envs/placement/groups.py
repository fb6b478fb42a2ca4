"""The groups of an episode: where they stand, what they hold, and where the next one may go."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.graphs.contraction import Fusion
from envs.placement.completion import group_seconds, group_state_bytes
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class GroupPlacement:
    """Groups that are decided one by one, or a run of consecutive ones together.

    A group may go to a device that can run it and whose capacity holds its parameters, gradients
    and optimizer state beside those of the groups decided there. Where no device allows that, of
    those that can run it the one with the most free memory is allowed. A run goes where all of its
    groups may go together.
    """

    def __init__(self, fused: StepProblem, fusion: Fusion) -> None:
        self.fusion, self.capacity = fusion, fused.capacity
        self.state_bytes: FloatArray = group_state_bytes(fused, fusion)  # (G,)
        self.seconds: FloatArray = group_seconds(fused, fusion)  # (G, D)
        self.able: BoolArray = np.isfinite(self.seconds)  # (G, D)

    def start(self, devices: Any) -> None:
        """Nothing decided, the groups on `devices` (G,).

        Raises:
            InputError: that is not one device for each group that can run it.
        """
        start = np.array(devices, dtype=np.int64)
        groups, count = self.able.shape
        if start.shape != (groups,) or not ((start >= 0) & (start < count)).all():
            raise InputError(
                f"is not one of {count} devices for each of {groups} groups", field="options.start"
            )
        if not self.able[np.arange(groups), start].all():
            raise InputError("puts a group where it cannot run", field="options.start")
        self.device: IntArray = start  # (G,)
        self.placed: BoolArray = np.zeros(groups, dtype=np.bool_)
        self.used: FloatArray = np.zeros(count)  # (D,) bytes of decided groups
        self.look(0)

    def look(self, group: int, length: int = 1) -> None:
        """Make the run of `length` groups from `group` the current one.

        It is cut where the groups end, and before the first group that leaves no device which can
        run them all.
        """
        able = self.able[group].copy()
        end = group + 1
        while end < min(group + length, len(self.able)) and (able & self.able[end]).any():
            able &= self.able[end]
            end += 1
        self.current, self.run = group, slice(group, end)
        state = self.state_bytes[self.run]
        here = np.where(self.placed[self.run], state, 0.0)
        others = self.used - np.bincount(
            self.device[self.run], weights=here, minlength=len(self.used)
        )
        self.able_now: BoolArray = able  # (D,)
        self.fits: BoolArray = able & (others + state.sum() <= self.capacity)  # (D,)
        self.mask: BoolArray = self.fits  # (D,)
        if not self.fits.any():
            free = np.where(able, self.capacity - others, -np.inf)
            self.mask = np.arange(len(free)) == np.argmax(free)

    def place(self, device: int) -> None:
        """Decide the current run; one that `device` cannot run stays where it is."""
        if not self.able_now[device]:
            return
        for group in range(self.run.start, self.run.stop):
            if self.placed[group]:
                self.used[self.device[group]] -= self.state_bytes[group]
            self.device[group] = device
            self.placed[group] = True
            self.used[device] += self.state_bytes[group]

    @property
    def pieces(self) -> IntArray:
        """(N,) device of every piece."""
        return self.fusion.expand_pieces(self.device)

    def variants(self) -> tuple[IntArray, IntArray]:
        """The devices that can run the current run, and (B, N) the pieces with it on each."""
        devices = np.flatnonzero(self.able_now)
        variants = np.repeat(self.device[None, :], len(devices), axis=0)
        variants[:, self.run] = devices[:, None]
        return devices, variants[:, self.fusion.piece_group]

    def compute_seconds(self) -> FloatArray:
        """(D,) compute seconds standing on each device."""
        seconds = self.seconds[np.arange(len(self.device)), self.device]
        total = np.zeros(self.able.shape[1])
        np.add.at(total, self.device, seconds)
        return total
