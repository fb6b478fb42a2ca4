"""Small problems of layers in a row, by hand and at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from envs.arrays import FloatArray
from envs.hardware.topology import Topology
from envs.hybrid.plan import Shard, Stage, unshared
from envs.hybrid.problem import HybridProblem
from tests.agents.placement.random_problems import cluster


def servers(counts: Sequence[int], inside: float, between: float) -> Topology:
    """Servers of so many devices with one NIC each; bytes/s inside a server and between two."""
    of = [server for server, count in enumerate(counts) for _ in range(count)]
    made = cluster(of, [np.inf] * len(of))
    return replace(made, class_bandwidth=np.array([np.inf, inside, between]))


def any_servers(rng: np.random.Generator) -> Topology:
    """Equal ones or not, with one device each or several."""
    shapes = ((2, 2), (4, 2), (3, 1), (4,), (1, 1, 1), (3, 3))
    return servers(shapes[rng.integers(len(shapes))], 8, 2)


def row(
    topology: Topology,
    forward: Sequence[float],
    input_gradient: Sequence[float],
    weight_gradient: Sequence[float],
    cuts: Sequence[float] = (),
    gradients: Sequence[float] = (),
    saved: Sequence[float] = (),
    micro_batches: int = 1,
    speed: Sequence[float] = (),
) -> HybridProblem:
    """Layers that take the same on every device, but for its `speed`; what is left out is zero."""
    layers, devices = len(forward), topology.num_devices
    fast = np.array(speed or [1.0] * devices)

    def column(values: Sequence[float]) -> FloatArray:
        return np.array(values, dtype=np.float64)[:, None] / fast

    def given(values: Sequence[float], count: int) -> FloatArray:
        return np.array(values or [0.0] * count, dtype=np.float64)

    return HybridProblem(
        name="row",
        layer_names=tuple(f"layer {k}" for k in range(layers)),
        topology=topology,
        forward=column(forward),
        input_gradient=column(input_gradient),
        weight_gradient=column(weight_gradient),
        update=np.zeros((layers, devices)),
        cut_bytes=np.array([0.0, *given(cuts, layers - 1), 0.0]),
        gradient_bytes=given(gradients, layers),
        state_bytes=given(gradients, layers),
        saved_bytes=given(saved, layers),
        micro_batches=micro_batches,
        capacity=np.full(devices, np.inf),
        sharding=unshared(layers),
    )


def shared(
    problem: HybridProblem, sent: Mapping[int, float], messages: float = 0.0
) -> HybridProblem:
    """Shards divide each layer evenly, and send so many bytes of it in each pass, by degree."""
    ones = np.ones(problem.num_layers)

    def shard(degree: int, nbytes: float) -> Shard:
        part, size, times = ones / degree, ones * nbytes, ones * messages
        return Shard(part, part, part, size, size, times, times)

    sharding = {1: problem.sharding[1], **{degree: shard(degree, x) for degree, x in sent.items()}}
    return replace(problem, sharding=sharding)


def random_row(rng: np.random.Generator, topology: Topology, layers: int, m: int) -> HybridProblem:
    """Whole numbers of seconds and bytes, so that sums are exact."""

    def whole(count: int, most: int) -> list[float]:
        return [float(x) for x in rng.integers(1, most, count)]

    return row(
        topology, whole(layers, 9), whole(layers, 9), whole(layers, 9), whole(layers - 1, 9),
        whole(layers, 40), whole(layers, 9), m,
    )  # fmt: skip


def random_stages(rng: np.random.Generator, layers: int, devices: int) -> list[Stage]:
    """Some stages on some of the devices."""
    count = int(rng.integers(1, min(layers, devices) + 1))
    ends = np.sort(rng.choice(np.arange(1, layers), count - 1, replace=False)).tolist()
    borders = np.sort(rng.choice(np.arange(1, devices), count - 1, replace=False)).tolist()
    order = rng.permutation(devices).tolist()
    groups = zip([0, *borders], [*borders, devices], strict=True)
    return [
        Stage(first, end, tuple(order[a:b]))
        for first, end, (a, b) in zip([0, *ends], [*ends, layers], groups, strict=True)
    ]
