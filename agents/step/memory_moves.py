"""What a device that overflows computes again or moves to the host, group by group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from agents.step.residence import cheapest
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.graphs.op_graph import Phase
from envs.hardware.servers import host_link
from envs.placement.generator import toy_pipeline
from envs.step.price import Pricer
from envs.step.problem import MEMORY_MOVES, OFFLOAD, RECOMPUTE, StepProblem
from envs.step.rematerialise import Residence, rematerialised, run_again
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline, lifetimes, peaks

_KEEP = int(Residence.KEEP)
_ROUNDS = 6  # of the knapsack, with what overflowed in the round before added to the need
_HOPELESS = 0.5  # of the capacity: what may be missing when everything is moved
_NEAR = 0.25  # of the capacity: what may be missing for groups to be changed one by one
_CLIMB = 64  # plans tried that differ in one group from the tightest, where none fits ...
_CLIMB_OPERATORS = 100_000  # ... and so many operators of them all
_CLOSER = 3  # bisections between a need that was too small and one that was enough


# What becomes of what only a group itself reads going forward, and of the rest.
Option = tuple[int, int]


def options(moves: tuple[str, ...]) -> list[Option]:
    """The options that the memory moves of a problem give; the first is to keep everything."""
    keep, again, away = Residence.KEEP, Residence.RECOMPUTE, Residence.OFFLOAD
    found: list[Option] = [(keep, keep)]
    if RECOMPUTE in moves:
        found += [(again, keep), (again, again)]
    if OFFLOAD in moves:
        found.append((away, away))
    if RECOMPUTE in moves and OFFLOAD in moves:
        found.append((again, away))
    return found


@dataclass(frozen=True, eq=False)
class Moved:
    """A plan with its memory moves, as the simulator plays it."""

    order: IntArray  # (N,)
    residence: IntArray  # (N,) Residence
    seconds: float
    excess: FloatArray  # (D,) bytes over the capacity, of the device and its host

    @property
    def fits(self) -> bool:
        return not self.excess.any()


class MemoryMoves:
    """Makes room in placements whose activations overflow, by the moves that a problem allows.

    A group computes again what it has inside and keeps its border, what other groups (or the group
    elsewhere) read going forward; or computes that again, too; or it sends what it saves to the
    host; or computes its inside again and sends the border away. Per device the options are chosen
    by `residence.cheapest`: the bytes that each frees at the instant of the peak against the
    seconds of its second runs, and against those of its transfers, which overlap computing. What
    then still overflows in the simulation is added to the need, until the plan fits; where that
    fails and no plan is known, everything is moved, and groups are changed one by one.

    Args:
        problem: with `memory_moves`.
        group: (N,) of each operator.
    """

    def __init__(self, problem: StepProblem, group: IntArray) -> None:
        self.problem = problem
        self.group = group
        self.options = options(problem.memory_moves)
        self.forward = problem.graph.phase == Phase.FORWARD
        self.links = [host_link(problem.topology, d) for d in range(problem.topology.num_devices)]
        self.simulator = StepSimulator(problem)
        self.pricer = Pricer(problem)

    def best(self, device: IntArray, order: IntArray | None, below: float) -> Moved | None:
        """The fastest plan found with placement `device` (N,) that fits, else the tightest.

        In `order`, in the fastest that the problem allows, in that which overflows the least and in
        one between, if without moves they would take less than `below` seconds; None where none of
        them does.
        """
        if (np.bincount(device, self.problem.graph.state_bytes, len(self.problem.capacity))
                > self.problem.capacity).any():  # fmt: skip
            return None
        prices = [self.pricer.price(device, (rule,)) for rule in self.pricer.rules]
        prices.sort(key=lambda price: (price.seconds, price.excess))
        front = prices[:1]  # the slower, the less overflows
        for price in prices:
            if price.excess < front[-1].excess:
                front.append(price)
        orders = [front[at].order for at in (0, len(front) // 2, -1)]
        orders += [] if order is None else [order]
        found: Moved | None = None
        for each in {one.tobytes(): one for one in orders}.values():
            least = below if found is None or not found.fits else min(below, found.seconds)
            if self.simulator.step_time(device, each) < least:
                made = self.repair(device, each, least)
                found = made if found is None else min(found, made, key=_rank)
        return found

    def repair(self, device: IntArray, order: IntArray, below: float = np.inf) -> Moved:
        """The fastest plan found with this placement and order that fits, else the tightest.

        Only devices that overflow move anything, as long as that is enough. Plans of `below`
        seconds or more are not improved.
        """
        problem = self.problem
        timeline = self.simulator.run(device, order)
        excess = np.maximum(timeline.peak_memory - problem.capacity, 0.0)
        keep = np.full(len(device), _KEEP, dtype=np.int64)
        found = Moved(order, keep, timeline.step_time, excess)
        if found.fits or len(self.options) == 1:
            return found
        items = _Items(self, device, timeline, excess > 0.0)
        move = np.where(items.of >= 0, self.options[-1][0], _KEEP)
        found = min(found, self.play(device, order, move), key=_rank)
        if (found.excess > _HOPELESS * problem.capacity).any():
            return found
        every = list(range(len(self.options)))
        alone = [o for o in every if self.options[o][1] != Residence.OFFLOAD]
        for allowed in (alone, every) if 1 < len(alone) < len(every) else (every,):
            made = self._search(items, allowed, device, order, excess, below)
            found = min(found, made, key=_rank)
        if below < np.inf:
            return found
        if not found.fits:
            tried = (self.play(device, order, residence) for residence in items.under[1:])
            found = min(found, *tried, key=_rank)
        if (found.excess <= _NEAR * problem.capacity).all():
            found = self._climb(items, device, found)
        return found

    def play(self, device: IntArray, order: IntArray, residence: IntArray) -> Moved:
        """A placement and an order with their moves, simulated on all operators."""
        made = rematerialised(self.problem, device, order, residence, named=False)
        timeline = StepSimulator(made.problem).run(made.device, made.order)
        over = np.maximum(timeline.peak_memory - made.problem.capacity, 0.0)
        count = len(self.problem.capacity)
        for host, owner in enumerate(made.owners.tolist(), start=count):
            over[owner] += over[host]
        return Moved(order, residence, timeline.step_time, over[:count])

    def improve(self, device: IntArray, start: Moved, goes_on: Callable[[], bool]) -> Moved:
        """`start` with other options for some of its groups: each is tried while `goes_on`.

        The groups that take the longest to compute again, or to move, come first.
        """
        timeline = self.simulator.run(device, start.order)
        everywhere = np.ones(len(self.links), dtype=np.bool_)
        items = _Items(self, device, timeline, everywhere)
        dear = items.seconds.max(axis=1) + items.traffic.max(axis=1)
        found = start
        largest = np.argsort(-dear, kind="stable").tolist()
        for item, option in product(largest, range(len(self.options))):
            residence = np.where(items.of == item, items.under[option], found.residence)
            if not goes_on() or np.array_equal(residence, found.residence):
                continue
            made = self.play(device, found.order, residence)
            if made.fits and made.seconds < found.seconds:
                found = made
        return found

    def _search(
        self,
        items: _Items,
        allowed: list[int],
        device: IntArray,
        order: IntArray,
        need: FloatArray,
        below: float,
    ) -> Moved:
        """Raise the need until the plan fits, then lower it as far as that lasts."""
        least, tried = np.zeros(len(need)), []  # least: needs that were too small
        for _ in range(_ROUNDS):
            chosen, everything = items.choose(need, allowed)
            made = self.play(device, order, items.residence(chosen))
            tried.append(made)
            over = made.excess > 0.0
            least = np.where(over, need, least)
            if made.fits or (everything | ~over).all() or made.seconds >= below:
                break
            need = np.where(over, np.maximum(need, 0.0) + made.excess, need)
        for _ in range(_CLOSER if min(tried, key=_rank).fits else 0):
            middle = 0.5 * (least + need)
            made = self.play(device, order, items.residence(items.choose(middle, allowed)[0]))
            tried.append(made)
            if made.fits:
                need = middle
            else:
                least = np.where(made.excess > 0.0, middle, least)
        return min(tried, key=_rank)

    def _climb(self, items: _Items, device: IntArray, start: Moved) -> Moved:
        """Change one group after another while that makes the plan fit better, largest first."""
        found = start
        left = min(_CLIMB, _CLIMB_OPERATORS // len(device))
        improved = True
        while improved and not found.fits and left > 0:
            improved = False
            for item in np.argsort(-items.total.max(axis=1), kind="stable").tolist():
                if found.excess[items.device[item]] == 0.0:
                    continue
                for option in range(len(self.options)):
                    residence = np.where(items.of == item, items.under[option], found.residence)
                    if left == 0 or np.array_equal(residence, found.residence):
                        continue
                    left -= 1
                    made = self.play(device, found.order, residence)
                    if _rank(made) < _rank(found):
                        found, improved = made, True
        return found


@cache
def compile_kernels() -> None:
    """Have the kernels compiled, once on a machine, before a clock starts."""
    toy = replace(toy_pipeline(), memory_moves=MEMORY_MOVES)
    every = np.arange(toy.graph.num_operators)
    moves = MemoryMoves(toy, every)
    device = np.zeros_like(every)
    peak = moves.simulator.run(device).peak_memory
    tight = replace(toy, capacity=0.5 * (peak + toy.graph.state_bytes.sum()))
    MemoryMoves(tight, every).best(device, None, np.inf)


def _rank(moved: Moved) -> tuple[float, float]:
    return float(moved.excess.sum()), moved.seconds


class _Items:
    """I groups on the devices `over` (D,): what each of O options saves and costs.

    `device` (I,) and `of` (N,), the item of each operator, -1: none; `under` (O, N), what becomes
    of each operator under each option; by item and option (I, O) `saved` bytes at the peak of the
    device, `total` bytes at any time, `seconds` of second runs, `traffic` in seconds on the link to
    the host, one way, and `transient` bytes; `hidden` (D,) seconds of the forward pass, beside
    which the host is written. The step runs as in `timeline`.
    """

    def __init__(
        self, moves: MemoryMoves, device: IntArray, timeline: Timeline, over: BoolArray
    ) -> None:
        problem, forward = moves.problem, moves.forward
        graph, devices = problem.graph, problem.topology.num_devices
        key, of = np.unique(moves.group * devices + device, return_inverse=True)
        self.device, count = key % devices, len(key)
        self.of = of = np.where(forward & over[device], of.reshape(-1), -1)
        u, c = graph.edges.T[:2]
        border = np.zeros(len(device), dtype=np.bool_)  # read by another group, or elsewhere
        border[u[forward[c] & (of[u] != of[c])]] = True
        inside, outer = np.array(moves.options).T[:, :, None]
        self.under = np.where(of < 0, _KEEP, np.where(border, outer, inside))
        saved, total = _freed(problem, device, timeline, forward)
        compute = problem.op_seconds[np.arange(len(device)), device]
        home = device[graph.producer]
        latency = np.array([link.latency for link in moves.links])
        bandwidth = np.array([link.bandwidth for link in moves.links])
        travel = latency[home] + graph.tensor_bytes / bandwidth[home]
        item = of[graph.producer]
        sums = np.empty((5, count, len(moves.options)))
        for option, residence in enumerate(self.under):
            again = run_again(graph, device, residence)
            what = np.where(total > 0.0, residence[graph.producer], _KEEP)
            moved, away = what != _KEEP, what == Residence.OFFLOAD
            anew = what == Residence.RECOMPUTE
            sums[0, :, option] = np.bincount(item[moved], saved[moved], count)
            sums[1, :, option] = np.bincount(item[moved], total[moved], count)
            sums[2, :, option] = np.bincount(of[again], compute[again], count)
            sums[3, :, option] = np.bincount(item[away], travel[away], count)
            sums[4, :, option] = np.bincount(item[anew], total[anew], count)
        self.saved, self.total, self.seconds, self.traffic, transient = sums
        self.transient = transient / graph.num_micro_batches
        self.hidden = np.bincount(device, np.where(forward, compute, 0.0), devices)

    def choose(self, need: FloatArray, allowed: list[int]) -> tuple[IntArray, BoolArray]:
        """(I,) of options `allowed`, saving `need` (D,), and (D,) where all that can be is saved.

        The first of them is to keep everything.
        """
        chosen = np.zeros(len(self.device), dtype=np.int64)
        everything = np.zeros(len(need), dtype=np.bool_)
        for d in np.flatnonzero(need > 0.0):
            mine = np.ix_(self.device == d, allowed)
            found = cheapest(
                self.saved[mine],
                self.seconds[mine],
                self.traffic[mine],
                self.transient[mine],
                float(need[d]),
                float(self.hidden[d]),
            )
            everything[d] = found is None
            best = self.total[mine].argmax(axis=1) if found is None else found
            chosen[self.device == d] = np.array(allowed)[best]
        return chosen, everything

    def residence(self, chosen: IntArray) -> IntArray:
        """(N,) what options `chosen` (I,) mean for each operator."""
        option = np.where(self.of < 0, 0, chosen[self.of])
        return np.asarray(self.under[option, np.arange(len(option))])


def _freed(
    problem: StepProblem, device: IntArray, timeline: Timeline, forward: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """(T,) bytes that moving each tensor would free at its device's peak, and at any time."""
    graph, devices = problem.graph, problem.topology.num_devices
    lives = lifetimes(
        graph, devices, device, timeline.op_start, timeline.op_finish, timeline.transfer_tensor,
        timeline.transfer_destination, timeline.transfer_start, timeline.transfer_finish,
    )  # fmt: skip
    instant = peaks(graph, devices, device, lives)[1]
    u, c, t = graph.edges.T
    own = (device[u] == device[c]) & forward[u]
    late, early = own & ~forward[c], own & forward[c]
    read = np.full(graph.num_tensors, np.inf)
    np.minimum.at(read, t[late], timeline.op_start[c[late]])
    idle = timeline.op_finish[graph.producer].copy()
    np.maximum.at(idle, t[early], timeline.op_finish[c[early]])
    np.maximum.at(idle, timeline.transfer_tensor, timeline.transfer_finish)
    total = np.where((idle < read) & np.isfinite(read), graph.tensor_bytes, 0.0)
    peak = instant[device[graph.producer]]
    return np.where((idle <= peak) & (peak < read), total, 0.0), total
