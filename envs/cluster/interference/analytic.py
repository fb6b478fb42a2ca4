"""Neighbours share the GPU, the PCIe and the network port of a node."""

from __future__ import annotations

from envs.cluster.interference.alone import StepModel
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.profiles import Profiles
from envs.cluster.interference.quantities import read_seed
from envs.cluster.interference.rates import BOTTLENECK, RateTables
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace


class SharedBottleneck:
    """Jobs slow down together when a resource of their node is asked for more than it has.

    Alone, job i keeps resource r of a node busy for a share d[i, r] of its time: the utilisation
    law of operational analysis (Denning and Buzen, The operational analysis of queueing network
    models, ACM Computing Surveys 10(3), 1978). Where the demands of a node's jobs add up to
    D[r] > 1, the resource serves them in proportion, so that each goes on at 1 / D[r]; the scarcest
    resource that a job uses sets its pace, as in a roofline. The bounds are asymptotic: work on
    different resources is taken to overlap fully.

        rate = speed x locality x min over nodes, and over r with d[i, r] > 0, of
               max(1, d[i, r]) / max(1, D[r])

    Resources: the time of a partial GPU, shared by the jobs on it; the node's PCIe, which takes the
    inputs of all jobs and, where GPUs have no links of their own, their rings; the node's network
    port, shared by the jobs on several nodes. Demands are those on the reference device.

    Args:
        profiles: of jobs.
        step: how fast jobs run alone.
        seed: of the profiles of jobs without a model.
    """

    name = "analytic"

    def __init__(self, profiles: Profiles, step: StepModel, seed: int) -> None:
        self.profiles, self.step, self.seed = profiles, step, read_seed(seed, key="seed")

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """See `RateModel`."""
        cases = Cases.of(trace, self.profiles.assign(trace, self.seed))
        return self.step.tables(cases, self.profiles.all, cluster)._replace(kind=BOTTLENECK)
