"""PipeDream's hierarchical optimizer: the slowest stage of a pipeline made as fast as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from agents.hybrid.machines import HybridSolver, Rates, planned, servers_of
from agents.pipeline.published import one_f_one_b
from agents.solver import Budget, Result
from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.compilation import compiled
from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.hybrid.plan import HybridPlan, Stage, ordered
from envs.hybrid.problem import HybridProblem
from envs.hybrid.states import AntichainStates, LayerGraph, antichain_states

_NONE = -1


@dataclass(frozen=True)
class Level:
    """What `machines` of the level below are joined by."""

    machines: int
    bandwidth: float  # bytes/s


class Cuts(NamedTuple):
    """Where a layer graph may be cut, and what is on each side: S + 1 cuts, 0 before everything."""

    seconds: FloatArray  # (S + 1,) forward and backward, of all layers before a cut
    parameters: FloatArray  # (S + 1,) bytes, likewise
    sent: FloatArray  # (S + 1,) bytes of activations over a cut
    before: BoolArray  # (S + 1, S + 1) [i, j]: the layers from i to j are a possible stage

    @staticmethod
    def of(states: AntichainStates) -> Cuts:
        """The states of a profile."""
        layers = states.layers
        return Cuts(
            states.total(layers.forward + layers.backward),
            states.total(layers.parameters),
            np.concatenate([[0.0], states.cut_bytes]),
            states.contains,
        )

    @staticmethod
    def in_a_row(problem: HybridProblem, seconds: FloatArray, times: int = 1) -> Cuts:
        """Those of layers in a row that take `seconds` (L,); what they send counts `times`."""
        return Cuts(
            sums_before(seconds),
            sums_before(problem.gradient_bytes),
            times * problem.cut_bytes,
            ~np.tri(problem.num_layers + 1, dtype=np.bool_),
        )


@dataclass(frozen=True)
class Throughput:
    """What the optimizer predicts."""

    seconds: float  # between two micro-batches; inf: no pipeline uses that many machines
    data_parallel: float  # the same for replicas of the whole graph
    stages: tuple[Stage, ...]  # layers between cuts; devices numbered machine by machine


def optimize(cuts: Cuts, levels: Sequence[Level], *, straight: bool, fewer: bool) -> Throughput:
    """The pipeline over all machines whose slowest stage or transfer is fastest.

    A stage of r machines of one level takes (C + 4 (r - 1) P / (b r)) / r seconds, where C is what
    its layers take on one of them, P bytes their parameters and b the level's bandwidth. Over a cut
    of A bytes, 2 A / (b r) seconds pass before and behind a stage that is not the first one. At the
    next level C is what the best pipeline within a machine takes; its replicas of a first stage
    divide their synchronisation by the machines of the level below.

    Args:
        cuts: of the layer graph.
        levels: inner first.
        straight: no stage is replicated.
        fewer: machines may be left out.

    Source:
        Narayanan et al., "PipeDream", SOSP 2019, section 3.1, and the authors' program.
    """
    count = len(cuts.seconds)
    seconds = np.where(cuts.before, cuts.seconds - cuts.seconds[:, None], np.inf)
    solved = []
    inside = [math.prod(level.machines for level in levels[:depth]) for depth in range(len(levels))]
    below, parallel = 1, float(cuts.seconds[-1])
    for depth, level in enumerate(levels):
        last = depth == len(levels) - 1
        best, split, replicas = _level(
            seconds, cuts.parameters, cuts.sent, cuts.before, level.machines,
            level.bandwidth, below, straight, fewer, 1 if last else count,
        )  # fmt: skip
        solved.append((split, replicas))
        shared = 4 * (level.machines - 1) * cuts.parameters[-1]
        parallel += shared / (level.bandwidth * level.machines) / below
        parallel, below = parallel / level.machines, level.machines
        seconds = np.ascontiguousarray(best[:, :, -1])
    total = float(seconds[0, -1])
    stages = [Stage(0, count - 1, (0,))] if np.isfinite(total) else []
    for level, (split, replicas), below in reversed(list(zip(levels, solved, inside, strict=True))):
        stages = [
            part
            for stage in stages
            for part in _pipeline(split, replicas, stage, level.machines, below)
        ]
    return Throughput(total, parallel, tuple(stages))


def _pipeline(
    split: IntArray, replicas: IntArray, stage: Stage, machines: int, inside: int
) -> list[Stage]:
    """The stages of one level, of machines of `inside` devices, inside one of the level above.

    Its devices are the first of every machine that the stage has.
    """
    parts = []
    end, left = stage.end, machines
    while end != _NONE:
        first, used = (int(table[stage.first, end, left - 1]) for table in (split, replicas))
        left -= used
        devices = [start + k * inside for start in stage.devices for k in range(left, left + used)]
        parts.append(Stage(stage.first if first == _NONE else first, end, tuple(devices)))
        end = first
    return parts[::-1]


class PipeDream(HybridSolver):
    """Stages of replicas, without shards, by PipeDream's optimizer, in the 1F1B order.

    The optimizer plans for devices that are alike (the mean of them) on levels of links that are as
    slow as the slowest one: servers of equal size, and the devices in each. It lets replicas sum
    gradients after every micro-batch, as they do without a flush, and knows no memory: where its
    plan does not fit, a straight pipeline is made, and then all stages recompute. `predicted_s` is
    what the micro-batches of a step take once the pipeline is full. Of a profile there are the
    figures of PipeDream's own program, whose stages may part branches; the plan's are of a row.

    Guarantees:
        The optimum of its own formula.

    Source:
        Narayanan et al., "PipeDream", SOSP 2019.
    """

    def _solve(self, problem: HybridProblem, budget: Budget) -> Result[HybridPlan]:
        """It is exact, and takes as long as it takes."""
        servers, levels = _levels(problem.topology)
        seconds = (problem.forward + problem.input_gradient + problem.weight_gradient).mean(axis=1)
        cuts = Cuts.in_a_row(problem, seconds)
        for recompute, straight in product((False, True), (False, True)):
            found = optimize(cuts, levels, straight=straight, fewer=straight)
            stages = [
                replace(s, devices=tuple(servers[d] for d in s.devices), recompute=recompute)
                for s in found.stages
            ]
            plan = ordered(stages, problem.micro_batches, one_f_one_b) if stages else None
            if plan is not None and not plan.violations(problem):
                predicted = problem.micro_batches * found.seconds
                return planned(plan, predicted, 0, **_published(problem.profile, levels))
        return Result(None, "limit", reason="the optimizer's plans do not fit the memory")


def _published(profile: LayerGraph | None, levels: Sequence[Level]) -> dict[str, float]:
    """What PipeDream's program says of a profile whose branches are cut at antichains, too.

    Nothing where there is no profile, or too many antichains.
    """
    if profile is None:
        return {}
    try:
        states = antichain_states(profile)
    except InputError:
        return {}
    found = optimize(Cuts.of(states), levels, straight=False, fewer=False)
    return {
        "pipeline_time_per_stage_s": found.seconds,
        "data_parallel_s": found.data_parallel,
    }


def _levels(topology: Topology) -> tuple[list[int], list[Level]]:
    """The devices server by server, and what joins them; one level where servers differ."""
    servers = servers_of(topology)
    links = Rates.slowest(topology)
    devices = [device for server in servers for device in server]
    size = len(servers[0])
    if any(len(server) != size for server in servers):
        return devices, [Level(len(devices), min(links.inside, links.between))]
    levels = [Level(size, links.inside), Level(len(servers), links.between)]
    return devices, [level for level in levels if level.machines > 1] or levels[:1]


@compiled
def _level(
    seconds: FloatArray,
    parameters: FloatArray,
    sent: FloatArray,
    before: BoolArray,
    machines: int,
    bandwidth: float,
    below: int,
    straight: bool,
    fewer: bool,
    starts: int,
) -> tuple[FloatArray, IntArray, IntArray]:
    """(`starts`, S + 1, machines) seconds, where the last stage begins, how often it is there."""
    count = len(parameters)
    best = np.full((starts, count, machines), np.inf)
    split = np.full((starts, count, machines), _NONE)
    replicas = np.zeros((starts, count, machines), dtype=np.int64)
    most = 1 if straight else machines
    for i in range(starts):
        for j in range(i + 1, count):
            if not before[i, j]:
                continue
            for m in range(1, most + 1):
                summed = 4 * (m - 1) * (parameters[j] - parameters[i]) / (bandwidth * m)
                best[i, j, m - 1] = (seconds[i, j] + summed / below) / m
                replicas[i, j, m - 1] = m
            for k in range(i + 1, j):
                if not before[i, k] or not before[k, j]:
                    continue
                moved = 2 * max(sent[k], sent[j] if j < count - 1 else 0.0)
                for used in range(1, min(most, machines - 1) + 1):
                    summed = 4 * (used - 1) * (parameters[j] - parameters[k]) / (bandwidth * used)
                    stage = max((seconds[k, j] + summed) / used, moved / (bandwidth * used))
                    for m in range(used + 1, machines + 1):
                        slowest = max(best[i, k, m - used - 1], stage)
                        if slowest < best[i, j, m - 1]:
                            best[i, j, m - 1] = slowest
                            split[i, j, m - 1] = k
                            replicas[i, j, m - 1] = used
            if fewer:
                for m in range(2, machines + 1):
                    if best[i, j, m - 2] < best[i, j, m - 1]:
                        best[i, j, m - 1] = best[i, j, m - 2]
                        split[i, j, m - 1] = split[i, j, m - 2]
                        replicas[i, j, m - 1] = replicas[i, j, m - 2]
    return best, split, replicas
