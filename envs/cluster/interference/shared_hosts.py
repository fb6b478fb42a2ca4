"""Jobs that share GPUs as measured, and what hosts and racks have as modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from envs.arrays import FloatArray
from envs.bounds import Count, bounded
from envs.cluster.interference.analytic import StepModel
from envs.cluster.interference.cases import assign
from envs.cluster.interference.gavel import GavelPairs
from envs.cluster.interference.profiles import Profiles
from envs.cluster.interference.rates import (
    CPU,
    NIC,
    ON_GPU,
    ONE_RACK,
    PCIE,
    SEVERAL_RACKS,
    SHARED,
    UPLINK,
    RateTables,
    with_rows,
)
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from envs.units import parse_bandwidth, read_quantity

# In place of the measurements: (M, M) rates in (0, 1] of the first of some models beside the second
PairRates = Callable[[Sequence[str]], FloatArray]


@bounded
class SharedHosts:
    """What `SharedBottleneck` leaves of hosts and racks, times what `GavelPairs` measured.

    What two jobs take from each other on a GPU, its caches, memory and time, is in the measured
    ratio of the pair; what all jobs of a node take from each other is in their demands. The two are
    taken to slow a job down independently, and jobs on a set of several GPUs like jobs on one.

        rate = speed x locality x (least over nodes of PCIe, processors and port, and over racks of
               the uplink) x (least over nodes of the product over the jobs on the same set of GPUs
               of the pair's ratio)

    Speed, locality and demands are those of the job's profile. Processors prepare the inputs of all
    jobs of a node; rings of the jobs on several racks cross the uplink of each of them once, in
    each direction. Its row in the table of pairs is drawn by its id, whatever its profile, from the
    job types that run on the table's GPU type.

    Args:
        profiles: of jobs.
        step: how fast jobs run alone, and what they demand of a node.
        path: Gavel's JSON file, plain or gzipped.
        table: the file's GPU type whose pairs are taken.
        turns: rate of each of two jobs that do not fit into memory together, in (0, 1/2].
        cores: of a node; None: they are never short.
        core_input: bytes of input per second that a core prepares.
        uplink: bytes per second of a rack to all others, in each direction; None: never short.
        predicted: the pairs, in place of the table's; None: as measured.
        seed: of the profiles of jobs without a model, and of the rows of all jobs.

    Raises:
        InputError: the file or one of the values is wrong, or the uplink is slower than `core` of
            the network, which a single job sees of it.
    """

    name = "shared"

    def __init__(
        self,
        profiles: Profiles,
        step: StepModel,
        path: str,
        table: str = "v100",
        turns: float = 0.5,
        cores: Count | None = 12,
        core_input: str | float = "60MB/s",
        uplink: str | float | None = "25Gbps",
        predicted: PairRates | None = None,
        seed: int = 0,
    ) -> None:
        self.profiles, self.step, self.seed = profiles, step, seed
        self.pairs = GavelPairs(path, {}, table, turns, self.seed)
        self.pair = self.pairs.pair if predicted is None else predicted(self.pairs.models)
        each = read_quantity(parse_bandwidth, core_input, key="core_input", at_least=1.0)
        self.inputs = np.inf if cores is None else each * cores
        self.uplink, alone = np.inf, step.network.core.bandwidth
        if uplink is not None:
            self.uplink = read_quantity(parse_bandwidth, uplink, key="uplink")
        if self.uplink < alone:
            raise InputError(
                f"{uplink!r} is slower than network.core, {alone:g} B/s", field="uplink"
            )

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        alone, step = self.step.tables(trace, self.profiles, self.seed, cluster)
        network, demand = self.step.network, np.pad(alone.demand, ((0, 0), (0, 2)))
        volume = demand[:, NIC] * network.rack.bandwidth * step[:, ONE_RACK]
        demand[:, CPU] = demand[:, PCIE] * network.pcie.bandwidth / self.inputs
        demand[:, UPLINK] = volume / self.uplink / step[:, SEVERAL_RACKS]
        models = self.pairs.models
        runs = [self.pairs.reference.alone.get((model, 1), 0.0) > 0.0 for model in models]
        # The next seed: a row is drawn independently of the profile.
        row = assign(
            trace, models, lambda gangs: np.tile(runs, (len(gangs), 1)), self.seed + 1, named=False
        )
        return with_rows(alone._replace(demand=demand), row, len(models))._replace(
            kind=SHARED,
            scope=ON_GPU,
            pair=self.pair.copy(),
            feasible=self.pairs.feasible.copy(),
        )
