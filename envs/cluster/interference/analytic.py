"""Data-parallel jobs alone, sharing what a node has, and contending for its network port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray
from envs.bounds import NonNegative, Positive, Share, bounded
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.profiles import JobProfile, Profiles
from envs.cluster.interference.rates import (
    BOTTLENECK,
    CONTENTION,
    GPU_TIME,
    NIC,
    ONE_NODE,
    ONE_RACK,
    PCIE,
    RING,
    SPANNING,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, require_one_of
from envs.hardware.fabric import LinkSpec
from envs.network.fluid import ring_seconds
from envs.synchronisation.link_graph import KINDS, LinkGraph, VertexSpec, graph_of
from envs.synchronisation.planned import PlannedSums, Synchroniser


@dataclass(frozen=True)
class NodeNetwork:
    """Three levels of links: inside a node, between nodes of a rack, between racks.

    A ring all-reduce of p GPUs crosses the boundary of every node and rack once in each direction,
    so its narrowest link sets its pace: 2 (p - 1) latency + 2 (p - 1) / p S / B seconds with that
    of the widest level it spans (`ring_seconds`). How many nodes a ring spans does not matter.

    Args:
        inside: between two neighbouring GPUs of a node.
        rack: between two nodes of a rack, at the node's network port.
        core: between two racks, as seen by one job.
        pcie: between a node's processors and its GPUs, shared by all of them.
        inside_is_pcie: whether `inside` is that shared PCIe, rather than links of its own.

    Raises:
        InputError: a wider level is faster than a narrower one.
    """

    inside: LinkSpec
    rack: LinkSpec
    core: LinkSpec
    pcie: LinkSpec
    inside_is_pcie: bool

    def __post_init__(self) -> None:
        levels = {"inside": self.inside, "rack": self.rack, "core": self.core}
        for (near, a), (far, b) in pairwise(levels.items()):
            if b.bandwidth > a.bandwidth or b.latency < a.latency:
                raise InputError(f"is faster than {near}", field=f"network.{far}")

    @classmethod
    def of(
        cls, inside: object, rack: object, core: object, pcie: object, inside_is_pcie: bool
    ) -> NodeNetwork:
        """A network from sections `{medium, bandwidth, latency}` of a configuration.

        Raises:
            InputError: naming the key that is wrong.
        """
        sections = {"inside": inside, "rack": rack, "core": core, "pcie": pcie}
        links = {name: LinkSpec.parse(of, key=f"network.{name}") for name, of in sections.items()}
        return cls(**links, inside_is_pcie=inside_is_pcie)

    def links(self, gpus: int, per_node: int, spread: int) -> LinkGraph:
        """The links of a job of `gpus` GPUs, `per_node` on a node, that is spread so far.

        A way between two GPUs has the latency of the widest level on it, half up and half down.
        Switches of racks, and the one between racks, can add.
        """
        nodes = max(-(-gpus // per_node), 2) if spread > ONE_NODE else 1
        racks = 2 if spread > ONE_RACK else 1
        levels = (
            ("gpu", gpus, "participant", self.inside),
            ("node", nodes, "switch", self.rack),
            ("rack", racks, "adding_switch", self.core),
            ("core", 1, "adding_switch", self.core),
        )
        vertices = [
            VertexSpec(f"{level}{n}", *KINDS[kind])
            for level, count, kind, _ in levels
            for n in range(count)
        ]
        links, below = [], 0.0
        for (level, count, _, link), (above, fewer, *_) in islice(pairwise(levels), spread + 1):
            half, below = (link.latency - below) / 2, link.latency
            for n in range(count):
                end = f"{above}{n * fewer // count}"
                links.append((f"{level}{n}", end, link.bandwidth, half))
        back = [(b, a, bandwidth, latency) for a, b, bandwidth, latency in links]
        return graph_of(f"{gpus} GPUs on {nodes} nodes", vertices, links + back)

    def all_reduce_seconds(self, gpus: int, size: float) -> tuple[float, ...]:
        """Seconds of a ring on one node, on one rack, on several racks; 0 for a single GPU."""
        links = self.inside, self.rack, self.core
        return tuple(ring_seconds(gpus, size, link.latency, link.bandwidth) for link in links)


class JobSums(NamedTuple):
    """An all-reduce of S bytes."""

    seconds: Callable[[float], tuple[float, ...]]  # of S: on a node, a rack, racks
    inside: float  # a GPU's bytes over S, on one node
    port: float  # bytes at the busiest port of a node over S, on one rack


@bounded
@dataclass(frozen=True)
class StepModel:
    """A step of a data-parallel job: it computes, and all-reduces its gradients.

        step = compute + max(0, all-reduce - overlap compute)

    A trace's durations hold on `reference`, spread no further than the cluster's size demands.

    Args:
        network: the links.
        devices: device of `envs.hardware.devices` of every GPU type of the cluster.
        reference: the device on which durations hold.
        overlap: share of the computation beside which all-reduces can run: 0 none, 2/3 the whole
            backward pass (Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 3.2.3).
        synchronisation: plans all-reduces on `NodeNetwork.links`; None: they are rings.

    """

    network: NodeNetwork
    devices: Mapping[str, str] = field(
        default_factory=lambda: {
            "V100": "V100-16GB",
            "V100M16": "V100-16GB",
            "V100M32": "V100-32GB",
            "P100": "P100-16GB",
            "T4": "T4",
            "A10": "A10",
            "A100": "A100-40GB",
            "H100": "H100",
            "H200": "H200",
            "B200": "B200",
            "L4": "L4",
            "L40S": "L40S",
            "MI300X": "MI300X",
        }
    )
    reference: str = "V100-16GB"
    overlap: Share = 0.6667
    synchronisation: Synchroniser | None = None

    def sums(self, gpus: int, per_node: int) -> JobSums:
        """What an all-reduce of a job costs whose nodes have so many GPUs.

        Raises:
            InputError: the planner of synchronisation has no plan.
        """
        if self.synchronisation is None or gpus < 2:
            port = 2 * (gpus - 1) / gpus
            return JobSums(partial(self.network.all_reduce_seconds, gpus), port, port)
        planned = PlannedSums(self.synchronisation)
        networks = [self.network.links(gpus, per_node, spread) for spread in range(3)]
        costs = [planned.over([network]) for network in networks]

        def most_sent(spread: int, start: str, end: str) -> float:
            """By a link from a vertex to another that are called so."""
            named = networks[spread].vertices
            return max(
                float(costs[spread].sent[link])
                for (a, b), link in networks[spread].link.items()
                if named[a].startswith(start) and named[b].startswith(end)
            )

        inside, port = most_sent(ONE_NODE, "gpu", "node"), most_sent(ONE_RACK, "node", "rack")
        return JobSums(lambda size: tuple(cost.seconds(size) for cost in costs), inside, port)

    def seconds(
        self, profile: JobProfile, sums: JobSums, device: str
    ) -> tuple[FloatArray, FloatArray]:
        """(3,) seconds of a step by spread, and (3,) those in which it only communicates."""
        compute = profile.seconds_on(device)
        reduce = np.array(sums.seconds(profile.gradients))
        exposed = np.maximum(0.0, reduce - self.overlap * compute)
        return compute + exposed, exposed

    def tables(
        self, trace: Trace, profiles: Profiles, seed: int, cluster: Cluster
    ) -> tuple[RateTables, FloatArray]:
        """What neighbours do not change of every case, and (P, 3) its seconds on `reference`.

        The tables have speed, locality, communication and the demands of a node's resources on
        `reference`; neighbours have no effect in them. Seconds are those of a step, by spread.

        Raises:
            InputError: a GPU type without a device, a profile without seconds for its device.
        """
        cases = Cases.of(trace, profiles.names, seed, profiles.suits)
        for gpu_type in cluster.gpu_types:
            require_one_of(gpu_type, self.devices, field="devices")
        devices = [*(self.devices[name] for name in cluster.gpu_types), self.reference]
        shape = (len(cases.gpus), len(devices), 3)
        step, exposed, demand = np.ones(shape), np.zeros(shape), np.zeros((shape[0], 4))
        network, per_node = self.network, int(cluster.gpus.max())
        sums = {gpus: self.sums(gpus, per_node) for gpus in set(cases.gpus.tolist()) if gpus}
        for case in np.flatnonzero(cases.gpus):
            profile, job = profiles.all[cases.profile[case]], sums[int(cases.gpus[case])]
            both = np.array([self.seconds(profile, job, device) for device in devices])
            step[case], exposed[case] = both.swapaxes(0, 1)
            alone = step[case, -1]
            demand[case, GPU_TIME] = profile.busy
            demand[case, PCIE] = profile.input / network.pcie.bandwidth / alone.min()
            if network.inside_is_pcie:
                ring = job.inside * profile.gradients
                demand[case, RING] = ring / network.pcie.bandwidth / alone.min()
            port = job.port * profile.gradients
            demand[case, NIC] = port / network.rack.bandwidth / alone[ONE_RACK]
        reference, step, exposed = step[:, -1], step[:, :-1], exposed[:, :-1]
        tightest, every = cases.tightest_spread(cluster), np.arange(len(cases.gpus))
        tight = step[every, :, tightest]  # (P, T)
        locality = np.minimum(tight[:, :, None] / step, 1.0)  # above 1: a spread it cannot have
        tables = without_neighbours(
            cases.of_job, reference[every, tightest][:, None] / tight, locality[..., None]
        )
        communication = (exposed / step)[..., None]
        return tables._replace(communication=communication, demand=demand), reference


@dataclass(frozen=True)
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

    profiles: Profiles
    step: StepModel
    seed: int = 0
    name = "analytic"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        tables, _ = self.step.tables(trace, self.profiles, self.seed, cluster)
        return tables._replace(kind=BOTTLENECK)


@bounded
@dataclass(frozen=True)
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

    profiles: Profiles
    step: StepModel
    beta: Positive = 1.0
    eta: NonNegative = 0.3
    seed: int = 0
    name = "contention"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        tables, _ = self.step.tables(trace, self.profiles, self.seed, cluster)
        return tables._replace(kind=CONTENTION, scope=SPANNING, beta=self.beta, eta=self.eta)
