"""All-reduces of several jobs contend for a network port."""

from __future__ import annotations

from envs.cluster.interference.alone import StepModel
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.profiles import Profiles
from envs.cluster.interference.quantities import read_number, read_seed
from envs.cluster.interference.rates import CONTENTION, SPANNING, RateTables
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


class AllReduceContention:
    """k concurrent all-reduces on a network port run at rate 1 / (k beta + (k - 1) eta) each.

    Wang, Shi, Wang and Chu, Communication contention aware scheduling of multiple deep learning
    training jobs, 2020 (arXiv:2002.10105): k all-reduces of M bytes that share a port take
    a + k b M + (k - 1) eta M seconds. Without the latency a, an all-reduce beside k - 1 others
    takes s = (k beta + (k - 1) eta) / beta times as long as alone. A job that communicates for a
    share c of its time alone, and does nothing else meanwhile, then runs at

        rate = speed x locality / (1 - c + c s)

    with the largest k of its nodes. Only jobs on several nodes contend.

    Args:
        profiles: of jobs.
        step: how fast jobs run alone, and how much of it they communicate.
        beta: time per byte of an all-reduce alone; only eta / beta matters.
        eta: time per byte that each further all-reduce adds to what equal sharing would cost.
        seed: of the profiles of jobs without a model.

    Raises:
        InputError: `beta` is not above 0 or `eta` is negative.
    """

    name = "contention"

    def __init__(
        self, profiles: Profiles, step: StepModel, beta: float, eta: float, seed: int
    ) -> None:
        self.profiles, self.step, self.seed = profiles, step, read_seed(seed, key="seed")
        self.beta, self.eta = read_number(beta, key="beta"), read_number(eta, key="eta")
        if self.beta == 0.0:
            raise InputError("0 is not above 0", field="beta")

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """See `RateModel`."""
        cases = Cases.of(trace, self.profiles.assign(trace, self.seed))
        tables = self.step.tables(cases, self.profiles.all, cluster)
        return tables._replace(kind=CONTENTION, scope=SPANNING, beta=self.beta, eta=self.eta)
