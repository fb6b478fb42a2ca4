"""Orders of coflows by one number each; ties go by arrival, then by place in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agents.coflows.bssi import Bssi
from envs.coflows.problem import CoflowProblem, FloatArray, IntArray
from envs.coflows.simulation import Order


def _by(key: FloatArray | IntArray, active: IntArray) -> IntArray:
    """`active` stands by arrival, so that a stable sort keeps earlier ones before later ones."""
    found: IntArray = active[np.argsort(key, kind="stable")]
    return found


@dataclass(frozen=True)
class Fifo:
    """First in, first out.

    Guarantees:
        No coflow waits for a later one.

    Source:
        The baseline of Chowdhury, Zhong, Stoica: *Efficient Coflow Scheduling with Varys*, SIGCOMM
        2014.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        return _by(problem.arrival[active], active)


@dataclass(frozen=True)
class Sebf:
    """The coflow whose busiest port has the least left first.

    Guarantees:
        The order of least completion times where all coflows share one port; none otherwise.

    Source:
        Varys, section 4.1: smallest effective bottleneck first.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        return _by(load[active].max(axis=1, initial=0.0), active)


@dataclass(frozen=True)
class Scf:
    """The coflow whose largest flow is smallest first.

    Guarantees:
        None.

    Source:
        Varys, section 4.1: shortest coflow first.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        return _by(problem.longest[active], active)


@dataclass(frozen=True)
class Ncf:
    """The coflow with the fewest ports on its narrower side first.

    Guarantees:
        None.

    Source:
        Varys, section 4.1: narrowest coflow first.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        return _by(problem.width[active], active)


@dataclass(frozen=True)
class Lcf:
    """The coflow with the least left in all first.

    Guarantees:
        None.

    Source:
        Varys, section 4.1, as CoflowSim has it: least coflow first.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        return _by(load[active, : problem.ports].sum(axis=1), active)


ORDERS: Mapping[str, Order] = {
    "fifo": Fifo(), "sebf": Sebf(), "scf": Scf(), "ncf": Ncf(), "lcf": Lcf(), "bssi": Bssi(),
}  # fmt: skip
FAIR = "fair"  # has no order
