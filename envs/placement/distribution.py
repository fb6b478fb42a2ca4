"""The distribution of problems that a placement policy is trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from envs.arrays import sums_before
from envs.bounds import Count, Share, bounded
from envs.cost import CostByGraph
from envs.graphs.motifs import draw_network, step_graph
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.hardware.builders import pairwise_topology, random_topology
from envs.hardware.topology import Topology
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem
from envs.step.timeline import single_device_peak

Rng = np.random.Generator
LEAST_LAYERS, MOST_LAYERS = 8, 160
MOST_MICRO_BATCHES = 16
MOST_OPERATORS = 6000  # of a synthetic step
SHORTEST_S = 1e-9  # of an operator with a time of its own
OPTIMIZER_STATE = (2.0, 2.0, 1.0, 0.0)  # per parameter: Adam, momentum, none


class Library(Protocol):
    """Graphs by their numbers."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> OpGraph: ...


@bounded
@dataclass(frozen=True, eq=False)
class TrainingProblems:
    """Draws problems: synthetic networks and captured ones, on clusters drawn at random.

    Deterministic by the generator it is given. `stage` in [0, 1] is the curriculum in size: layers,
    groups, micro-batches and devices grow with it.

    Args:
        captured: training steps of real models, as `envs.graphs.contraction` contracts them, with
            seconds for every kind of device; in any order.
        captured_share: share of the problems that are made of them, where there are any.
        inference: share of the problems without a backward pass.
        tabulated: share of those with times drawn for every operator on every device.
        most_groups: groups of a captured step, at most.
        most_devices: devices of a cluster, at most.
    """

    captured: Library
    captured_share: Share = 0.4
    inference: Share = 0.12
    tabulated: Share = 0.15
    most_groups: Count = 64
    most_devices: Count = 32

    def __call__(self, rng: Rng, stage: float = 1.0) -> StepProblem:
        """A problem: its operators are already groups, at most `most_groups` where captured."""
        size = 0.1 + 0.9 * stage
        devices = max(2, round(self.most_devices * size))
        inference = rng.random() < self.inference
        tabulated = rng.random() < self.tabulated
        pairs = tabulated and rng.random() < 0.5
        topology = (pairwise_topology if pairs else random_topology)(rng, devices)
        if len(self.captured) and not inference and rng.random() < self.captured_share:
            graph = self._captured(rng, stage)
        else:
            graph = _synthetic(rng, size, inference)
        problem = _with_memory(rng, graph, topology)
        if tabulated:
            problem = _tabulated(rng, problem, sizeless=pairs and inference)
        coarse = rng.uniform(0.2, 1.0) if rng.random() < 0.4 else 1.0
        groups = max(LEAST_LAYERS, round(self.most_groups * size * coarse))
        return fused_problem(problem, fuse(problem, groups))

    def _captured(self, rng: Rng, stage: float) -> OpGraph:
        graph = self.captured[int(rng.integers(len(self.captured)))]
        most = min(graph.num_micro_batches, max(2, round(MOST_MICRO_BATCHES * stage)))
        graph = first_micro_batches(graph, int(rng.integers(1, most + 1)))
        return scaled(graph, float(np.exp(rng.uniform(np.log(0.25), np.log(4.0)))))


def _synthetic(rng: Rng, size: float, inference: bool) -> OpGraph:
    layers = int(rng.uniform(LEAST_LAYERS, LEAST_LAYERS + (MOST_LAYERS - LEAST_LAYERS) * size))
    sketch = draw_network(rng, layers)
    number = len(sketch.layers)
    count = int(rng.choice([1, 1, 4] if inference else [1, 2, 4, 4, 8, 8, 16]))
    count = max(1, min(count, round(MOST_MICRO_BATCHES * size), MOST_OPERATORS // (4 * number)))
    state = None if inference else float(rng.choice(OPTIMIZER_STATE))
    name = f"{'inference' if inference else 'training'}_{number}"
    return step_graph(sketch, name, count, state, together=rng.random() < 0.15)


def _with_memory(rng: Rng, graph: OpGraph, topology: Topology) -> StepProblem:
    """The problem on devices with loose, normal or tight memory, relative to one device's need."""
    need, devices = single_device_peak(graph), topology.num_devices
    loose, normal = float(np.exp(rng.uniform(np.log(2), np.log(12)))), float(rng.uniform(0.6, 1.5))
    tight = max(0.12, float(rng.uniform(1.3, 3.0)) / devices)
    share = float(rng.choice([loose, normal, tight], p=[0.4, 0.25, 0.35]))
    least = max(1.0, 1.25 * graph.state_bytes.sum() / devices, _largest_part(graph))
    specs = {device.spec.name: device.spec for device in topology.devices}
    alike, mean = rng.random() < 0.5, topology.memory_bytes.mean()
    for name, spec in specs.items():
        memory = need * share * (1.0 if alike else spec.memory_bytes / mean)
        specs[name] = replace(spec, memory_bytes=max(least, memory))
    held = tuple(replace(device, spec=specs[device.spec.name]) for device in topology.devices)
    return StepProblem.build(graph, replace(topology, devices=held), CostByGraph())


def _largest_part(graph: OpGraph) -> float:
    """Bytes beside which a device could hold nothing: the largest state, and a few tensors."""
    alone = graph.colocation == NONE
    state = np.bincount(graph.colocation[~alone], weights=graph.state_bytes[~alone], minlength=1)
    tensor = graph.tensor_bytes.max(initial=0.0)
    return float(1.2 * max(state.max(), graph.state_bytes.max()) + 4 * tensor)


def _tabulated(rng: Rng, problem: StepProblem, sizeless: bool) -> StepProblem:
    """Its times changed at random, for every operator on every device; every tensor on every link.

    The operators of one co-location group with equal phase and kind change alike. Now and then all
    devices but one cannot run some of them. `sizeless`: tensors take no memory, as in files that
    give times alone.
    """
    graph = problem.graph
    key = np.stack([graph.colocation, graph.phase, graph.kind], axis=1)
    alike = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    alone = graph.colocation == NONE
    alike[alone] = alike.max(initial=0) + 1 + np.arange(int(alone.sum()))
    spread = float(rng.choice([0.1, 0.3, 0.8]))
    op = np.exp(spread * rng.normal(size=(int(alike.max(initial=0)) + 1, problem.capacity.size)))
    unable = rng.random(op.shape) < rng.choice([0.0, 0.0, 0.05])
    unable[:, rng.integers(problem.capacity.size)] = False
    link = np.exp(0.5 * spread * rng.normal(size=problem.transfer_seconds.shape))
    if sizeless:
        graph = replace(graph, tensor_bytes=np.zeros(graph.num_tensors))
    return replace(
        problem,
        graph=graph,
        op_seconds=np.where(unable, np.inf, op)[alike] * np.maximum(problem.op_seconds, SHORTEST_S),
        transfer_seconds=np.ascontiguousarray(problem.transfer_seconds * link),
    )


def scaled(graph: OpGraph, factor: float) -> OpGraph:
    """`graph` with `factor` times the samples: work and tensors, not the parameters' update."""
    rows = np.where(graph.phase == Phase.OPTIMIZER, 1.0, factor)
    return replace(
        graph,
        flop=rows * graph.flop,
        bytes_read=rows * graph.bytes_read,
        bytes_written=rows * graph.bytes_written,
        profile_seconds=rows[: len(graph.profile_seconds), None] * graph.profile_seconds,
        tensor_bytes=graph.tensor_bytes * factor,
    )


def first_micro_batches(graph: OpGraph, count: int) -> OpGraph:
    """The step of the first `count` micro-batches of a contracted `graph`.

    The updates of a group wait for what its first micro-batch left out would have gone on with.
    """
    kept = graph.micro_batch < count
    if kept.all():
        return graph
    number = np.where(kept, np.cumsum(kept) - 1, NONE)
    edges, group = graph.edges, graph.colocation
    going_on = kept[edges[:, 0]] & ~kept[edges[:, 1]] & (graph.phase[edges[:, 1]] == Phase.BACKWARD)
    going_on &= group[edges[:, 0]] == group[edges[:, 1]]
    left = edges[going_on]
    uses = [edges[kept[edges[:, 0]] & kept[edges[:, 1]]][:, [2, 1]]]
    for update in np.flatnonzero(graph.phase == Phase.OPTIMIZER):
        tensors = left[group[left[:, 0]] == group[update], 2]
        uses.append(np.stack([tensors, np.full_like(tensors, update)], axis=1))
    used = np.unique(np.concatenate(uses), axis=0)  # rows of tensor, consumer
    tensor, rows = np.unique(used[:, 0], return_counts=True)
    columns = {
        name: getattr(graph, name)[kept]
        for name in (
            "kind", "phase", "micro_batch", "replica", "flop", "bytes_read", "bytes_written",
            "op_dtype", "colocation",
        )
    }  # fmt: skip
    mirror = graph.mirror[kept]
    return replace(
        graph,
        **columns,
        op_names=tuple(name for name, stays in zip(graph.op_names, kept, strict=True) if stays),
        mirror=np.where(mirror == NONE, NONE, number[mirror]),
        tensor_bytes=graph.tensor_bytes[tensor],
        tensor_dtype=graph.tensor_dtype[tensor],
        producer=number[graph.producer[tensor]],
        consumer_ptr=sums_before(rows),
        consumer=number[used[:, 1]],
        parameter_owner=number[graph.parameter_owner],
        profile_seconds=graph.profile_seconds[kept[: len(graph.profile_seconds)]],
    )
