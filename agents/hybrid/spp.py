"""SPP: partition, mapping and the order of micro-batches on devices that are joined in any way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import networkx as nx
import numpy as np

from agents.hybrid.machines import HybridSolver, planned, spans, sum_line
from agents.solver import Budget, Result
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.hardware.topology import Topology
from envs.hybrid.plan import HybridPlan, Stage, ordered
from envs.hybrid.problem import HybridProblem
from envs.hybrid.timing import all_reduce_seconds, cut_seconds, layer_seconds, stage_seconds
from envs.step.pipeline import Action, Orders, Work

_SLACK = 1e-9  # relative: sums of floats in another order


def list_order(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Every rank takes its blocks by micro-batch + position in the chain, backward passes first.

    The chain of a micro-batch is F_1, link, F_2, ..., F_S with B_S, link, ..., B_1: 4S - 3 blocks.
    """
    orders = []
    for rank in range(ranks):
        last = rank == ranks - 1  # where both passes are one block
        blocks = [
            (batch + at, (work is Work.FORWARD) != last, Action(work, rank, batch))
            for batch in range(micro_batches)
            for work, at in ((Work.FORWARD, 2 * rank), (Work.BACKWARD, 4 * (ranks - 1) - 2 * rank))
        ]
        orders.append([action for *_, action in sorted(blocks, key=lambda block: block[:2])])
    return orders


def ends(chain: FloatArray, micro_batches: int) -> FloatArray:
    """(S,) when each stage has run its last backward pass, in list order.

    Stages and links begin each block as soon as they are free and the block before it in its
    micro-batch has ended. What a block waits for has a smaller micro-batch + position, or the same
    and a later position.

    Args:
        chain: (2, 2S - 1) seconds of a micro-batch there and back, by stages and the links between
            them in turns; a link carries both ways in turns.
    """
    there, back = chain.tolist()
    there[-1] += back.pop()  # the last stage's passes are one block
    seconds = there + back[::-1]
    free, ready = [0.0] * len(there), [0.0] * micro_batches
    for key in range(micro_batches + len(seconds) - 1):
        for batch in range(max(0, key - len(seconds) + 1), min(key + 1, micro_batches)):
            at = key - batch
            place = min(at, len(seconds) - 1 - at)
            ready[batch] = free[place] = max(ready[batch], free[place]) + seconds[at]
    return np.array(free[::2])


def device_order(topology: Topology) -> list[int]:
    """The devices in a row: cut in two where the least bandwidth is, and both halves again.

    Every pair of devices is joined by its part of the ports between them, if all pairs share
    these. The half with the smallest device comes first.
    """
    weight = np.zeros((topology.num_devices, topology.num_devices))
    pairs = ~np.eye(topology.num_devices, dtype=bool)
    sent, received = topology.send_port[pairs], topology.receive_port[pairs]
    users = [np.bincount(port, minlength=topology.num_ports)[port] for port in (sent, received)]
    weight[pairs] = topology.bandwidth[pairs] / np.maximum(*users)
    return _halves(list(range(topology.num_devices)), weight + weight.T)


def _halves(devices: list[int], weight: FloatArray) -> list[int]:
    """By minimum cuts (Stoer and Wagner, J. ACM 44(4), 1997); equal devices stay as they are."""
    between = weight[np.ix_(devices, devices)]
    apart = ~np.eye(len(devices), dtype=bool)
    if len(devices) < 3 or np.ptp(between[apart]) <= _SLACK * between.max():
        return devices
    _, (first, second) = nx.stoer_wagner(nx.from_numpy_array(between))
    first, second = sorted([sorted(first), sorted(second)])
    parts = ([devices[place] for place in half] for half in (first, second))
    return [device for part in parts for device in _halves(part, weight)]


@bounded
class SPP(HybridSolver):
    """Synchronous pipeline planning: devices in a row, stages on parts of it, one order.

    Devices are put in a row by minimum cuts (`device_order`). For every number of stages S, a
    dynamic program over layers and the row finds the division into stages of replicas, on devices
    next to each other, whose C is least: the seconds that the busiest stage (both passes, and its
    part of the sum of gradients) or link (both ways) works for a micro-batch. Devices at the end of
    the row may stay idle. A stage that would not fit the memory computes its activations again.
    The number of stages is the one whose list order (`list_order`) and sums of gradients end first.

    Guarantees:
        C is least for each number of stages, among stages next to each other in this row; the
        list order takes at most (M + 4S - 4) C (theorem 1).

    Source:
        Luo, Yi, Long, Fan, Wu, Yang, Lin, "Efficient Pipeline Planning for Expedited Distributed
        DNN Training", INFOCOM 2022, arXiv 2204.10562.

    Args:
        sizes: the largest cluster of which groups of all sizes are tried; of larger ones, powers of
            two and three times such.
    """

    def __init__(self, *, sizes: Count = 32) -> None:
        self.sizes = sizes

    def _solve(self, problem: HybridProblem, budget: Budget) -> Result[HybridPlan]:
        """`Budget.evaluations` counts numbers of stages.

        Predicted is when the last stage has summed its gradients and updated its weights.
        """
        start = time.perf_counter()
        row = _Row(problem, device_order(problem.topology), self._group_sizes(problem.num_devices))
        best: tuple[float, tuple[Stage, ...], FloatArray] | None = None
        tried = 0
        for stages in row.divisions(budget.evaluations):
            tried += 1
            if stages:
                chain = chain_of(problem, stages)
                seconds = _step_seconds(problem, stages, chain)
                if best is None or seconds < best[0]:
                    best = seconds, stages, chain
            if time.perf_counter() - start > budget.seconds and best is not None:
                break
        if best is None:
            reason = "no stages of replicas next to each other fit the memory"
            return Result(None, "limit", evaluations=tried, reason=reason)
        seconds, stages, chain = best
        plan = ordered(stages, problem.micro_batches, list_order)
        slowest = float(chain.sum(axis=0).max())
        bound = (problem.micro_batches + 4 * len(stages) - 4) * slowest
        return planned(plan, seconds, tried, C=slowest, bound=bound)

    def _group_sizes(self, devices: int) -> IntArray:
        every = np.arange(1, devices + 1)
        if devices <= self.sizes:
            return every
        odd = every // (every & -every)  # without its powers of two
        return np.asarray(every[(odd == 1) | (odd == 3) | (every == devices)])


def chain_of(problem: HybridProblem, stages: Sequence[Stage]) -> FloatArray:
    """The chain of the slowest replicas, as in `ends`; a part of the sums is in each backward."""
    chain = np.zeros((2, 2 * len(stages) - 1))
    for k, stage in enumerate(stages):
        forward, inputs, weights = stage_seconds(problem, stage)
        chain[:, 2 * k] = forward.max(), (inputs + weights).max()
    for k, (a, b) in enumerate(pairwise(stages)):
        chain[:, 2 * k + 1] = cut_seconds(problem, a, b), cut_seconds(problem, b, a)
    chain[1, ::2] += _sum_seconds(problem, stages) / problem.micro_batches
    return chain


def _step_seconds(problem: HybridProblem, stages: Sequence[Stage], chain: FloatArray) -> float:
    """The list order, whose sums of gradients follow the last backward passes, and updates."""
    sums = _sum_seconds(problem, stages)
    passes = chain.copy()
    passes[1, ::2] -= sums / problem.micro_batches
    update = [problem.update[s.first : s.end, s.devices].sum(axis=0).max() for s in stages]
    return float((ends(passes, problem.micro_batches) + sums + update).max())


def _sum_seconds(problem: HybridProblem, stages: Sequence[Stage]) -> FloatArray:
    """(S,) seconds in which the replicas of each stage sum their gradients."""
    sizes = [float(problem.gradient_bytes[s.first : s.end].sum()) for s in stages]
    pairs = zip(stages, sizes, strict=True)
    return np.array([all_reduce_seconds(problem, stage, size) for stage, size in pairs])


class _Row:
    """Layers divided among devices next to each other: tables, and the dynamic program on them.

    Groups are known by their first place in the row b and the number z of their size.
    """

    def __init__(self, problem: HybridProblem, row: list[int], sizes: IntArray) -> None:
        self.problem, self.row, self.sizes = problem, row, sizes
        layers, devices = problem.num_layers, problem.num_devices
        self._groups = [
            (b, z) for b in range(devices) for z, size in enumerate(sizes) if b + size <= devices
        ]
        shape = devices, len(sizes), layers + 1, layers + 1
        self._plain = np.full(shape, np.inf)  # seconds of layers i..j-1
        self._again = np.full(shape, np.inf)  # the same with recomputation
        self._room = np.zeros(shape[:2])
        for b, z in self._groups:
            group = row[b : b + sizes[z]]
            self._plain[b, z], self._again[b, z] = self._group_seconds(group)
            self._room[b, z] = problem.capacity[group].min() * (1.0 - _SLACK)
        self._held, self._kept = spans(problem.state_bytes), spans(problem.saved_bytes)
        self._links = self._link_seconds()

    def divisions(self, most: int | None) -> Iterator[tuple[Stage, ...]]:
        """The best division into 1, 2, ... stages, at most so many; empty where none fits."""
        problem = self.problem
        layers, devices = problem.num_layers, problem.num_devices
        after = np.full((layers + 1, devices + 1, len(self.sizes)), np.inf)
        after[layers] = 0.0
        ends, following = [], [np.zeros(0, dtype=np.int64)]
        for count in range(1, min(layers, devices, most or devices) + 1):
            live = min(problem.micro_batches, max(1, 4 * (count - 1)))
            best, end = self._best_ends(live, after)
            ends.append(end)
            first = int(best[0, 0].argmin())
            found = np.isfinite(best[0, 0, first])
            yield self._stages(ends, following, first) if found else ()
            after, follow = self._best_groups(best)
            following.append(follow)

    def _stages(
        self, ends: Sequence[IntArray], following: Sequence[IntArray], z: int
    ) -> tuple[Stage, ...]:
        stages, i, b = [], 0, 0
        for count in range(len(ends), 0, -1):
            size, end = int(self.sizes[z]), int(ends[count - 1][i, b, z])
            group = tuple(self.row[b : b + size])
            stages.append(Stage(i, abs(end), group, recompute=end < 0))
            i, b = abs(end), b + size
            z = int(following[count - 1][i, b, z]) if count > 1 else z
        return tuple(stages)

    def _group_seconds(self, group: list[int]) -> tuple[FloatArray, FloatArray]:
        """(L + 1, L + 1) seconds of layers i..j-1 and their part of sums, without and with F again.

        As `chain_of` has them: the slowest replica's forward and backward pass.
        """
        problem, layers = self.problem, self.problem.num_layers
        stage = Stage(0, layers, tuple(group))
        forward, inputs, weights = layer_seconds(problem, stage, slice(0, layers))
        able = np.isfinite(forward + inputs + weights)
        once, per_byte = sum_line(problem, stage, float(problem.gradient_bytes.sum()) or 1.0)
        passes = [
            spans(np.where(able, column, 0.0)).max(axis=2)
            for column in (forward, inputs + weights, forward + inputs + weights)
        ]
        sums = once + per_byte * spans(problem.gradient_bytes)
        unable = spans(~able).max(axis=2) > 0
        part = np.where(unable, np.inf, sums / problem.micro_batches)
        return passes[0] + passes[1] + part, passes[0] + passes[2] + part

    def _best_ends(self, live: int, after: FloatArray) -> tuple[FloatArray, IntArray]:
        """(L + 1, D, Z) least C of the layers from i on, and where the first stage ends.

        The first stage is on group (b, z) and holds `live` micro-batches; the end is negative where
        it computes its activations again. `after` is the least C of what follows a stage that ends
        with layer j and place b, of size z.
        """
        entry = self.problem.cut_bytes[:, None]
        layers = len(entry)
        best = np.full((layers, *self._room.shape), np.inf)
        end = np.zeros(best.shape, dtype=np.int64)
        for b, z in self._groups:
            size = self.sizes[z]
            own, free = self._kept / size, self._room[b, z] - self._held
            fits = live * own <= free
            small = live * np.minimum(entry / size, own) + own <= free
            again = np.where(small, self._again[b, z], np.inf)
            seconds = np.where(fits, self._plain[b, z], again)
            seconds[np.tri(layers, dtype=np.bool_)] = np.inf
            seconds = np.maximum(seconds, after[:, b + size, z])
            last = seconds.argmin(axis=1)
            rows = np.arange(layers)
            best[:, b, z] = seconds[rows, last]
            end[:, b, z] = np.where(fits[rows, last], last, -last)
        return best, end

    def _best_groups(self, best: FloatArray) -> tuple[FloatArray, IntArray]:
        """(L + 1, D + 1, Z) least C behind a stage that ends with layer j and place b, of size z.

        And the number of the size that the next group has.
        """
        layers, devices, count = best.shape
        after = np.full((layers, devices + 1, count), np.inf)
        follow = np.zeros(after.shape, dtype=np.int64)
        for b in range(1, devices):
            seconds = np.maximum(self._links[:, b], best[:, b, None])
            seconds[:, self.sizes > b] = np.inf
            seconds[:, :, self.sizes > devices - b] = np.inf
            after[:, b], follow[:, b] = seconds.min(axis=2), seconds.argmin(axis=2)
        return after, follow

    def _link_seconds(self) -> FloatArray:
        """(L + 1, D, Z, Z) seconds both ways between the groups before and behind place b.

        As `envs.hybrid.timing.cut_seconds` of equal shares, for all groups at once.
        """
        topology, sizes, order = self.problem.topology, self.sizes, np.array(self.row)
        inner, count = self.problem.cut_bytes[1:-1, None], len(sizes)
        seconds = np.zeros((len(inner) + 2, len(order), count, count))
        for z, (b, y) in product(range(count), self._groups):
            first, second = sizes[z], sizes[y]
            if first > b:
                continue
            # in parts of 1 / (first * second) of a micro-batch
            ends = np.union1d(np.arange(first + 1) * second, np.arange(second + 1) * first)
            before, behind = order[b - first + ends[:-1] // second], order[b + ends[:-1] // first]
            share = np.diff(ends) / (first * second)
            for u, v in ((before, behind), (behind, before)):
                ports = np.stack([topology.send_port[u, v], topology.receive_port[u, v]], axis=1)
                waits, slowness = (
                    np.bincount(ports.ravel(), np.repeat(column, 2))
                    for column in (topology.latency[u, v], share / topology.bandwidth[u, v])
                )
                seconds[1:-1, b, z, y] += (waits + slowness * inner).max(axis=1)
        return seconds
