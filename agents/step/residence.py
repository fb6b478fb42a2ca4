"""The cheapest way to make room on a device: a knapsack over its groups, by dynamic programming."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner

_LABELS = 128  # kept after each group; exact where there are never more
_PEAKS = 6  # transient peaks that are tried; exact where there are no more


def cheapest(
    saved: FloatArray,  # (G, O) bytes
    seconds: FloatArray,  # (G, O) of more computing
    traffic: FloatArray,  # (G, O) seconds on the link to the host
    transient: FloatArray,  # (G, O) bytes while the group's backward pass runs
    need: float,  # bytes
    hidden: float,  # seconds of traffic that pass beside computing
) -> IntArray | None:
    """(G,) an option for each group, at least cost; None: nothing saves `need`.

    The cost is seconds + max(0, traffic - hidden), each added up over the groups. The bytes saved
    must exceed `need` by the largest transient of the options chosen: groups run backward one after
    the other. For each largest transient in question, labels (bytes saved, seconds, traffic) are
    carried from group to group; those that are no better than another in any of the three are
    dropped.
    """
    peaks = np.unique(transient)
    if len(peaks) > _PEAKS:
        peaks = peaks[np.linspace(0, len(peaks) - 1, _PEAKS).astype(np.int64)]
    best, chosen = np.inf, None
    for peak in peaks:
        option, cost = _labels(
            saved, seconds, traffic, transient <= peak, max(need + peak, 0.0), hidden
        )
        if cost < best:
            best, chosen = cost, option
    return chosen


@compiled
def _labels(
    saved: FloatArray,
    seconds: FloatArray,
    traffic: FloatArray,
    allowed: NDArray[np.bool_],
    need: float,
    hidden: float,
) -> tuple[IntArray, float]:
    """The best options, and their cost: inf where nothing saves enough."""
    groups, options = saved.shape
    most = _LABELS * options
    have, work, sent = np.zeros((3, _LABELS))
    count = 1
    came = np.zeros((groups, _LABELS, 2), dtype=np.int64)  # label of the group before, option
    # candidates, and the front of what is kept: ascending in traffic and in bytes saved
    c_have, c_work, c_sent = np.empty((3, most))
    c_from = np.empty((most, 2), dtype=np.int64)
    front = np.empty(most + 1, dtype=np.int64)
    keep = np.empty(most, dtype=np.int64)
    for g in range(groups):
        made = 0
        for k in range(count):
            for o in range(options):
                if allowed[g, o]:
                    c_have[made] = min(have[k] + saved[g, o], need)
                    c_work[made] = work[k] + seconds[g, o]
                    c_sent[made] = sent[k] + traffic[g, o]
                    c_from[made, 0], c_from[made, 1] = k, o
                    made += 1
        size, kept = 0, 0
        for x in np.argsort(c_work[:made] + 1e-9 * c_sent[:made], kind="mergesort"):
            grown = _insert(front, size, c_sent, c_have, x)
            if grown >= 0:
                size = grown
                keep[kept] = x
                kept += 1
        picked = keep[:kept]
        if kept > _LABELS:  # thin them out evenly, by what they save
            by_saved = picked[np.argsort(c_have[picked], kind="mergesort")]
            picked = by_saved[np.linspace(0, kept - 1, _LABELS).astype(np.int64)]
        count = len(picked)
        for k in range(count):
            x = picked[k]
            have[k], work[k], sent[k] = c_have[x], c_work[x], c_sent[x]
            came[g, k, 0], came[g, k, 1] = c_from[x, 0], c_from[x, 1]
    best, cost = -1, np.inf
    for k in range(count):
        value = work[k] + max(0.0, sent[k] - hidden)
        if have[k] >= need and value < cost:
            best, cost = k, value
    chosen = np.zeros(groups, dtype=np.int64)
    for g in range(groups - 1, -1, -1):
        if best >= 0:
            chosen[g] = came[g, best, 1]
            best = came[g, best, 0]
    return chosen, cost


@compiled_inner
def _insert(front: IntArray, size: int, sent: FloatArray, have: FloatArray, x: int) -> int:
    """Put label `x` into a front that ascends in what is sent and saved; its new size.

    -1: a label of the front sends no more and saves no less.
    """
    at = size
    while at > 0 and sent[front[at - 1]] > sent[x]:
        at -= 1
    if at > 0 and have[front[at - 1]] >= have[x]:
        return -1
    end = at  # of those that `x` surpasses
    while end < size and have[front[end]] <= have[x]:
        end += 1
    rest = size - end
    if end == at:
        for y in range(size, at, -1):
            front[y] = front[y - 1]
    else:
        for y in range(rest):
            front[at + 1 + y] = front[end + y]
    front[at] = x
    return at + 1 + rest
