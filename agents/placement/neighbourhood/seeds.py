"""Where a search begins: placements that cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agents.step.grouping import GroupedProblem
from envs.arrays import FloatArray, IntArray
from envs.graphs.contraction import sum_rows


def splits(grouped: GroupedProblem) -> Iterator[IntArray]:
    """Placements (N,) of contiguous segments of the forward pass.

    Segments hold equal work, work in proportion to their devices' speed, or bytes in proportion to
    their devices' memory. The line of devices is taken once, twice (a loop), or there and back (a
    V).
    """
    problem = grouped.problem
    devices = problem.topology.num_devices
    able = np.isfinite(grouped.seconds)
    work = np.where(able, grouped.seconds, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    speed = 1.0 / np.maximum(np.where(able, grouped.seconds, 0.0).sum(axis=0), 1e-300)
    maker = grouped.fusion.piece_group[problem.graph.producer]
    made = sum_rows(problem.graph.tensor_bytes, maker, grouped.num_groups)
    equal, fastest = np.arange(devices), grouped.device_order()
    for load, share, line in (
        (work, np.ones(devices), equal),
        (work, speed, fastest),
        (grouped.state + made, problem.capacity, fastest),
    ):
        for path in (line, np.tile(line, 2), np.concatenate([line, line[::-1]])):
            device = path[_cut(load, share[path])]
            if able[np.arange(len(device)), device].all():
                yield grouped.fusion.expand(device)


def _cut(load: FloatArray, share: FloatArray) -> IntArray:
    """(G,) segment of each of the groups in a line, by the middle of their loads (G,)."""
    share = np.where(np.isfinite(share), share, 0.0)
    share = share if share.sum() > 0.0 else np.ones(len(share))
    middle = (np.cumsum(load) - load / 2) / max(float(load.sum()), 1e-300)
    ends = np.cumsum(share) / share.sum()
    return np.minimum(np.searchsorted(ends, middle, side="right"), len(share) - 1)
