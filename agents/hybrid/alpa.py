"""Alpa's inter-operator program: contiguous layers on submeshes, sharded within each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agents.hybrid.choice import Limited, best_of_limits
from agents.hybrid.machines import HybridSolver, Pool, planned, servers_of, spans, sum_line
from agents.pipeline.published import one_f_one_b
from agents.solver import Budget, Result
from envs.arrays import FloatArray, IntArray
from envs.compilation import clock, compiled
from envs.hybrid.plan import HybridPlan, Stage, ordered
from envs.hybrid.problem import HybridProblem
from envs.hybrid.timing import layer_seconds

_ROUNDING = 1 + 1e-12  # of limits that a stage just keeps to
_UNBOUNDED = 2**31
_NONE = -1


@dataclass(frozen=True)
class Slices:
    """A pipeline of slices of layers."""

    objective: float  # sum of the stages' seconds and (B - 1) times the slowest one's; inf: none
    stages: tuple[tuple[int, int, int], ...]  # first layer, end, submesh
    solved: int = 0  # programs


def inter_operator(
    stage_seconds: FloatArray,
    submesh_devices: Sequence[int],
    devices: int,
    micro_batches: int,
    max_successors: IntArray,
    *,
    until: float = math.inf,
    most: int | None = None,
) -> Slices:
    """The pipeline of all layers on all `devices` with the least objective.

    A dynamic program over the layers and devices that are left, for a limit on the slowest stage
    (Zheng et al., "Alpa", OSDI 2022, section 5.2); limits that cannot be better are left out.

    Args:
        stage_seconds: (L, L + 1, K) of layers i..j - 1 on submesh k; inf: not allowed.
        submesh_devices: (K,) how many each submesh has.
        devices: of the cluster, all used.
        micro_batches: B.
        max_successors: (L, L + 1, K) stages that may follow, as memory allows.
        until: when to stop, by `envs.compilation.clock`.
        most: programs to solve; None: any number.
    """
    layers = len(stage_seconds)
    sizes = np.array(submesh_devices, dtype=np.int64)
    stages = min(layers, devices // int(sizes.min()))

    def solve(limit: float) -> Limited[tuple[tuple[int, int, int], ...]] | None:
        value, end, submesh = _slices(
            limit * _ROUNDING, stage_seconds, sizes, devices, stages, max_successors
        )
        left = int(np.argmin(value[:, 0, devices]))
        total = float(value[left, 0, devices])
        if not math.isfinite(total):
            return None
        found, layer, free = [], 0, devices
        while layer < layers:
            chosen = int(submesh[left, layer, free])
            found.append((layer, int(end[left, layer, free]), chosen))
            layer, left, free = found[-1][1], left - 1, free - int(sizes[chosen])
        slowest = max(float(stage_seconds[stage]) for stage in found)
        return Limited(slowest, total, tuple(found))

    best, solved = Slices(math.inf, ()), 0
    limits = np.unique(stage_seconds[np.isfinite(stage_seconds)])
    for found in best_of_limits(solve, limits, micro_batches - 1, until, most):
        solved += 1
        objective = found.other + (micro_batches - 1) * found.slowest
        if objective < best.objective:
            best = Slices(objective, found.plan)
    return Slices(best.objective, best.stages, solved)


@compiled
def _slices(
    limit: float,
    seconds: FloatArray,
    sizes: IntArray,
    devices: int,
    stages: int,
    after: IntArray,
) -> tuple[FloatArray, IntArray, IntArray]:
    """(`stages` + 1, L + 1, `devices` + 1) least sum, end and submesh of the first stage.

    By stages, first layer and devices of what is left of a pipeline.
    """
    layers = len(seconds)
    value = np.full((stages + 1, layers + 1, devices + 1), np.inf)
    end = np.full(value.shape, _NONE)
    submesh = np.full(value.shape, _NONE)
    value[0, layers, 0] = 0.0
    for first in range(layers - 1, -1, -1):
        for j in range(first + 1, layers + 1):
            for q in range(len(sizes)):
                took = seconds[first, j, q]
                if not took <= limit:
                    continue
                most = min(stages, after[first, j, q] + 1)
                for s in range(1, most + 1):
                    for d in range(sizes[q], devices + 1):
                        total = took + value[s - 1, j, d - sizes[q]]
                        if total < value[s, first, d]:
                            value[s, first, d] = total
                            end[s, first, d] = j
                            submesh[s, first, d] = q
    return value, end, submesh


class Alpa(HybridSolver):
    """Slices of layers on submeshes, each replicated and sharded in the way that is fastest there.

    Submeshes are 1, 2, 4, ... devices of a server and whole servers; servers of different sizes are
    divided into equal ones. A stage's seconds are those of a micro-batch on its slowest replica:
    both passes, what its shards exchange, and, as its gradients are summed once a step, an M-th of
    that sum. What passes between stages is left out. Memory limits how many stages may follow; a
    stage may recompute.

    Guarantees:
        The optimum of this objective, where the budget lasts, for devices and links that are alike.

    Source:
        Zheng et al., "Alpa", OSDI 2022, sections 5.2 and 5.3.
    """

    def _solve(self, problem: HybridProblem, budget: Budget) -> Result[HybridPlan]:
        """`Budget.evaluations` counts programs."""
        end_s = clock() + budget.seconds
        servers = servers_of(problem.topology)
        size = math.gcd(*map(len, servers))
        blocks = (
            server[at : at + size] for server in servers for at in range(0, len(server), size)
        )
        pool = Pool(tuple(map(tuple, blocks)))
        ways = [
            Stage(0, problem.num_layers, pool.devices[:count], shards, recompute=recompute)
            for count in pool.sizes
            if size % count == 0 or count % size == 0
            for shards in problem.sharding
            if count % shards == 0
            for recompute in (False, True)
        ]
        columns = zip(*(_costs(problem, way) for way in ways), strict=True)
        seconds, after = (np.stack(column, axis=-1) for column in columns)
        seconds[after < 0] = np.inf
        sizes = [len(way.devices) for way in ways]
        found = inter_operator(
            seconds, sizes, problem.num_devices, problem.micro_batches, after,
            until=end_s, most=budget.evaluations,
        )  # fmt: skip
        if not found.stages:
            reason = "no slices of layers fit the memory of their submeshes"
            return Result(None, "limit", reason=reason)
        groups = _placed([sizes[way] for _, _, way in found.stages], pool.devices)
        stages = [
            replace(ways[way], first=first, end=end, devices=group)
            for (first, end, way), group in zip(found.stages, groups, strict=True)
        ]
        plan = ordered(stages, problem.micro_batches, one_f_one_b)
        return planned(plan, found.objective, found.solved)


def _costs(problem: HybridProblem, way: Stage) -> tuple[FloatArray, IntArray]:
    """(L, L + 1) seconds of the stages of layers i..j - 1, and how many stages may follow."""
    layers, held = problem.num_layers, problem.held[way.shards]
    passes = layer_seconds(problem, way, slice(0, layers)).passes
    seconds = spans(passes)[:-1].max(axis=2)
    gradients = spans(held.gradient_bytes)[:-1]
    once, per_byte = sum_line(problem, way, 1e9)
    summed = np.where(gradients > 0, once + gradients * per_byte, 0.0)
    seconds += summed / problem.micro_batches
    share = 1.0 / way.replicas
    state = spans(held.state_bytes)[:-1]
    kept = spans(held.saved_bytes)[:-1] * share
    if way.recompute:
        state, kept = state + kept, np.minimum(problem.cut_bytes[:-1, None] * share, kept)
    free = float(problem.capacity.min()) - state
    under_way = np.full_like(free, np.inf)
    np.floor(np.divide(free, kept, out=under_way, where=kept > 0), out=under_way)
    under_way[free < 0] = 0.0
    after = np.where(under_way >= problem.micro_batches, _UNBOUNDED, under_way) - 1
    seconds[np.tri(layers, layers + 1, dtype=np.bool_)] = np.inf
    return seconds, np.minimum(after, _UNBOUNDED).astype(np.int64)


def _placed(sizes: Sequence[int], devices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The devices of each stage, the largest first: each size divides what is left of a server."""
    groups: list[tuple[int, ...]] = [()] * len(sizes)
    for stage in sorted(range(len(sizes)), key=lambda stage: -sizes[stage]):
        groups[stage], devices = devices[: sizes[stage]], devices[sizes[stage] :]
    return groups
