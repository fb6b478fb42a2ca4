"""The max-min linear program over time shares: in closed form for one pool, by HiGHS for several.

    max t   with  sum_p rates[m, p] X[m, p] >= asked[m] t      for every gang m
                  sum_p X[m, p] <= 1,   sum_m gpus[m] X[m, p] <= capacity[p],   X >= 0

(Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads,
OSDI 2020, section 4.1).
"""

from __future__ import annotations

from typing import Protocol

import highspy
import numpy as np
from numpy.typing import NDArray

from agents.linear_program import LinearProgram

FloatArray = NDArray[np.float64]
STUCK = 1e-9  # dual value above which a gang cannot have more than the level
# By how much of itself a level that is reached may be missed later: HiGHS's tolerance; more where
# rounding in an ill-conditioned program leaves no solution.
SLACKS = (1e-7, 1e-6, 1e-5, 1e-4)


class MaxMinProgram(Protocol):
    """The program for given gangs and GPUs; what the gangs ask for may change."""

    def level(self, asked: FloatArray) -> float:
        """The optimal t for (A,) throughputs above 0."""

    def shares(self, asked: FloatArray) -> FloatArray:
        """(A, P) X whose sorted ratios of throughput to `asked` are lexicographically greatest.

        Water-filling: where the least ratio cannot grow any more, the gangs that hold it back keep
        it, and the others are raised on (section 4.3 there). Without this the program leaves GPUs
        idle that some gangs could use.
        """


def max_min_program(rates: FloatArray, gpus: FloatArray, capacity: FloatArray) -> MaxMinProgram:
    """The program, solved in the way that suits its number of pools.

    Args:
        rates: (A, P) work per second of a gang on a pool, A above 0; 0: it cannot run there. Each
            gang can run somewhere.
        gpus: (A,) of each gang, above 0.
        capacity: (P,) GPUs.
    """
    if rates.shape[1] == 1:
        return OnePool(rates[:, 0], gpus, float(capacity[0]))
    return SeveralPools(rates, gpus, capacity)


class OnePool:
    """Shares min(1, c asked / rate) with the largest c for which the GPUs suffice."""

    def __init__(self, rates: FloatArray, gpus: FloatArray, capacity: float) -> None:
        self._rates, self._gpus, self._capacity = rates, gpus, capacity

    def level(self, asked: FloatArray) -> float:
        """See `MaxMinProgram`."""
        time = asked / self._rates
        return min(float(1.0 / time.max()), float(self._capacity / (self._gpus * time).sum()))

    def shares(self, asked: FloatArray) -> FloatArray:
        """See `MaxMinProgram`."""
        gpus = self._gpus
        if gpus.sum() <= self._capacity:
            return np.ones((len(gpus), 1))
        time = asked / self._rates  # share per unit of c
        order = np.argsort(-time, kind="stable")  # those that come to 1 first, first
        capped = np.concatenate([[0.0], np.cumsum(gpus[order])[:-1]])  # by the gangs before
        slope = np.cumsum((gpus * time)[order][::-1])[::-1]  # of this gang and those after
        needed = capped + slope / time[order]  # GPUs in use when this gang comes to 1
        first = int(np.argmax(needed >= self._capacity))
        level = max(self._capacity - capped[first], 0.0) / slope[first]
        shares: FloatArray = np.minimum(1.0, level * time)[:, None]
        return shares


class SeveralPools:
    """HiGHS, going on from its last solution when levels or throughputs asked for change."""

    def __init__(self, rates: FloatArray, gpus: FloatArray, capacity: FloatArray) -> None:
        gangs, pools = rates.shape
        program = LinearProgram()
        self._level = int(program.add_columns(1, cost=-1.0)[0])
        self._shares = program.add_columns((gangs, pools), upper=np.where(rates > 0.0, 1.0, 0.0))
        level = np.full(gangs, self._level)
        program.add_rows(gangs, [(self._shares, rates), (level, -1.0)], lower=0.0)
        program.add_rows(gangs, [(self._shares, 1.0)], upper=1.0)
        program.add_rows(pools, [(self._shares.T, gpus[None, :])], upper=capacity)
        self._solver = program.solver(time_limit=highspy.kHighsInf)

    def level(self, asked: FloatArray) -> float:
        """See `MaxMinProgram`."""
        self._ask(asked)
        return self._solve()[0]

    def shares(self, asked: FloatArray) -> FloatArray:
        """See `MaxMinProgram`."""
        self._ask(asked)
        raised = np.ones(len(asked), np.bool_)
        held = np.zeros(len(asked))  # throughputs of those that are not raised any more
        while True:
            level, columns, duals = self._solve_holding(held)
            stuck = np.flatnonzero(raised & (duals > STUCK / asked))
            raised[stuck] = False
            if not raised.any():
                break
            if len(stuck) == 0:
                raise RuntimeError("a max-min program without a binding gang")
            held[stuck] = level * asked[stuck]
            for gang in stuck:
                self._solver.changeCoeff(int(gang), self._level, 0.0)
        return np.clip(columns[self._shares], 0.0, 1.0)

    def _ask(self, asked: FloatArray) -> None:
        for gang, throughput in enumerate(asked):
            self._solver.changeCoeff(gang, self._level, -float(throughput))
            self._solver.changeRowBounds(gang, 0.0, highspy.kHighsInf)

    def _solve_holding(self, held: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """`_solve` where gangs have at least the throughput `held` (A,), but for some slack.

        Raises:
            RuntimeError: the program has no solution with the largest slack either.
        """
        gangs = np.flatnonzero(held).tolist()
        for slack in SLACKS if gangs else ():
            for gang in gangs:
                least = held[gang] * (1.0 - slack)
                self._solver.changeRowBounds(gang, least, highspy.kHighsInf)
            if self._solved():
                return self._solution()
        return self._solve()

    def _solve(self) -> tuple[float, FloatArray, FloatArray]:
        """(t, columns, dual values (A,) of the gangs' rows)."""
        if not self._solved():
            raise RuntimeError(f"HiGHS: {self._solver.getModelStatus()}")
        return self._solution()

    def _solution(self) -> tuple[float, FloatArray, FloatArray]:
        """What `_solve` returns, of the optimum that was just found."""
        solution = self._solver.getSolution()
        columns = np.array(solution.col_value)
        duals = np.abs(np.array(solution.row_dual)[: len(self._shares)])
        return float(columns[self._level]), columns, duals

    def _solved(self) -> bool:
        """Whether there is an optimum."""
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self._solver.clearSolver()  # a basis that has gone bad: begin anew
            self._solver.run()
        return bool(self._solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)
