"""Published graphs, some in their shape, made up, and random small ones for exhaustive checks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

from envs.cost import TabulatedCost
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.readers import read_graph_file
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology, port_topology
from envs.partition.problem import PartitionProblem
from envs.step.problem import StepProblem

CPU, ACCELERATOR = "cpu", "accelerator"
LINKS = ("same", "host", "via_host")


class Sketch:
    """A forward graph being drawn: nodes with times, and edges; `problem` adds the rest."""

    def __init__(self, seed: int) -> None:
        self.random = default_rng(seed)
        self.edges: list[tuple[int, int]] = []
        self.accelerator: list[float] = []
        self.slower: list[float] = []  # CPU time over accelerator time
        self.traffic: list[float] = []
        self.state: list[float] = []

    def node(
        self,
        inputs: list[int],
        seconds: float,
        traffic: float,
        *,
        state: float = 0.0,
        slower: float = 10.0,
    ) -> int:
        """A node behind `inputs`; its times vary at random by a fifth."""
        index = len(self.accelerator)
        self.edges += [(u, index) for u in dict.fromkeys(inputs)]
        spread = self.random.uniform(0.8, 1.2, 2)
        self.accelerator.append(seconds * spread[0])
        self.traffic.append(traffic * spread[1])
        self.slower.append(slower)
        self.state.append(state)
        return index

    def chain(self, start: int, length: int, seconds: float, traffic: float, **extra: float) -> int:
        """`length` nodes, one after another, behind `start`; the last one."""
        for _ in range(length):
            start = self.node([start], seconds, traffic, **extra)  # type: ignore[arg-type]
        return start

    def problem(
        self,
        *,
        accelerators: int,
        capacity: float,
        training: bool = False,
        orphans: int = 0,
        host: bool = True,
    ) -> StepProblem:
        """The step: with `training`, a mirrored backward pass of twice the time.

        Backward nodes are tied to their forward nodes but for `orphans` of them.
        """
        n = len(self.accelerator)
        builder = GraphBuilder("sketch", profile_classes=(CPU, ACCELERATOR), link_classes=LINKS)
        free = set(self.random.permutation(n)[:orphans].tolist())
        for way in (Phase.FORWARD, Phase.BACKWARD)[: 1 + training]:
            factor = 1.0 if way == Phase.FORWARD else 2.0
            for i in range(n):
                alone = not training or (way == Phase.BACKWARD and i in free)
                seconds = self.accelerator[i] * factor
                handle = builder.add_operator(
                    f"{way.name}{i}",
                    phase=way,
                    colocation=NONE if alone else i,
                    profile=(seconds * self.slower[i], seconds),
                )
                if self.state[i]:
                    builder.add_parameter(f"{way.name}{i}", handle, parameter=self.state[i])
        for base, pairs in (
            (0, self.edges),
            (n, [(v, u) for u, v in self.edges]),
        )[: 1 + training]:
            tensor: dict[int, int] = {}
            for u, v in pairs:
                if u not in tensor:
                    link = self.traffic[u]
                    tensor[u] = builder.add_tensor(base + u, 0.0, link=(0.0, link, 2 * link))
                builder.add_use(tensor[u], base + v)
        graph = builder.build()
        return StepProblem(
            graph=graph,
            topology=host_topology(accelerators, capacity, host=host),
            op_seconds=np.ascontiguousarray(
                graph.profile_seconds[:, [1] * accelerators + [0] * host]
            ),
            transfer_seconds=graph.link_seconds,
            capacity=np.array([capacity] * accelerators + [np.inf] * host),
        )


def host_topology(accelerators: int, capacity: float, *, host: bool = True) -> Topology:
    """Accelerators around one CPU, the last device, or without one."""
    names = [f"{ACCELERATOR}{i}" for i in range(accelerators)] + [CPU] * host
    link = np.full((len(names), len(names)), 2, dtype=np.int64)
    if host:
        link[-1, :] = link[:, -1] = 1
    np.fill_diagonal(link, 0)
    held = [Device(name, spec(name.rstrip("0123456789"), capacity), 0) for name in names]
    return port_topology("sketch", held, link, LINKS, np.full(3, np.inf))


def spec(name: str, capacity: float) -> DeviceSpec:
    """A datasheet without figures."""
    return DeviceSpec(name, {}, 0.0, capacity, 0.0, 1.0, 1.0, "made up")


def small_problem(seed: int) -> StepProblem:
    """A random step of at most seven operators on at most three devices.

    Some are backward operators, some co-located, some unsupported somewhere; capacities may bind.
    """
    random = default_rng(seed)
    forward, backward = int(random.integers(1, 6)), int(random.integers(0, 3))
    n = forward + backward
    host = bool(random.integers(2))
    accelerators = int(random.integers(1, 4 - host))
    builder = GraphBuilder("small", profile_classes=(CPU, ACCELERATOR), link_classes=LINKS)
    groups = int(random.integers(1, n + 1))
    drawn = [int(g) if random.random() < 0.5 else NONE for g in random.integers(0, groups, n)]
    number = {g: i for i, g in enumerate(sorted(set(drawn) - {NONE}))}
    for i in range(n):
        times = np.where(random.random(2) < 0.05, np.inf, random.integers(0, 9, 2))
        idle = random.random() < 0.2
        handle = builder.add_operator(
            f"op{i}",
            phase=Phase.FORWARD if i < forward else Phase.BACKWARD,
            colocation=number.get(drawn[i], NONE),
            profile=(0.0, 0.0) if idle else tuple(times.tolist()),
        )
        size = float(random.integers(0, 5)) * (not idle)
        builder.add_parameter(f"op{i}", handle, parameter=size)
    for u in range(n - 1):
        for link in random.integers(0, 6, int(random.integers(1, 3))).tolist():
            readers = [v for v in range(u + 1, n) if random.random() < 0.4]
            if readers:
                tensor = builder.add_tensor(u, 0.0, link=(0.0, float(link), 2.0 * link))
                for v in readers:
                    builder.add_use(tensor, v)
    graph = builder.build()
    tight = float(graph.state_bytes.sum() * random.uniform(0.4, 1.3))
    kinds = [1] * accelerators + [0] * host
    capacity = np.array([tight] * accelerators + [np.inf] * host)
    if random.random() < 0.3:
        capacity[0] *= 0.7
    seconds = graph.profile_seconds[:, kinds].copy()
    if random.random() < 0.3:
        seconds[:, 0] *= 2.0
    return StepProblem(
        graph, host_topology(accelerators, tight, host=host), np.ascontiguousarray(seconds),
        graph.link_seconds, capacity,
    )  # fmt: skip


def braided(seed: int, size: int) -> Sketch:
    """Branches that part and meet again at random, with a long message now and then."""
    random = default_rng(seed)
    sketch = Sketch(seed)
    last = sketch.node([], 1.0, 1.0)
    while len(sketch.accelerator) < size:
        far = [int(random.integers(last + 1))] if random.random() < 0.2 else []
        ends = [
            sketch.chain(
                last, int(random.integers(1, 4)), float(random.integers(1, 9)),
                float(random.integers(0, 4)), state=float(random.integers(0, 4)),
                slower=float(random.integers(1, 5)),
            )
            for _ in range(int(random.integers(1, 4)))
        ]  # fmt: skip
        last = sketch.node([*ends, *far], 1.0, float(random.integers(0, 9)))
    return sketch


def least(problem: PartitionProblem) -> float:
    """The smallest objective of all feasible placements; inf when there is none."""
    n, d = problem.step.op_seconds.shape
    placements = np.array(list(product(range(d), repeat=n)))
    values = np.array([problem.objective(device) for device in placements])
    for index in np.argsort(values, kind="stable").tolist():
        if np.isinf(values[index]) or not problem.violations(placements[index]):
            return float(values[index])
    return float("inf")


def published(data: Path, objective: str, name: str) -> StepProblem:
    """A step of the published inputs for `objective`, throughput or latency."""
    read = read_graph_file(data / f"graphs/dnn-partitioning/{objective}-inputs/{name}.json.gz")
    assert read.topology is not None
    return StepProblem.build(read.graph, read.topology, TabulatedCost())


def oracle(data: Path, kind: str) -> dict[str, Any]:
    """The published figures of one kind, in milliseconds."""
    figures: dict[str, Any] = read_json(data / "oracles/placement.json")[kind]
    return figures
