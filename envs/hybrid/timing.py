"""How long stages compute and what they exchange takes, on the devices they are on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.hardware.topology import Topology
from envs.hybrid.plan import LayerRow, Stage


class StageSeconds(NamedTuple):
    """Of one micro-batch, by replica: each of its shards is busy so long."""

    forward: FloatArray  # (R,)
    input_gradient: FloatArray  # (R,) with what is computed again before it
    weight_gradient: FloatArray  # (R,)

    @property
    def passes(self) -> FloatArray:
        """(R,) all of them."""
        return self.forward + self.input_gradient + self.weight_gradient


def stage_seconds(problem: LayerRow, stage: Stage) -> StageSeconds:
    """Seconds of a micro-batch on `stage`.

    Shards work in step with the slowest of them and send their partial results over the slowest
    link of their ring: latency times messages, bytes over bandwidth.
    """
    layers = layer_seconds(problem, stage, slice(stage.first, stage.end))
    return StageSeconds(*(column.sum(axis=0) for column in layers))


def layer_seconds(problem: LayerRow, stage: Stage, layers: slice) -> StageSeconds:
    """As `stage_seconds`, (layers, R) for each of the layers."""
    shard = problem.sharding[stage.shards]
    groups = np.array(stage.devices, dtype=np.int64).reshape(stage.replicas, stage.shards)
    share, left = stage.share, shard.compute[layers, None]
    forward, backward, weights = (
        column[layers][:, groups].max(axis=2) * left * share
        for column in (problem.forward, problem.input_gradient, problem.weight_gradient)
    )
    if stage.shards > 1:
        latency, per_byte = _shard_slowness(problem, groups)

        def exchanged(sent: FloatArray, messages: FloatArray) -> FloatArray:
            seconds = sent[layers, None] * share * per_byte
            return np.asarray(seconds + messages[layers, None] * latency)

        forward = forward + exchanged(shard.forward_sent, shard.forward_messages)
        backward = backward + exchanged(shard.backward_sent, shard.backward_messages)
    return StageSeconds(forward, backward + forward if stage.recompute else backward, weights)


def _shard_slowness(problem: LayerRow, groups: IntArray) -> tuple[FloatArray, FloatArray]:
    """((R,) seconds a message, (R,) seconds a byte sent) among the shards of each replica."""
    if problem.servers is not None:
        latency, per_byte = problem.servers.all_reduce(groups.tolist())
        count = groups.shape[1]
        sent = per_byte * count / (2.0 * (count - 1))
        return np.full(len(groups), latency), np.full(len(groups), sent)
    rings = np.array([ring_slowness(problem.topology, [group]) for group in groups.tolist()])
    return rings[:, 0], rings[:, 1]


def ring_slowness(topology: Topology, rings: Sequence[Sequence[int]]) -> tuple[float, float]:
    """(seconds, seconds per byte) of a message around rings of devices that run beside each other.

    A ring goes through its devices server by server. Edges of several rings that leave by the same
    port, or arrive by it, share the port's bandwidth.
    """
    latency, bandwidth = topology.latency, topology.bandwidth
    edges = []
    for ring in rings:
        around = sorted(ring, key=lambda device: (topology.server[device], device))
        edges += list(zip(around, [*around[1:], around[0]], strict=True)) if len(ring) > 1 else []
    busy: dict[int, int] = defaultdict(int)
    for a, b in edges:
        busy[int(topology.send_port[a, b])] += 1
        busy[int(topology.receive_port[a, b])] += 1
    slowest = slowness = 0.0
    for a, b in edges:
        beside = max(busy[int(topology.send_port[a, b])], busy[int(topology.receive_port[a, b])])
        slowest = max(slowest, float(latency[a, b]))
        slowness = max(slowness, beside / float(bandwidth[a, b]))
    return slowest, slowness


def all_reduce_seconds(problem: LayerRow, stage: Stage, nbytes: float) -> float:
    """Seconds in which the replicas of `stage` sum gradients of `nbytes` per shard.

    Shard k of every replica sum among each other, by the problem's plans; without those they are a
    ring: 2 (R - 1) rounds, in each of which a device passes on 1 / R of the bytes (Patarasuk and
    Yuan, JPDC 2009).
    """
    if stage.replicas == 1:
        return 0.0
    rings = [stage.devices[shard :: stage.shards] for shard in range(stage.shards)]
    if problem.servers is not None:
        latency, per_byte = problem.servers.all_reduce(rings)
        return latency + nbytes * per_byte
    if problem.sums is not None:
        return problem.sums.among(problem.topology, rings).seconds(nbytes)
    latency, per_byte = ring_slowness(problem.topology, rings)
    rounds = 2 * (stage.replicas - 1)
    return rounds * (latency + nbytes / stage.replicas * per_byte)


def moves(before: Stage, after: Stage) -> list[tuple[int, int, float]]:
    """(sender, receiver, share of a micro-batch) of replicas: where their shares overlap."""
    ends = [sums_before(stage.share) for stage in (before, after)]
    found = []
    for i in range(before.replicas):
        for j in range(after.replicas):
            share = min(ends[0][i + 1], ends[1][j + 1]) - max(ends[0][i], ends[1][j])
            if share > 1e-12:
                found.append((i, j, float(share)))
    return found


def cut_seconds(problem: LayerRow, before: Stage, after: Stage) -> float:
    """Seconds of passing a micro-batch on, forward or back, if nothing else is under way.

    The first shard of a replica speaks for it. Every port carries its parts one after the other;
    the fullest one is waited for.
    """
    topology, nbytes = problem.topology, float(problem.cut_bytes[min(before.end, after.end)])
    busy: dict[int, float] = defaultdict(float)
    for sender, receiver, share in moves(before, after):
        source, destination = before.replica(sender)[0], after.replica(receiver)[0]
        if source != destination and nbytes > 0:
            seconds = float(
                topology.latency[source, destination]
                + share * nbytes / topology.bandwidth[source, destination]
            )
            busy[int(topology.send_port[source, destination])] += seconds
            busy[int(topology.receive_port[source, destination])] += seconds
    return max(busy.values(), default=0.0)
