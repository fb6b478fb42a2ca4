"""Whether the state of all groups fits the devices at all."""

from __future__ import annotations

import numpy as np

from agents.step.grouping import GroupedProblem
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled

_TRIALS = 2000  # groups put on a device, by search, before it gives up ...
_TRIALS_PER_GROUP = 8  # ... and as many more for each group


class MemoryFit:
    """A placement of all groups in which the state fits, kept up while groups are pinned.

    Best-fit decreasing with backtracking: the groups still free, the largest first, each on the
    device where it leaves the least room. It looks at sizes only, and it gives up after a fixed
    number of trials: that no placement is found proves nothing.

    Args:
        grouped: the groups, their state and the devices allowed for each.
        room: (D,) bytes for state.
    """

    def __init__(self, grouped: GroupedProblem, room: FloatArray) -> None:
        self.state: list[float] = grouped.state.tolist()
        self.allowed = grouped.allowed
        self.room = room.copy()
        self.pinned = np.zeros(grouped.num_groups, dtype=np.bool_)
        self._largest_first = np.argsort(-grouped.state, kind="stable")
        self._state = grouped.state
        self.device: IntArray | None = self._search(self.room, self.pinned)  # (G,) None: not found

    def pin(self, group: int, device: int) -> bool:
        """Put `group` on `device` for good; False, and no change, if then no placement is found."""
        fits = self.allowed[group, device] and self.state[group] <= self.room[device]
        if self.device is None or not fits:
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
        free = self._largest_first[~pinned[self._largest_first]]
        device = np.zeros(len(pinned), dtype=np.int64)
        trials = _TRIALS + _TRIALS_PER_GROUP * len(free)
        left = room.copy()
        return device if search(self._state, self.allowed, free, left, trials, device) else None


@compiled
def search(
    state: FloatArray,  # (G,) bytes
    allowed: BoolArray,  # (G, D)
    free: IntArray,  # (F,) groups to be placed, in the order of the search
    left: FloatArray,  # (D,) bytes, changed in place
    trials: int,
    device: IntArray,  # (G,) out
) -> bool:
    """Depth first, the tightest device first; whether all of `free` were placed."""
    tried = np.zeros((len(free), len(left)), dtype=np.bool_)
    depth = 0
    while depth < len(free):
        group = free[depth]
        tightest = -1
        for d in range(len(left)):
            fits = allowed[group, d] and state[group] <= left[d] and not tried[depth, d]
            if fits and (tightest < 0 or left[d] <= left[tightest]):
                tightest = d
        if tightest < 0:  # dead end: undo the group before
            tried[depth] = False
            depth -= 1
            if depth < 0:
                return False
            left[device[free[depth]]] += state[free[depth]]
        elif trials == 0:
            return False
        else:
            trials -= 1
            tried[depth, tightest] = True
            device[group] = tightest
            left[tightest] -= state[group]
            depth += 1
    return True
