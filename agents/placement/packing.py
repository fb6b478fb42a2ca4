"""Whether groups fit devices at all: a packing of their state."""

from __future__ import annotations

import numpy as np

from agents.placement.grouping import BoolArray, FloatArray, GroupedProblem, IntArray

_TRIALS = 2000  # groups put on a device, by search, before it gives up


class Packing:
    """A placement of all groups in which the state fits, kept up while groups are pinned.

    Best-fit decreasing with backtracking: the groups still free, the largest first, each on the
    device where it leaves the least room. It looks at sizes only, and it gives up after a fixed
    number of trials: that no packing is found proves nothing.

    Args:
        grouped: the groups, their state and the devices allowed for each.
        room: (D,) bytes for state.
    """

    def __init__(self, grouped: GroupedProblem, room: FloatArray) -> None:
        self.state: list[float] = grouped.state.tolist()
        self.allowed = grouped.allowed
        self.room = room.copy()
        self.pinned = np.zeros(grouped.num_groups, dtype=np.bool_)
        self.device: IntArray | None = self._search(self.room, self.pinned)  # (G,) None: not found

    def pin(self, group: int, device: int) -> bool:
        """Put `group` on `device` for good; False, and no change, if then no packing is found."""
        if self.device is None or device not in self._fits(group, self.room):
            return False
        if self.device[group] != device:
            room, pinned = self.room.copy(), self.pinned.copy()
            room[device] -= self.state[group]
            pinned[group] = True
            found = self._search(room, pinned)
            if found is None:
                return False
            self.device = np.where(pinned, self.device, found)
            self.device[group] = device
        self.room[device] -= self.state[group]
        self.pinned[group] = True
        return True

    def _search(self, room: FloatArray, pinned: BoolArray) -> IntArray | None:
        """(G,) devices of the groups that are not pinned, or None."""
        free = sorted(np.flatnonzero(~pinned).tolist(), key=lambda g: -self.state[g])
        left = room.copy()
        device = np.zeros(len(self.state), dtype=np.int64)
        choices: list[list[int]] = []  # of each group on the way down, still to be tried
        trials = 0
        while len(choices) < len(free):
            choices.append(self._fits(free[len(choices)], left))
            while choices and not choices[-1]:  # dead end: undo the group before
                choices.pop()
                if choices:
                    last = free[len(choices) - 1]
                    left[device[last]] += self.state[last]
            if not choices or trials >= _TRIALS:
                return None
            trials += 1
            group = free[len(choices) - 1]
            device[group] = choices[-1].pop()
            left[device[group]] -= self.state[group]
        return device

    def _fits(self, group: int, left: FloatArray) -> list[int]:
        """Devices with room for `group`, the tightest last."""
        fits = np.flatnonzero(self.allowed[group] & (self.state[group] <= left))
        order: list[int] = fits[np.argsort(-left[fits], kind="stable")].tolist()
        return order
