"""Stages, replicas, shards and recomputation as a set-partitioning program over fused layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from agents.hybrid.machines import Pool, servers_of, sum_line
from agents.linear_program import LinearProgram, best_values
from envs.arrays import sums_before
from envs.hybrid.plan import Stage
from envs.hybrid.problem import HybridProblem
from envs.hybrid.timing import layer_seconds

_SAME = 1e-9  # relative; a column that is better by less is not


class Column(NamedTuple):
    """A possible stage, on as many devices of a pool as it has."""

    stage: Stage
    pool: int
    seconds: float  # of a micro-batch, with what it receives
    closing: float  # of summing gradients and updating, once a step


def pools_of(problem: HybridProblem) -> list[Pool]:
    """The devices by kind and size of server."""
    kinds: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    work = problem.work()
    for devices in servers_of(problem.topology):
        kind = tuple(work[:, devices[0]].tolist()), problem.capacity[devices[0]]
        kinds.setdefault((len(devices), *kind), []).append(tuple(devices))
    return [Pool(tuple(group)) for group in kinds.values()]


def fused(problem: HybridProblem, groups: int) -> list[int]:
    """(G + 1,) borders of at most `groups` groups of layers, the quickest neighbours joined."""
    work = problem.work().min(axis=1)
    borders = list(range(problem.num_layers + 1))
    total = sums_before(work)
    while len(borders) - 1 > groups:
        span = total[borders[2:]] - total[borders[:-2]]
        del borders[int(span.argmin()) + 1]
    return borders


class StageProgram:
    """min sum of stages' seconds + (M - 1) of the slowest + the longest closing.

    The first two are the time of a synchronous pipeline of M micro-batches (Fan et al., PPoPP 2021;
    Zheng et al., OSDI 2022), the third what is left when the last backward pass has ended.

    Args:
        problem: layers and devices.
        borders: (G + 1,) of the fused layers.
    """

    def __init__(self, problem: HybridProblem, borders: Sequence[int]) -> None:
        self.problem = problem
        self.borders = list(borders)
        self.pools = pools_of(problem)
        # bytes/s of the fastest link, which a stage may hope to have to the one before
        finite = filter(np.isfinite, problem.topology.bandwidth.flat)
        self._bandwidth = max(finite, default=np.inf)

    def columns(self, in_flight: int) -> list[Column]:
        """Stages that hold `in_flight` micro-batches; none worse than another of its place."""
        found = []
        for number, pool in enumerate(self.pools):
            for size in pool.sizes:
                options = [
                    self._columns(number, size, shards, again, in_flight)
                    for shards in self.problem.sharding
                    if size % shards == 0 and shards <= len(pool.servers[0])
                    for again in (False, True)
                ]
                for same in zip(*options, strict=True):
                    found += _undominated([c for c in same if c is not None])
        return found

    def solve(self, most: int, time_limit: float, seed: int, gap: float) -> list[Column]:
        """At most `most` stages in their order; none: nothing fits, or the time was too short."""
        columns = self.columns(min(most, self.problem.micro_batches))
        if not columns:
            return []
        program = LinearProgram()
        stages, *rest = zip(*columns, strict=True)
        pool, seconds, closing = map(np.array, rest)
        first, end, size = np.array([(s.first, s.end, len(s.devices)) for s in stages]).T
        chosen = program.add_columns(len(columns), cost=seconds, upper=1.0, integer=True)
        slowest = program.add_columns(1, cost=self.problem.micro_batches - 1.0)
        tail = program.add_columns(1, cost=1.0)
        for layer in self.borders[:-1]:
            over = np.flatnonzero((first <= layer) & (layer < end))
            if not len(over):
                return []
            program.add_row([(chosen[over], 1.0)], lower=1.0, upper=1.0)
            program.add_row([(slowest, 1.0), (chosen[over], -seconds[over])], lower=0.0)
            program.add_row([(tail, 1.0), (chosen[over], -closing[over])], lower=0.0)
        for number, own in enumerate(self.pools):
            here = np.flatnonzero(pool == number)
            program.add_row([(chosen[here], size[here])], upper=float(len(own.devices)))
        program.add_row([(chosen, 1.0)], upper=float(most))
        solver = program.solver(time_limit=time_limit, seed=seed)
        solver.setOptionValue("mip_rel_gap", gap)
        values = best_values(solver)
        if values is None:
            return []
        picked = [columns[k] for k in np.flatnonzero(values[chosen] > 0.5).tolist()]
        return sorted(picked, key=lambda c: c.stage.first)

    def placed(self, columns: Sequence[Column]) -> list[Stage]:
        """The stages on devices: each in the first servers of its pool with room for it."""
        free = [[list(server) for server in pool.servers] for pool in self.pools]
        stages = []
        for column in columns:
            servers, wanted = free[column.pool], len(column.stage.devices)
            fitting = [server for server in servers if len(server) >= wanted]
            source = [min(fitting, key=len)] if fitting else sorted(servers, key=len, reverse=True)
            devices: list[int] = []
            for server in source:
                taken = server[: wanted - len(devices)]
                del server[: len(taken)]
                devices += taken
            stages.append(replace(column.stage, devices=tuple(devices)))
        return stages

    def _columns(
        self, number: int, size: int, shards: int, recompute: bool, in_flight: int
    ) -> list[Column | None]:
        """One of every range of groups, in the same order; None: it does not fit."""
        problem, borders = self.problem, np.array(self.borders)
        group = self.pools[number].devices[:size]
        stage = Stage(0, problem.num_layers, group, shards, None, recompute)
        timed = layer_seconds(problem, stage, slice(0, problem.num_layers))
        per_layer = sum(column.max(axis=1) for column in timed)
        own = problem.held[shards]
        update = own.update[:, group[0]]
        columns = (per_layer, own.state_bytes, own.gradient_bytes, own.saved_bytes, update)
        totals = (sums_before(column)[borders] for column in columns)
        seconds, held, nbytes, kept, updating = (t - t[:, None] for t in totals)
        replicas = size // shards
        once, per_byte = sum_line(problem, stage, 1.0)
        entry = problem.cut_bytes[borders, None]
        small = np.minimum(entry, kept) if recompute else kept
        again = kept if recompute else 0.0
        room = problem.capacity[list(group)].min()
        fits = held + (in_flight * small + again) / replicas <= room
        passed = seconds + 2.0 * entry / self._bandwidth
        closing = updating + (once + nbytes * per_byte if replicas > 1 else 0.0)
        return [
            Column(
                replace(stage, first=self.borders[i], end=self.borders[j]), number,
                float(passed[i, j]), float(closing[i, j]),
            )
            if fits[i, j] else None
            for i, j in combinations(range(len(borders)), 2)
        ]  # fmt: skip


def _undominated(columns: list[Column]) -> list[Column]:
    """Those of one place that no other is as quick as in both respects."""
    kept: list[Column] = []
    for column in sorted(columns, key=lambda c: (c.seconds, c.closing)):
        if not kept or column.closing < kept[-1].closing * (1.0 - _SAME):
            kept.append(column)
    return kept
