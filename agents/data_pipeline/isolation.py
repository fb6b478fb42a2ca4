"""Cores and shares of PCIe for each stage, and the cache: the slowest stage is to be fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse

from envs.data_pipeline.pipeline import GROUPS, STAGES, Demand, FloatArray


@dataclass(frozen=True, eq=False)
class Isolation:
    """The cache that was chosen, the units of every stage (8,), and the seconds of the slowest."""

    cache: str
    units: FloatArray
    seconds: float


def enumerated(demands: Mapping[str, Demand], units: tuple[int, ...]) -> Isolation:
    """The least time of the slowest stage over the caches and all ways to divide what is shared.

    Guarantees:
        Optimal: resources are independent of one another once the cache is chosen, so that every
        way to divide one resource is looked at by itself.

    Source:
        BGL (Liu et al., arXiv 2112.08541) poses such a program; stages and formulas are
        reconstructed.
    """
    best = Isolation("", np.ones(len(STAGES)), np.inf)
    for name, demand in demands.items():
        chosen = np.ones(len(STAGES))
        for (a, b), most in zip(GROUPS, units, strict=True):
            own = np.arange(1, most)
            first = demand.divided[a] / own + demand.serial[a]
            second = demand.divided[b] / (most - own) + demand.serial[b]
            chosen[a] = own[np.maximum(first, second).argmin()]
            chosen[b] = most - chosen[a]
        seconds = float(demand.seconds(chosen).max())
        if seconds < best.seconds:
            best = Isolation(name, chosen, seconds)
    return best


def integer_program(demands: Mapping[str, Demand], units: tuple[int, ...]) -> Isolation:
    """What `enumerated` finds, by HiGHS: a binary for every cache, stage and number of units.

    min t subject to t >= sum time z for every stage, one z of every stage for the cache chosen,
    and sum units z <= all units for every resource.
    """
    names, stages = list(demands), len(STAGES)
    most = np.ones(stages, dtype=np.int64)
    for group, all_of_it in zip(GROUPS, units, strict=True):
        most[list(group)] = all_of_it - 1
    cache, stage, count = np.array([
        (o, s, c) for o in range(len(names)) for s in range(stages) for c in range(1, most[s] + 1)
    ]).T  # fmt: skip
    divided = np.stack([demands[name].divided for name in names])[cache, stage]
    time = divided / count + np.stack([demands[name].serial for name in names])[cache, stage]
    binaries, options = len(cache), len(names)
    size = 1 + options + binaries  # t, the cache, z
    slowest, chosen = np.zeros((stages, size)), np.zeros((options * stages, size))
    shared, one = np.zeros((len(units), size)), np.zeros((1, size))
    z = 1 + options + np.arange(binaries)
    slowest[:, 0], slowest[stage, z] = -1.0, time
    chosen[cache * stages + stage, z] = 1.0
    chosen[np.arange(options * stages), 1 + np.arange(options * stages) // stages] = -1.0
    for resource, group in enumerate(GROUPS):
        inside = np.isin(stage, group)
        shared[resource, z[inside]] = count[inside]
    one[0, 1 : 1 + options] = 1.0
    solved = scipy.optimize.milp(
        np.eye(1, size)[0],
        integrality=np.append(0, np.ones(size - 1)),
        bounds=scipy.optimize.Bounds(0.0, np.append(np.inf, np.ones(size - 1))),
        constraints=[
            (slowest, -np.inf, 0.0), (chosen, 0.0, 0.0), (shared, -np.inf, np.array(units)),
            (one, 1.0, 1.0),
        ],
        options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    taken = np.flatnonzero(solved.x[z] > 0.5)
    found = np.ones(stages)
    found[stage[taken]] = count[taken]
    name = names[int(cache[taken[0]])]
    return Isolation(name, found, float(demands[name].seconds(found).max()))
