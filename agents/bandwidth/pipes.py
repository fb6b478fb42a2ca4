"""What flows between servers, and what placements take at the rates they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled
from envs.hardware.network import Network
from envs.hardware.topology import Topology
from envs.network.max_min import Filling, fill, filling
from envs.network.pipes import pipe_of_pairs
from envs.step.kernel import IndexArray, StepArrays
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline

INSIDE = -1  # the pipe of two devices of one server


@dataclass(frozen=True, eq=False)
class Pipes:
    """The pipes of a network as the transfers of one problem use them.

    P = S * S pipes between S servers are numbered source * S + destination. A tensor takes
    `latency + volume / rate` seconds through a pipe.
    """

    network: Network
    of_pair: IntArray  # (D, D) pipe of each pair of devices, INSIDE within a server
    of_channel: IntArray  # (C,) pipe of each channel
    inner: FloatArray  # (D, D) bytes/s of the slowest link of a pair beside the channels
    latency: FloatArray  # (T, L) seconds, whatever the rate
    volume: FloatArray  # (T, L) bytes

    @classmethod
    def of(cls, problem: StepProblem, whole: Topology) -> Pipes:
        """The pipes of `problem`, an `allocated_problem` at any rates; bytes do not depend on them.

        `whole` is the topology before, which has the network.
        """
        topology, network = problem.topology, whole.network
        width = np.where(np.isfinite(topology.class_bandwidth), topology.class_bandwidth, 0.0)
        moving = np.maximum(problem.transfer_seconds - topology.class_latency, 0.0)
        timed = problem.transfer_seconds > 0.0
        apart, pipe = pipe_of_pairs(whole)
        return cls(
            network=network,
            of_pair=np.where(apart, pipe, INSIDE),
            of_channel=network.channel_pipe,
            inner=network.inner_bandwidth,
            latency=np.where(timed, topology.class_latency, 0.0),
            volume=np.where(timed, moving, 0.0) * width,
        )

    @property
    def count(self) -> int:
        return self.network.num_servers**2


_LEAST_BYTES = 1.0  # what a pipe counts for, at least, through which anything goes


class _Response(NamedTuple):
    """Facts and working memory of `_respond`."""

    pipe: IntArray  # (D, D) INSIDE within a server
    inner: FloatArray  # (D, D) bytes/s
    latency: FloatArray  # (T, L) seconds
    volume: FloatArray  # (T, L) bytes
    producer: IntArray  # (T,) operator
    of_channel: IntArray  # (C,) pipe
    channel_ptr: IntArray  # (C + 1,)
    channel_links: IntArray
    capacity: FloatArray  # (K,) bytes/s
    traffic: FloatArray  # (P,) out: bytes
    rate: FloatArray  # (C,) out: bytes/s
    pair_class: IndexArray  # (D, D) column of each pair in `seconds`
    seconds: FloatArray  # (T, 1 + D * D) scratch: those between servers


class ResponsiveSimulator(StepSimulator):
    """Plays every placement under the static rates that its traffic asks for.

    The rates are the weighted max-min shares of the channels, the weight of every channel of a
    pipe the square root of the bytes that the placement sends through the pipe. Were all transfers
    of the step to follow one another, sum V / b, those rates would be the best for one shared link
    (b in proportion to the root of V: Cauchy-Schwarz). They depend on the placement alone, not on
    the order.

    Args:
        problem: an `allocated_problem`, or a fused one.
        pipes: of that problem.
    """

    def __init__(self, problem: StepProblem, pipes: Pipes) -> None:
        super().__init__(problem)
        self.pipes = pipes
        self._response, self._rates = _response(pipes, problem)
        self._played = StepSimulator(problem)
        self._played.arrays = self.arrays._replace(
            transfer_seconds=self._response.seconds, link_class=self._response.pair_class
        )

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each at its own rates."""
        seconds = [self._at_rates(device).step_times(device[None], order)[0] for device in devices]
        return np.array(seconds)

    def allocation(self, device: IntArray) -> BandwidthAllocation:
        """The rates that placement `device` (N,) is played at."""
        self._at_rates(device)
        return BandwidthAllocation(self._response.rate.copy())

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,) at its own rates."""
        return self._at_rates(device).run(device, order)

    def _at_rates(self, device: IntArray) -> StepSimulator:
        """Plays at the rates of placement `device` (N,), until it is called for another."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        _respond(self.arrays, self._response, self._rates, device)
        return self._played


def _response(pipes: Pipes, problem: StepProblem) -> tuple[_Response, Filling]:
    network = pipes.network
    tensors, devices = len(problem.transfer_seconds), len(pipes.of_pair)
    every = np.arange(devices * devices).reshape(devices, devices)
    pair_class = np.where(np.eye(devices, dtype=np.bool_), 0, 1 + every)
    seconds = np.zeros((tensors, 1 + devices * devices))
    seconds[:, 1:] = problem.transfer_seconds[:, problem.topology.link_class.ravel()]
    response = _Response(
        pipe=pipes.of_pair,
        inner=np.ascontiguousarray(pipes.inner),
        latency=np.ascontiguousarray(pipes.latency),
        volume=np.ascontiguousarray(pipes.volume),
        producer=problem.graph.producer,
        of_channel=pipes.of_channel,
        channel_ptr=network.channel_ptr,
        channel_links=network.channel_links,
        capacity=network.link_capacity,
        traffic=np.zeros(pipes.count),
        rate=np.zeros(network.num_channels),
        pair_class=pair_class.astype(np.uint32),
        seconds=seconds,
    )
    return response, filling(network.num_links, len(network.channel_links))


@compiled
def _respond(arrays: StepArrays, r: _Response, work: Filling, device: IntArray) -> None:
    """Sets the rates of placement `device` (N,), and the seconds of its transfers at them."""
    r.traffic[:] = 0.0
    used = np.zeros(len(r.traffic), np.int64)  # transfers
    sent = np.zeros((len(r.producer), len(r.pipe)), np.bool_)  # by tensor and receiving device
    for p in range(len(device)):
        for k in range(arrays.use_ptr[p], arrays.use_ptr[p + 1]):
            d, e, t = device[p], device[arrays.use_op[k]], arrays.use_tensor[k]
            kind = arrays.link_class[d, e]
            timed = d != e and arrays.transfer_seconds[t, kind] > 0.0
            if timed and r.pipe[d, e] != INSIDE and not sent[t, e]:
                sent[t, e] = True
                r.traffic[r.pipe[d, e]] += r.volume[t, kind]
                used[r.pipe[d, e]] += 1
    channels = len(r.rate)
    weight, priority = np.zeros(channels), np.zeros(channels, np.int64)
    active = np.zeros(channels, np.int64)
    count = 0
    for c in range(channels):
        pipe = r.of_channel[c]
        r.rate[c] = 0.0
        if used[pipe] > 0:
            weight[c] = np.sqrt(max(r.traffic[pipe], _LEAST_BYTES))
            active[count] = c
            count += 1
    fill(active, count, r.channel_ptr, r.channel_links, weight, priority, r.capacity, r.rate, work)
    pipe_rate = np.zeros(len(r.traffic))
    for c in range(channels):
        pipe_rate[r.of_channel[c]] += r.rate[c]
    for t in range(len(sent)):
        d = device[r.producer[t]]
        for e in range(len(r.pipe)):
            if sent[t, e]:
                kind, rate = arrays.link_class[d, e], min(pipe_rate[r.pipe[d, e]], r.inner[d, e])
                r.seconds[t, r.pair_class[d, e]] = r.latency[t, kind] + r.volume[t, kind] / rate
