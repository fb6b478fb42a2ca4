"""SMD: in every slot a sum of ratios, by knapsacks whose parameters follow Newton's method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray
from envs.bounds import Count, bounded
from experiments.papers.malleable_jobs.gadget import Choices, Gadget

_FIXED = 1e-9  # of the parameters: what counts as a fixed point


def sum_of_ratios(
    choices: Choices, exact: bool = False, rounds: int = 20
) -> tuple[FloatArray, float, bool]:
    """Shares (K,) that make `sum of N / D` large, that sum, and whether they are a fixed point.

    N = sum of share x gain x pace and D = sum of share x pace, per job, where a job that waits has
    pace 1 and no gain: so a job with one size has its gain. With u = 1 / D and beta = N / D of the
    last shares, the next are those of the knapsack with worth `u (N - beta D)`. Newton's step of
    (beta, u) is halved when it does not bring the two sides of these equations closer. Of all
    shares met, the best are returned.

    At a fixed point of exact knapsacks, no choice of sizes has more than rho times its sum, where
    rho is the largest ratio of a pace to that of the fixed point over the smallest one.
    """
    first = choices.starts()
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(choices.job)))
    beta: FloatArray = np.zeros(len(first))
    u: FloatArray = np.ones(len(first))
    kept, most, step, apart = np.zeros(len(owner)), 0.0, 1.0, np.inf
    for _ in range(rounds):
        worth = u[owner] * (choices.gain * choices.pace - beta[owner] * (choices.pace - 1.0))
        share, _, _ = choices.knapsack(worth, exact)
        above = np.add.reduceat(share * choices.gain * choices.pace, first)
        below = 1.0 + np.add.reduceat(share * (choices.pace - 1.0), first)
        ratios = float((above / below).sum())
        if ratios > most:
            kept, most = share, ratios
        error = np.concatenate([(above - beta * below) / choices.gain.max(), 1.0 - u * below])
        left = float(np.abs(error).max())
        if left < _FIXED:
            return kept, most, True
        step = 1.0 if left < apart else step / 2.0
        apart = left
        beta, u = beta + step * (above / below - beta), u + step * (1.0 / below - u)
    return kept, most, False


@bounded
@dataclass
class Smd(Gadget):
    """SMD: in every slot the sizes with the largest sum of ratios of gain, as far as they fit.

    The knapsack over sizes and resources is relaxed and its shares are rounded, or, if `exact`, it
    is solved in whole numbers.

    Guarantees:
        As `Gadget`, with the alpha of its own choices. A fixed point of exact knapsacks has at
        least 1 / rho of the largest sum (`sum_of_ratios`); Newton's method may end at another.

    Source:
        Yu, Wu, Ji, Liu: *A Sum-of-Ratios Multi-Dimensional-Knapsack Decomposition for DNN Resource
        Scheduling*, INFOCOM 2021 (arXiv 2105.13855), reconstructed from its abstract; parameters
        after Jong, *An Efficient Global Optimization Algorithm for Nonlinear Sum-of-Ratios
        Problem*, Optimization Online 2012, whose convexity does not hold for whole numbers.
    """

    exact: bool = False
    rounds: Count = 8

    def shares(self, choices: Choices, relaxed: FloatArray) -> FloatArray:
        return sum_of_ratios(choices, self.exact, self.rounds)[0]
