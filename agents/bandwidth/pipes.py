"""What placements take at the rates that their traffic asks for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled
from envs.hardware.topology import Topology
from envs.network.max_min import Filling, fill, filling
from envs.network.pipes import pipe_of_pairs
from envs.step.kernel import StepArrays
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline

INSIDE = -1  # the pipe of two devices of one server
_LEAST_BYTES = 1.0  # what a pipe counts for, at least, through which anything goes


class _Response(NamedTuple):
    """Facts and working memory of `_respond`.

    P = S * S pipes between S servers are numbered source * S + destination. A tensor takes
    `latency + volume / rate` seconds through a pipe.
    """

    pipe: IntArray  # (D, D) INSIDE within a server
    inner: FloatArray  # (D, D) bytes/s of the slowest link of a pair beside the channels
    latency: FloatArray  # (T, L) seconds, whatever the rate
    volume: FloatArray  # (T, L) bytes
    of_channel: IntArray  # (C,) pipe
    channel_ptr: IntArray  # (C + 1,)
    channel_links: IntArray
    capacity: FloatArray  # (K,) bytes/s
    traffic: FloatArray  # (P,) out: bytes
    rate: FloatArray  # (C,) out: bytes/s
    seconds: FloatArray  # (T, D) out: by tensor and receiving device


class ResponsiveSimulator(StepSimulator):
    """Plays every placement under the static rates that its traffic asks for.

    The rates are the weighted max-min shares of the channels, the weight of every channel of a
    pipe the square root of the bytes that the placement sends through the pipe. Were all transfers
    of the step to follow one another, sum V / b, those rates would be the best for one shared link
    (b in proportion to the root of V: Cauchy-Schwarz). They depend on the placement alone, not on
    the order.

    Args:
        problem: an `allocated_problem` at any rates; bytes do not depend on them.
        whole: the topology before, which has the network.
    """

    def __init__(self, problem: StepProblem, whole: Topology) -> None:
        super().__init__(problem)
        topology, network = problem.topology, whole.network
        devices, seconds = topology.num_devices, problem.transfer_seconds
        width = np.where(np.isfinite(topology.class_bandwidth), topology.class_bandwidth, 0.0)
        apart, pipe = pipe_of_pairs(whole)
        self._response = _Response(
            pipe=np.where(apart, pipe, INSIDE),
            inner=np.ascontiguousarray(network.inner_bandwidth),
            latency=np.where(seconds > 0.0, topology.class_latency, 0.0),
            volume=np.maximum(seconds - topology.class_latency, 0.0) * width,
            of_channel=network.channel_pipe,
            channel_ptr=network.channel_ptr,
            channel_links=network.channel_links,
            capacity=network.link_capacity,
            traffic=np.zeros(network.num_servers**2),
            rate=np.zeros(network.num_channels),
            seconds=np.zeros((len(seconds), devices)),
        )
        self._filling = filling(network.num_links, len(network.channel_links))
        self._played = StepSimulator(problem)
        self._played.arrays = self.arrays._replace(  # a tensor comes from one device
            transfer_seconds=self._response.seconds,
            link_class=np.tile(np.arange(devices, dtype=np.uint32), (devices, 1)),
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
        _respond(self.arrays, self._response, self._filling, device)
        return self._played


@compiled
def _respond(arrays: StepArrays, r: _Response, work: Filling, device: IntArray) -> None:
    """Sets the rates of placement `device` (N,), and the seconds of its transfers at them."""
    r.traffic[:] = 0.0
    used = np.zeros(len(r.traffic), np.bool_)
    source = np.zeros(len(r.seconds), np.int64)  # of each tensor
    piped = np.zeros(r.seconds.shape, np.bool_)  # those that pass a pipe
    for p in range(len(device)):
        for k in range(arrays.use_ptr[p], arrays.use_ptr[p + 1]):
            d, e, t = device[p], device[arrays.use_op[k]], arrays.use_tensor[k]
            kind = arrays.link_class[d, e]
            r.seconds[t, e] = arrays.transfer_seconds[t, kind]
            pipe = r.pipe[d, e]
            if pipe != INSIDE and r.seconds[t, e] > 0.0 and not piped[t, e]:
                source[t], piped[t, e] = d, True
                r.traffic[pipe] += r.volume[t, kind]
                used[pipe] = True
    channels = len(r.rate)
    weight, priority = np.zeros(channels), np.zeros(channels, np.int64)
    active = np.zeros(channels, np.int64)
    count = 0
    for c in range(channels):
        pipe = r.of_channel[c]
        r.rate[c] = 0.0
        if used[pipe]:
            weight[c] = np.sqrt(max(r.traffic[pipe], _LEAST_BYTES))
            active[count] = c
            count += 1
    fill(active, count, r.channel_ptr, r.channel_links, weight, priority, r.capacity, r.rate, work)
    pipe_rate = np.zeros(len(r.traffic))
    for c in range(channels):
        pipe_rate[r.of_channel[c]] += r.rate[c]
    for t in range(len(source)):
        for e in range(len(r.pipe)):
            if piped[t, e]:
                d = source[t]
                kind, rate = arrays.link_class[d, e], min(pipe_rate[r.pipe[d, e]], r.inner[d, e])
                r.seconds[t, e] = r.latency[t, kind] + r.volume[t, kind] / rate
