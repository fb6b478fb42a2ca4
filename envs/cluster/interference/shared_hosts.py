"""Jobs that share GPUs as measured, and their hosts' PCIe and network ports as modelled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envs.cluster.interference.analytic import StepModel
from envs.cluster.interference.cases import Cases, IntArray, assign, read_seed
from envs.cluster.interference.gavel import GavelPairs
from envs.cluster.interference.profiles import Profiles
from envs.cluster.interference.rates import ON_GPU, SHARED, RateTables
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Labels, Trace


class SharedHosts:
    """What `SharedBottleneck` leaves of PCIe and network port, times what `GavelPairs` measured.

    What two jobs take from each other on a GPU, its caches, memory and time, is in the measured
    ratio of the pair; what all jobs of a node take from each other is in their demands. The two are
    taken to slow a job down independently, and jobs on a set of several GPUs like jobs on one.

        rate = speed x locality x (least over nodes of PCIe and port) x (least over nodes of the
               product over the jobs on the same set of GPUs of the pair's ratio)

    Speed, locality and demands are those of the job's profile. Its row in the table of pairs is
    drawn by its id, whatever its profile, from the job types that run on the table's GPU type.

    Args:
        profiles: of jobs.
        step: how fast jobs run alone, and what they demand of a node.
        path: Gavel's JSON file, plain or gzipped.
        table: the file's GPU type whose pairs are taken.
        turns: rate of each of two jobs that do not fit into memory together, in (0, 1/2].
        seed: of the profiles of jobs without a model, and of the rows of all jobs.

    Raises:
        InputError: the file or one of the values is wrong.
    """

    name = "shared"

    def __init__(
        self, profiles: Profiles, step: StepModel, path: str, table: str, turns: float, seed: int
    ) -> None:
        self.profiles, self.step, self.seed = profiles, step, read_seed(seed, key="seed")
        self.pairs = GavelPairs(path, {}, table, turns, self.seed)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        models = self.pairs.models
        nameless = replace(trace, model=Labels.unknown(len(trace)))
        # The next seed: a row is drawn independently of the profile.
        row = assign(nameless, models, self._suits, self.seed + 1)
        profile = self.profiles.assign(trace, self.seed)
        both = Cases.of(trace, profile * len(models) + row)
        cases = replace(both, profile=both.profile // len(models))
        return self.step.tables(cases, self.profiles.all, cluster)._replace(
            kind=SHARED,
            scope=ON_GPU,
            row=(both.profile % len(models)).astype(np.int32)[:, None],
            pair=self.pairs.pair.copy(),
            feasible=self.pairs.feasible.copy(),
        )

    def _suits(self, gangs: IntArray) -> NDArray[np.bool_]:
        alone = self.pairs.reference.alone
        runs = np.array([alone.get((model, 1), 0.0) > 0.0 for model in self.pairs.models])
        return np.tile(runs, (len(gangs), 1))
