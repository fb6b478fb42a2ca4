"""Simulated annealing of group placements on the compiled step simulator."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult
from agents.placement.grouping import BoolArray, GroupedProblem
from agents.placement.incumbent import Incumbent
from envs.errors import InputError
from envs.step.kernel import Scratch, StepArrays
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator, step_time_one_f_one_b

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_CHUNK_SECONDS = 0.05  # of annealing between two looks at the clock
_COLDEST = 1e-15  # seconds: a temperature, where the step takes no time
_DEAREST, _CHEAPEST = 1e3, 1.0  # overflow charge of all state, in starting step times
_RISE, _FALL = 1.1, 0.999  # factor of the charge per move while state overflows, while it fits


@dataclass(eq=False)
class _Walk:
    """The state of one annealing run, changed in place by the kernel."""

    device: IntArray  # (G,) where the walk stands
    best: IntArray  # (G,) the cheapest placement seen
    cost: FloatArray  # (5,) see `anneal`


class Annealing:
    """Anneals the placement of fused groups, then re-simulates the improvements in full.

    A move gives one group another device, gives a run of consecutive groups the device of one of
    them or any other, swaps two groups or swaps two devices. The cost is the simulated step time
    of the fused graph in the 1F1B order plus a charge for the part of the state that does not fit.
    The charge rises with every move while state overflows and falls slowly while it fits, so that
    the walk can cross placements that do not fit where those that do are far apart (Gendreau,
    Hertz, Laporte, "A tabu search heuristic for the vehicle routing problem", Management Science
    40(10), 1994); the best placement is the fastest that fits. A worse placement is accepted with
    probability exp(-increase / temperature); the temperature falls geometrically over each of
    `cycles` cycles of equal length, every one starting from the best placement so far
    (Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983). When
    the activations of an improvement do not fit in the full simulation, the room for state on that
    device is lowered by the excess for the rest of the run.

    One thread; uses the budget to the end. With a deterministic limit (of proposed moves) the
    cycles are counted in moves, and the budget is only a ceiling.

    Args:
        groups: groups of the fused graph.
        cycles: times the walk is heated.
        hot: first temperature of a cycle, as a fraction of the starting step time.
        cold: last temperature of a cycle, likewise.
        seed: of the generator.

    Raises:
        InputError: `cycles` is below 1, or not 0 < `cold` <= `hot`.
    """

    def __init__(self, *, groups: int, cycles: int, hot: float, cold: float, seed: int) -> None:
        if cycles < 1:
            raise InputError(f"{cycles} is below 1", field="cycles")
        if not 0.0 < cold <= hot:
            raise InputError(f"{cold} is not above 0 and at most hot = {hot}", field="cold")
        self.groups = groups
        self.cycles = cycles
        self.hot = hot
        self.cold = cold
        self.seed = seed

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; the deterministic limit counts proposed moves."""
        _compile(problem)
        incumbent = Incumbent(problem)
        grouped = incumbent.group(self.groups)
        if grouped is None:
            return incumbent.result()
        return self._anneal(incumbent, grouped, budget_s, deterministic_limit)

    def _anneal(
        self, incumbent: Incumbent, grouped: GroupedProblem, budget_s: float, limit: int | None
    ) -> PlannerResult:
        simulator = StepSimulator(grouped.problem)
        random = np.random.default_rng(self.seed)
        room = grouped.problem.capacity.copy()
        start = _start(grouped)
        scale = max(simulator.step_time(grouped.fusion.expand_pieces(start)), _COLDEST)
        walk = _Walk(start.copy(), start.copy(), _unknown(scale))
        piece_device = np.empty(len(grouped.fusion.piece_group), dtype=np.int64)
        chunk, done, cycle, offered, simulations = 16, 0, 0, np.inf, 0
        while incumbent.seconds < budget_s and (limit is None or done < limit):
            if limit is not None:
                chunk = min(64, limit - done)
            progress = done / limit if limit is not None else incumbent.seconds / budget_s
            place = min(progress * self.cycles, np.nextafter(self.cycles, 0.0))
            if int(place) > cycle:
                cycle = int(place)
                walk.device[:], walk.cost[0] = walk.best, np.inf
            temperature = scale * self.hot * (self.cold / self.hot) ** (place - cycle)
            began = incumbent.seconds
            simulations += anneal(
                simulator.arrays, simulator.scratch, grouped.fusion.piece_group, grouped.state,
                room, grouped.allowed, scale, max(temperature, _COLDEST), chunk,
                random, piece_device, walk.device, walk.best, walk.cost,
            )  # fmt: skip
            done += chunk
            if limit is None:
                spent = max(incumbent.seconds - began, 1e-6)
                chunk = max(1, int(chunk * min(4.0, _CHUNK_SECONDS / spent)))
            if walk.cost[3] == 0.0 and walk.cost[2] < offered:
                offered = walk.cost[2]
                excess = incumbent.offer(grouped.fusion.expand(walk.best))
                if excess.any():
                    room = grouped.less_room(room, walk.best, excess)
                    walk.cost, offered = _unknown(scale), np.inf
        reason = "" if incumbent.plan is not None else "no placement was found to fit"
        return incumbent.result(evaluations=simulations, reason=reason)


def _start(grouped: GroupedProblem) -> IntArray:
    """(G,) every group on the first device, in `device_order`, that is allowed to hold it."""
    devices = grouped.device_order()
    first = grouped.allowed[:, devices].argmax(axis=1)
    return np.asarray(devices[first], dtype=np.int64)


def _unknown(scale: float) -> FloatArray:
    """(5,) costs, as `anneal` takes them, of placements not yet simulated."""
    return np.array([np.inf, 0.0, np.inf, np.inf, _DEAREST * scale])


def _compile(problem: StepProblem) -> None:
    """Have the kernel compiled, once on a machine, before the clock starts."""
    simulator = StepSimulator(problem)
    nowhere, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    anneal(
        simulator.arrays, simulator.scratch, nowhere, nothing, nothing,
        np.zeros((0, 0), dtype=np.bool_), 0.0, _COLDEST, 0, np.random.default_rng(0), nowhere,
        nowhere.copy(), nowhere.copy(), nothing.copy(),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def anneal(
    arrays: StepArrays,
    work: Scratch,
    piece_group: IntArray,  # (N,) group of each piece
    state: FloatArray,  # (G,) bytes
    room: FloatArray,  # (D,) bytes
    allowed: BoolArray,  # (G, D)
    scale: float,  # seconds: the starting step time
    temperature: float,  # seconds
    steps: int,
    random: np.random.Generator,
    piece_device: IntArray,  # (N,) scratch
    device: IntArray,  # (G,) in and out: where the walk stands
    best: IntArray,  # (G,) in and out
    cost: FloatArray,  # (5,) in and out, see below
) -> int:
    """`steps` proposed moves at one temperature; returns the simulations made.

    `cost` holds the step time of `device` (inf: not yet known) and the part of all state that
    overflows there, the same of `best`, and the charge: seconds if all state overflowed. A
    placement overflows, too, if it uses a device whose room is negative.
    """
    simulations = 0
    candidate = device.copy()
    used = np.empty(len(room))
    for _ in range(steps):
        candidate[:] = device
        if cost[0] < np.inf and not propose(candidate, allowed, random):
            continue
        used[:] = -np.inf  # no group at all
        for g in range(len(state)):
            used[candidate[g]] = max(used[candidate[g]], 0.0) + state[g]
        overflow = 0.0
        for d in range(len(room)):
            overflow += max(0.0, used[d] - room[d])
        overflow /= max(1.0, state.sum())
        for p in range(len(piece_group)):
            piece_device[p] = candidate[piece_group[p]]
        seconds = step_time_one_f_one_b(arrays, work, piece_device)
        simulations += 1
        gain = cost[0] + cost[4] * cost[1] - seconds - cost[4] * overflow
        if gain >= 0.0 or random.random() < np.exp(gain / temperature):
            device[:] = candidate
            cost[0], cost[1] = seconds, overflow
            if overflow < cost[3] or (overflow == cost[3] and seconds < cost[2]):
                best[:] = candidate
                cost[2], cost[3] = seconds, overflow
        if cost[1] > 0.0:
            cost[4] = min(cost[4] * _RISE, _DEAREST * scale)
        else:
            cost[4] = max(cost[4] * _FALL, _CHEAPEST * scale)
    return simulations


@numba.njit(cache=True, nogil=True)
def propose(device: IntArray, allowed: BoolArray, random: np.random.Generator) -> bool:
    """Make one random move in `device` (G,); False when it changes nothing or is not allowed."""
    groups, devices = allowed.shape
    kind = random.random()
    g = int(random.random() * groups)
    h = int(random.random() * groups)
    d = int(random.random() * devices)
    changed = False
    if kind < 0.3:  # one group to any device
        changed = device[g] != d
        device[g] = d
    elif kind < 0.8:  # a short run of groups, to the device of a neighbour or to any
        length = 1 + int(random.random() * random.random() * max(1.0, groups / 4.0))
        low = max(0, min(g, groups - length))
        high = min(groups, low + length)
        target = d
        if kind < 0.475 and low > 0:
            target = device[low - 1]
        elif kind < 0.65:
            target = device[min(high, groups - 1)]
        for i in range(low, high):
            changed = changed or device[i] != target
            device[i] = target
    elif kind < 0.95:  # two groups change places
        changed = device[g] != device[h]
        device[g], device[h] = device[h], device[g]
    else:  # two devices change places
        changed = d != device[h]
        swap(device, d, device[h])
    for i in range(groups):
        changed = changed and allowed[i, device[i]]
    return changed


@numba.njit(cache=True, nogil=True)
def swap(device: IntArray, d: int, e: int) -> None:
    """Devices d and e change places in `device` (G,)."""
    for i in range(len(device)):
        if device[i] == d:
            device[i] = e
        elif device[i] == e:
            device[i] = d
