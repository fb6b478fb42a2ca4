"""Orders of coflows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from agents.coflows.bssi import Bssi
from envs.arrays import FloatArray, IntArray
from envs.coflows.problem import CoflowProblem
from envs.coflows.simulation import Order


@dataclass(frozen=True)
class Ascending:
    """The coflow with the smallest `key` first; ties go by arrival, then by place in the file.

    `key` is of the problem, the coflows that are there, and what all have left at every port.

    Guarantees:
        Least completion times where all coflows share one port and the key is what they have left
        there; none otherwise.

    Source:
        Chowdhury, Zhong, Stoica: *Efficient Coflow Scheduling with Varys*, SIGCOMM 2014, section
        4.1: first in first out, smallest effective bottleneck, shortest (by its largest flow) and
        narrowest coflow first; and CoflowSim's least coflow (in all) first.
    """

    key: Callable[[CoflowProblem, IntArray, FloatArray], FloatArray | IntArray]

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        found: IntArray = active[np.argsort(self.key(problem, active, load), kind="stable")]
        return found


ORDERS: Mapping[str, Order] = {
    "fifo": Ascending(lambda problem, active, _: problem.arrival[active]),
    "sebf": Ascending(lambda _, active, load: load[active].max(axis=1)),
    "scf": Ascending(lambda problem, active, _: problem.longest[active]),
    "ncf": Ascending(lambda problem, active, _: problem.width[active]),
    "lcf": Ascending(lambda _, active, load: load[active].sum(axis=1)),
    "bssi": Bssi(),
}
FAIR = "fair"  # has no order
