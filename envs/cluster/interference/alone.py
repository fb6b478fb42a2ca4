"""How fast data-parallel jobs run alone: on which GPU type, spread how far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.cluster.interference.cases import Cases
from envs.cluster.interference.node_network import NodeNetwork
from envs.cluster.interference.profiles import JobProfile
from envs.cluster.interference.quantities import read_share
from envs.cluster.interference.rates import (
    GPU_TIME,
    NIC,
    ONE_RACK,
    PCIE,
    RING,
    FloatArray,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.errors import InputError


@dataclass(frozen=True)
class StepModel:
    """A step of a data-parallel job: it computes, and all-reduces its gradients.

        step = compute + max(0, all-reduce - overlap compute)

    A trace's durations hold on `reference`, spread no further than the cluster's size demands.

    Args:
        network: the links.
        devices: device of `hardware.catalogue` of every GPU type of the cluster.
        reference: the device on which durations hold.
        overlap: share of the computation beside which all-reduces can run: 0 none, 2/3 the whole
            backward pass (Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 3.2.3).

    Raises:
        InputError: `overlap` is not from 0 to 1.
    """

    network: NodeNetwork
    devices: Mapping[str, str]
    reference: str
    overlap: float

    def __post_init__(self) -> None:
        read_share(self.overlap, key="overlap")

    def seconds(self, profile: JobProfile, gpus: int, device: str) -> tuple[FloatArray, FloatArray]:
        """(3,) seconds of a step by spread, and (3,) those in which it only communicates."""
        compute = profile.seconds_on(device)
        reduce = np.array(self.network.all_reduce_seconds(gpus, profile.gradients))
        exposed = np.maximum(0.0, reduce - self.overlap * compute)
        return compute + exposed, exposed

    def tables(
        self, cases: Cases, profiles: tuple[JobProfile, ...], cluster: Cluster
    ) -> RateTables:
        """Speed, locality, communication and demands of every case; neighbours have no effect.

        Raises:
            InputError: a GPU type without a device, a profile without seconds for its device.
        """
        kinds = [self._device(name) for name in cluster.gpu_types]
        shape = (len(cases.gpus), len(kinds), 3)
        step, exposed = np.ones(shape), np.zeros(shape)
        reference = np.ones((len(cases.gpus), 3))
        demand = np.zeros((len(cases.gpus), 4))
        for case, (number, gpus) in enumerate(zip(cases.profile, cases.gpus, strict=True)):
            if gpus == 0:
                continue
            profile = profiles[number]
            reference[case], _ = self.seconds(profile, int(gpus), self.reference)
            for kind, device in enumerate(kinds):
                step[case, kind], exposed[case, kind] = self.seconds(profile, int(gpus), device)
            demand[case] = self._demand(profile, int(gpus))
        tightest = cases.tightest_spread(cluster)
        every = np.arange(len(cases.gpus))
        tight = step[every, :, tightest]  # (P, T)
        locality = np.minimum(tight[:, :, None] / step, 1.0)  # above 1: a spread it cannot have
        tables = without_neighbours(
            cases.of_job, reference[every, tightest][:, None] / tight, locality[..., None]
        )
        return tables._replace(communication=(exposed / step)[..., None], demand=demand)

    def _demand(self, profile: JobProfile, gpus: int) -> FloatArray:
        """(4,) shares of the node's resources, on `reference`."""
        step, _ = self.seconds(profile, gpus, self.reference)
        volume = 2 * (gpus - 1) / gpus * profile.gradients
        demand = np.zeros(4)
        demand[GPU_TIME] = profile.busy
        demand[PCIE] = profile.input / self.network.pcie.bandwidth / step.min()
        if self.network.inside_is_pcie:
            demand[RING] = volume / self.network.pcie.bandwidth / step.min()
        demand[NIC] = volume / self.network.rack.bandwidth / step[ONE_RACK]
        return demand

    def _device(self, gpu_type: str) -> str:
        if gpu_type not in self.devices:
            raise InputError(
                f"GPU type {gpu_type!r} has no device here (known: {', '.join(self.devices)})",
                field="devices",
            )
        return self.devices[gpu_type]
