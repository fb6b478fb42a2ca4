"""Cores and shares of PCIe for each stage, and the cache: the slowest stage is to be fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray
from envs.data_pipeline.pipeline import GROUPS, STAGES, Demand


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
        BGL (Liu et al., arXiv 2112.08541) isolates resources by such a program; its stages and
        formulas are reconstructed.
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
    most = [1] * len(STAGES)
    for group, all_of_it in zip(GROUPS, units, strict=True):
        most[group[0]] = most[group[1]] = all_of_it - 1
    program = LinearProgram()
    slowest = program.add_columns(1, cost=1.0)
    cache = program.add_columns(len(demands), upper=1.0, integer=True)
    program.add_row([(cache, 1.0)], lower=1.0, upper=1.0)
    z = [[program.add_columns(n, upper=1.0, integer=True) for n in most] for _ in demands]
    for s in range(len(STAGES)):
        own = np.arange(1, most[s] + 1)
        terms = [
            (z[o][s], demand.divided[s] / own + demand.serial[s])
            for o, demand in enumerate(demands.values())
        ]
        program.add_row([*terms, (slowest, -1.0)], upper=0.0)
        for o in range(len(demands)):
            program.add_row([(z[o][s], 1.0), (cache[o], -1.0)], lower=0.0, upper=0.0)
    for group, all_of_it in zip(GROUPS, units, strict=True):
        used = [(row[s], np.arange(1, most[s] + 1)) for row in z for s in group]
        program.add_row(used, upper=float(all_of_it))
    solver = program.solver(time_limit=60.0)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.run()
    value = np.array(solver.getSolution().col_value)
    chosen = int(value[cache].argmax())
    found = np.array([value[z[chosen][s]].argmax() + 1.0 for s in range(len(STAGES))])
    name = list(demands)[chosen]
    return Isolation(name, found, float(demands[name].seconds(found).max()))
