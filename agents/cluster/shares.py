"""Share rules: for which part of the time each gang should hold GPUs.

`agents.cluster.rounds` makes a schedule of them. Max-min fairness and finish-time fairness are
programs over time shares X, with a closed form for one pool of GPUs and HiGHS for several:

    max t   with  sum_p rates[m, p] X[m, p] >= asked[m] t      for every gang m
                  sum_p X[m, p] <= 1,   sum_m gpus[m] X[m, p] <= capacity[p],   X >= 0

(Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads,
OSDI 2020, section 4.1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from agents.linear_program import LinearProgram
from agents.solver import Knowledge
from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.bounds import Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError


@dataclass(frozen=True, eq=False)
class Demand:
    """What is divided: the GPUs of P pools among A gangs that wait or run."""

    simulator: ClusterSimulator  # settled; a rule that does not know durations cannot read them
    jobs: IntArray  # (A,) numbers in the trace, ascending
    gpus: FloatArray  # (A,) of each gang; a fraction for fractional jobs; above 0
    rates: FloatArray  # (A, P) work per second alone on a pool; 0 where the gang cannot run
    capacity: FloatArray  # (P,) GPUs of nodes that are up

    @property
    def records(self) -> NDArray[np.void]:
        """(A,) `cluster_state.JOB` records: submission, seconds executed, processors and so on."""
        return self.simulator.state.jobs[self.jobs]

    def of(self, chosen: BoolArray) -> Demand:
        """That of some gangs, (A,) which."""
        jobs, gpus, rates = self.jobs[chosen], self.gpus[chosen], self.rates[chosen]
        return replace(self, jobs=jobs, gpus=gpus, rates=rates)


class ShareRule(ABC):
    """Divides the time of all GPUs among the jobs; `rounds.RoundBasedPolicy` does the rest.

    A rule is a subclass with a name, what it knows, and `shares`. One that gives all jobs the same
    number of GPUs, each at most its gang, and whose pools are no GPU types:

        class EqualGpus(ShareRule):
            name = "equal_gpus"
            knows: Knowledge = "nothing"

            def shares(self, demand: Demand) -> FloatArray:
                each = demand.capacity[0] / len(demand.jobs)  # GPUs
                part = np.minimum(each / demand.gpus, 1.0)
                return np.where(demand.rates > 0.0, part[:, None], 0.0)

    It is asked before the first round after an arrival, a completion or a failure. Rounds come near
    its shares as time goes on: of those that still have the most of their share to receive, as many
    hold GPUs as fit. What shares leave idle goes to whoever fits, so a rule need not use up
    everything. A rule that looks at `work`, `remaining` or `end` of a record, or at durations of
    the trace, has `knows = "durations"`; otherwise it is an error. A rule may remember what it was
    asked before, from `reset` on; it must not change the simulator.

    Its scheduler has a name of its own in `conf/agent/<name>.yaml`, with `_target_:
    agents.cluster.rounds.RoundBasedPolicy` and, under `shares:`, the `_target_` of the rule.
    """

    name: str  # of the scheduler in tables
    knows: Knowledge  # of jobs that have not finished
    by_type: ClassVar[bool] = False  # whether each GPU type is a pool; else all GPUs are one pool

    def reset(self, simulator: ClusterSimulator) -> None:  # noqa: B027 - few rules remember
        """Before the first event of a simulation."""

    @abstractmethod
    def shares(self, demand: Demand) -> FloatArray:
        """(A, P) X: the part of the time for which each gang should hold GPUs of each pool.

        From 0 to 1, and 0 where the rate is; rows sum to at most 1, and `gpus @ X` is at most the
        capacity.
        """


def checked_shares(rule: ShareRule, demand: Demand) -> FloatArray:
    """(A, P) what a rule gives.

    Raises:
        InputError: naming the rule, if that breaks the contract of `ShareRule.shares`.
    """
    shares, file = np.asarray(rule.shares(demand)), f"share rule {rule.name}"
    if shares.shape != demand.rates.shape or shares.dtype.kind not in "biuf":
        expected = "a part of the time for each of {} gangs on {} pools".format(*demand.rates.shape)
        raise InputError(f"gives {shares.dtype} of shape {shares.shape}, not {expected}", file=file)
    gangs, pools = shares.sum(axis=1), demand.gpus @ shares
    for wrong, problem in (
        (
            ~np.isfinite(shares) | (shares < -ROUNDING),
            "gives a part of the time that is below 0 or none",
        ),
        (
            (shares > ROUNDING) & (demand.rates == 0.0),
            "gives GPUs to a gang that cannot run on them",
        ),
        (gangs > 1.0 + ROUNDING, f"gives a gang {gangs.max():g} of the time"),
        (
            pools > demand.capacity + ROUNDING * demand.capacity.sum(),
            "gives more GPUs than there are",
        ),
    ):
        if wrong.any():
            raise InputError(problem, file=file)
    return shares


class _MaxMin(ShareRule):
    @abstractmethod
    def asked(self, demand: Demand) -> FloatArray:
        """(A,) throughputs of gangs that can run, in whose ratio all rise."""

    def shares(self, demand: Demand) -> FloatArray:
        able = demand.rates.max(axis=1) > 0.0
        shares = np.zeros(demand.rates.shape)
        if able.any():
            part = demand.of(able)
            program = max_min_program(part.rates, part.gpus, part.capacity)
            shares[able] = program.shares(self.asked(part))
        return shares


@bounded
class MaxMinFairness(_MaxMin):
    """Maximises the least effective throughput of a gang, water-filling beyond.

    The effective throughput sum_p rate[m, p] X[m, p] is divided by the gang's weight and by its
    throughput where its time is spread over the pools in proportion to their GPUs, and multiplied
    by its GPUs: a gang of one GPU gets twice the time of a gang of two. On one GPU type this is
    equal numbers of GPUs, each gang's capped at its size. Rates are those of the interference model
    without neighbours. Sharing of one GPU by two gangs is not part of it.

    Guarantees:
        The shares are the optimum of the linear program; rounds come near them as time goes on.

    Source:
        Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, "Heterogeneity-Aware Cluster
        Scheduling Policies for Deep Learning Workloads", OSDI 2020.

    Args:
        weights: of the jobs of a queue, by the queue's name; 1 where it is not named.
    """

    name = "max_min"
    knows: Knowledge = "nothing"
    by_type = True

    def __init__(self, weights: Mapping[str, Positive] = MappingProxyType({})) -> None:
        self.weights = dict(weights)

    def reset(self, simulator: ClusterSimulator) -> None:
        queue = simulator.trace.queue
        of_name = np.array([self.weights.get(name, 1.0) for name in queue.names] + [1.0])
        self._weight = of_name[queue.codes]  # the last is that of the code UNKNOWN

    def asked(self, demand: Demand) -> FloatArray:
        usual = demand.rates @ (demand.capacity / demand.capacity.sum())
        asked: FloatArray = usual * self._weight[demand.jobs] / demand.gpus
        return asked


class LeastAttainedService(_MaxMin):
    """Equal numbers of GPUs for all gangs, each gang's capped at its size; all GPUs are alike.

    The heterogeneity-agnostic baseline of the paper (section 7): the program of `max_min` with
    every rate 1. The rounds then always take the gang with the least service for its share, which
    is least attained service with a round as quantum.

    Guarantees:
        Shares are max-min fair in GPUs; rounds come near them as time goes on.

    Source:
        Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, "Heterogeneity-Aware Cluster
        Scheduling Policies for Deep Learning Workloads", OSDI 2020, section 7.
    """

    name = "las_gavel"
    knows: Knowledge = "nothing"

    def asked(self, demand: Demand) -> FloatArray:
        return 1.0 / demand.gpus


ROUNDING = 1e-5  # part of the time, or of the GPUs, by which linear programs may miss a bound
TOLERANCE = 1e-7  # of the worst rho
LEAST = 1e-9  # part of its full speed that a gang asks for at least, to keep the program scaled


class FinishTimeFairness(ShareRule):
    """Minimises the worst rho = time in the shared cluster / time on a 1/A part of it.

    Both count from the submission and assume that the shares of now last: (elapsed + remaining /
    sum_p rate X) / (isolated so far + remaining / isolated throughput). Isolated, a gang has
    capacity[p] / A GPUs of each pool, hence the time shares capacity[p] / (A gpus), scaled down to
    a sum of 1; what it has done since the last computation counts at the throughput it had then.

    rho <= r asks for a throughput of remaining / (r isolated - elapsed): a max-min program with
    those throughputs as levels, and a root in r. A gang whose rho exceeds r even at full speed asks
    for full speed, so it does not hold back the others; the worst rho is still least.

    Guarantees:
        The worst rho is least, as long as the shares of now last.

    Source:
        Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, "Heterogeneity-Aware Cluster
        Scheduling Policies for Deep Learning Workloads", OSDI 2020; the measure is that of Themis
        (NSDI 2020).
    """

    name = "finish_time_fairness"
    knows: Knowledge = "durations"
    by_type = True

    def reset(self, simulator: ClusterSimulator) -> None:
        self._isolated = np.zeros(len(simulator.trace))  # seconds for what has been done
        self._throughput = np.ones(len(simulator.trace))  # isolated, as of the last computation
        self._remaining = simulator.state.jobs["work"].copy()

    def shares(self, demand: Demand) -> FloatArray:
        jobs, records = demand.jobs, demand.records
        elapsed, remaining = demand.simulator.now - records["submit"], records["remaining"]
        done = np.maximum(self._remaining[jobs] - remaining, 0.0)
        self._isolated[jobs] += done / self._throughput[jobs]
        self._remaining[jobs] = remaining
        isolated = isolated_shares(demand.rates, demand.gpus, demand.capacity)
        throughput = (demand.rates * isolated).sum(axis=1)
        able = throughput > 0.0
        self._throughput[jobs] = np.where(able, throughput, 1.0)
        shares = np.zeros(demand.rates.shape)
        if able.any():
            fair = self._isolated[jobs][able] + remaining[able] / throughput[able]
            shares[able] = least_worst_rho(
                demand.rates[able], demand.gpus[able], demand.capacity, elapsed[able],
                remaining[able], fair, isolated[able],
            )  # fmt: skip
        return shares


def isolated_shares(rates: FloatArray, gpus: FloatArray, capacity: FloatArray) -> FloatArray:
    """(A, P) time shares of each gang on a 1/A part of the cluster."""
    shares = np.where(rates > 0.0, capacity / len(gpus) / gpus[:, None], 0.0)
    scaled: FloatArray = shares / np.maximum(shares.sum(axis=1), 1.0)[:, None]
    return scaled


def least_worst_rho(
    rates: FloatArray,
    gpus: FloatArray,
    capacity: FloatArray,
    elapsed: FloatArray,
    remaining: FloatArray,
    fair: FloatArray,
    feasible: FloatArray,
) -> FloatArray:
    """(A, P) X with the least max over gangs of (elapsed + remaining / throughput) / fair.

    Args:
        rates: (A, P) work per second; every gang can run somewhere.
        gpus: (A,) of each gang.
        capacity: (P,) GPUs.
        elapsed: (A,) seconds since the submission.
        remaining: (A,) work.
        fair: (A,) seconds, above 0.
        feasible: (A, P) some shares, for a first bound.
    """
    fastest = rates.max(axis=1)
    program = max_min_program(rates, gpus, capacity)

    def needed(rho: float) -> FloatArray:
        left = rho * fair - elapsed
        with np.errstate(divide="ignore"):
            asked = np.where(left > 0.0, remaining / np.maximum(left, 0.0), np.inf)
        levels: FloatArray = np.maximum(np.minimum(asked, fastest), LEAST * fastest)
        return levels

    def spare(rho: float) -> float:
        return float(np.log(program.level(needed(rho))))

    low = float(((elapsed + remaining / fastest) / fair).min())
    high = float(((elapsed + remaining / (rates * feasible).sum(axis=1)) / fair).max())
    rho = low
    if spare(low) < 0.0:
        rho = brentq(spare, low, high * (1.0 + TOLERANCE), rtol=TOLERANCE, xtol=TOLERANCE)
    return program.shares(needed(rho))


STUCK = 1e-9  # dual value above which a gang cannot have more than the level
# By how much of itself a level that is reached may be missed later: HiGHS's tolerance; more where
# rounding in an ill-conditioned program leaves no solution.
SLACKS = (1e-7, 1e-6, 1e-5, 1e-4)


def max_min_program(
    rates: FloatArray, gpus: FloatArray, capacity: FloatArray
) -> OnePool | SeveralPools:
    """The program, solved in the way that suits its number of pools.

    Its `level` is the optimal t for (A,) throughputs asked for, above 0; its `shares` the (A, P) X
    whose sorted ratios of throughput to those are lexicographically greatest. Water-filling: where
    the least ratio cannot grow any more, the gangs that hold it back keep it, and the others are
    raised on (section 4.3 there). Without this the program leaves GPUs idle that some gangs could
    use.

    Args:
        rates: (A, P) work per second of a gang on a pool, A above 0; 0: it cannot run there. Each
            gang can run somewhere.
        gpus: (A,) of each gang, above 0.
        capacity: (P,) GPUs.
    """
    if rates.shape[1] == 1:
        return OnePool(rates[:, 0], gpus, float(capacity[0]))
    return SeveralPools(rates, gpus, capacity)


@dataclass(frozen=True, eq=False)
class OnePool:
    """Shares min(1, c asked / rate) with the largest c for which the GPUs suffice."""

    rates: FloatArray
    gpus: FloatArray
    capacity: float

    def level(self, asked: FloatArray) -> float:
        time = asked / self.rates
        return min(float(1.0 / time.max()), float(self.capacity / (self.gpus * time).sum()))

    def shares(self, asked: FloatArray) -> FloatArray:
        gpus = self.gpus
        if gpus.sum() <= self.capacity:
            return np.ones((len(gpus), 1))
        time = asked / self.rates  # share per unit of c
        order = np.argsort(-time, kind="stable")  # those that come to 1 first, first
        capped = sums_before(gpus[order])[:-1]  # by the gangs before
        slope = np.cumsum((gpus * time)[order][::-1])[::-1]  # of this gang and those after
        needed = capped + slope / time[order]  # GPUs in use when this gang comes to 1
        first = int(np.argmax(needed >= self.capacity))
        level = max(self.capacity - capped[first], 0.0) / slope[first]
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
        return self._solve(self._ask(asked))[0]

    def shares(self, asked: FloatArray) -> FloatArray:
        held = self._ask(asked)  # throughputs of those that are not raised any more
        raised = held == 0.0
        while True:
            level, columns, duals = self._solve(held)
            stuck = np.flatnonzero(raised & (duals > STUCK / asked))
            raised[stuck] = False
            if not raised.any():
                return np.clip(columns[self._shares], 0.0, 1.0)
            if len(stuck) == 0:
                raise RuntimeError("a max-min program without a binding gang")
            held[stuck] = level * asked[stuck]
            for gang in stuck:
                self._solver.changeCoeff(int(gang), self._level, 0.0)

    def _ask(self, asked: FloatArray) -> FloatArray:
        """Begin anew with throughputs `asked` (A,); those of gangs that are held, (A,): none."""
        for gang, throughput in enumerate(asked):
            self._solver.changeCoeff(gang, self._level, -float(throughput))
            self._solver.changeRowBounds(gang, 0.0, highspy.kHighsInf)
        return np.zeros(len(asked))

    def _solve(self, held: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Solve where gangs have at least the throughput `held` (A,), but for some slack.

        Returns:
            t, the columns, and dual values (A,) of the gangs' rows.

        Raises:
            RuntimeError: the program has no solution with the largest slack either.
        """
        solver, gangs = self._solver, np.flatnonzero(held).tolist()
        for slack in SLACKS if gangs else (0.0,):
            for gang in gangs:
                solver.changeRowBounds(gang, held[gang] * (1.0 - slack), highspy.kHighsInf)
            for again in (False, True):
                if again:
                    solver.clearSolver()  # a basis that has gone bad
                solver.run()
                if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
                    solution = solver.getSolution()
                    columns, duals = np.array(solution.col_value), np.array(solution.row_dual)
                    return float(columns[self._level]), columns, np.abs(duals[: len(held)])
        raise RuntimeError(f"HiGHS: {solver.getModelStatus()}")
