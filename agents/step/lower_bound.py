"""A proved lower bound on the step time of every plan, and why a problem has no plan at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from agents.step.grouping import device_kinds
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled
from envs.graphs.contraction import row_codes, row_ranks, sum_rows
from envs.graphs.op_graph import NONE, OpGraph
from envs.step.problem import StepProblem

_WINDOW_FRACTIONS = (0.0, 0.03, 0.1, 0.3)  # of the critical path, for heads and for tails
_LP_SECONDS = 5.0  # the linear program only chooses multipliers: any of them prove a bound
_ROUNDING = 1e-12  # relative; covers the rounding of sums of fewer than 4,000 terms a million deep


@dataclass(frozen=True)
class LowerBound:
    """No feasible plan, whatever its placement and order, is faster than `seconds`."""

    seconds: float  # the larger of the two below; inf when the problem has no plan
    critical_path: float  # seconds
    work: float  # seconds
    memory_ok: bool  # False: proved that no placement is supported and fits
    reason: str = ""  # which bound on memory or support is violated, by how much


@dataclass(frozen=True, eq=False)
class _Atoms:
    """The indivisible units of a placement, co-location groups and free operators, on C classes.

    A class is all devices on which every operator takes the same time, of the same capacity.
    """

    of: IntArray  # (N,) atom of each operator
    seconds: FloatArray  # (A, C) all operators of the atom; inf where one is not supported
    state: FloatArray  # (A,) bytes
    allowed: BoolArray  # (A, C) supported, and the atom alone fits
    op_seconds: FloatArray  # (N, C) of each operator
    device_class: IntArray  # (D,)
    members: IntArray  # (C,) devices of each class
    capacity: FloatArray  # (C,) bytes of each of its devices


@compiled
def longest_paths(
    weight: FloatArray, use_ptr: IntArray, use_op: IntArray
) -> tuple[FloatArray, FloatArray]:
    """(N,) heads and tails: longest path weight strictly before and strictly after each node."""
    head, tail = np.zeros(len(weight)), np.zeros(len(weight))
    for u in range(len(weight)):
        for k in range(use_ptr[u], use_ptr[u + 1]):
            head[use_op[k]] = max(head[use_op[k]], head[u] + weight[u])
    for u in range(len(weight) - 1, -1, -1):
        for k in range(use_ptr[u], use_ptr[u + 1]):
            tail[u] = max(tail[u], weight[use_op[k]] + tail[use_op[k]])
    return head, tail


def paths(graph: OpGraph, seconds: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Heads and tails (N,) of operators that take so long (N,), and their critical path."""
    head, tail = longest_paths(seconds, graph.use_ptr, graph.use_op)
    return head, tail, float((head + seconds + tail).max(initial=0.0))


def why_no_plan(problem: StepProblem) -> str:
    """The reason of `lower_bound(problem)`, which takes much longer; empty where it has none."""
    return next(_memory_violations(problem, _atoms(problem)), "")


def lower_bound(problem: StepProblem) -> LowerBound:
    """A bound on the step time of every feasible plan of `problem`, under any communication model.

    *Critical path.* Every operator takes at least its seconds on its fastest device and starts
    after its inputs are computed, so the longest path with those weights is a bound. So are, for
    an operator i, its head h_i (longest path before it) on its start and its tail q_i (longest
    path after it) on the time between its end and the end of the step.

    *Work.* Take a set S of operators, r = min h_i and q = min q_i over S. On every device d the
    operators of S run one at a time, none before r and none after T - q, hence
    T >= r + q + (seconds of the operators of S on d); if none is on d, T >= r + q still holds
    because of the operators of S elsewhere. With x[a, d] = 1 if atom a (a co-location group or a
    free operator) is on device d, and sets S_k, every feasible plan satisfies

        T >= r_k + q_k + sum_a x[a, d] p_k[a, d]    for all k, d       (multiplier l[k, d] >= 0)
        capacity_d >= sum_a x[a, d] state_a          for all d          (multiplier m[d] >= 0)

    where p_k[a, d] are the seconds on d of the operators of a in S_k. Weighing and adding up,

        T sum l >= sum l[k, d] (r_k + q_k) - sum m[d] capacity_d
                   + sum_a sum_d x[a, d] (sum_k l[k, d] p_k[a, d] + m[d] state_a)

    and since x[a, :] picks one supported device, the last sum is at least sum_a of the minimum
    over those devices. The right side is therefore a bound for *any* non-negative multipliers: a
    linear program over aggregated atoms (HiGHS) chooses good ones, they are clipped at zero and
    the right side is evaluated on the real atoms, so neither the aggregation nor the solver's
    tolerances can overstate the bound; the rounding of the sums is taken off at the end.

    Devices that are alike are one class: the inequalities of its n devices are averaged, those on
    memory added up, and x[a, c] = 1 if atom a is on any of them. That loses nothing, since the
    program is convex and no solution changes its value when such devices change their names.
    """
    atoms = _atoms(problem)
    reason = next(_memory_violations(problem, atoms), "")
    if reason:
        return LowerBound(np.inf, np.inf, np.inf, False, reason)
    fastest = atoms.op_seconds.min(axis=1)
    head, tail, path = paths(problem.graph, fastest)
    path *= 1.0 - _ROUNDING
    if path == 0.0:
        return LowerBound(0.0, 0.0, 0.0, True)
    offset, seconds = _windows(atoms, head, tail, path)
    work = _certified(atoms, offset, seconds, path)
    return LowerBound(max(path, work), path, work, True)


def _atoms(problem: StepProblem) -> _Atoms:
    graph = problem.graph
    device_class = device_kinds(problem)
    first = np.unique(device_class, return_index=True)[1]
    op_seconds, capacity = problem.op_seconds[:, first], problem.capacity[first]
    free = graph.colocation == NONE
    of = np.where(free, graph.num_groups + np.cumsum(free) - 1, graph.colocation)
    count = graph.num_groups + int(free.sum())
    seconds = sum_rows(op_seconds, of, count)
    state = sum_rows(graph.state_bytes, of, count)
    return _Atoms(
        of=of,
        seconds=seconds,
        state=state,
        allowed=np.isfinite(seconds) & (state[:, None] <= capacity),
        op_seconds=op_seconds,
        device_class=device_class,
        members=np.bincount(device_class),
        capacity=capacity,
    )


def _memory_violations(problem: StepProblem, atoms: _Atoms) -> Iterator[str]:
    """Proofs that no placement exists, a sentence each."""
    graph, devices = problem.graph, problem.topology.devices
    supported = np.isfinite(atoms.seconds)
    for atom in np.flatnonzero(~supported.any(axis=1)):
        first = graph.op_names[int(np.argmax(atoms.of == atom))]
        yield f"no device can run operator {first!r} and all operators it is co-located with"
    capacity = np.where(supported, atoms.capacity, -np.inf).max(axis=1)
    over = np.flatnonzero(atoms.state > capacity)
    for atom in over[np.argsort((capacity - atoms.state)[over])]:
        first = graph.op_names[int(np.argmax(atoms.of == atom))]
        yield (
            f"does not fit: operator {first!r} and those co-located with it hold "
            f"{atoms.state[atom]:.0f} bytes of parameters and state, the largest device that can "
            f"run them {capacity[atom]:.0f}: {atoms.state[atom] - capacity[atom]:.0f} too many"
        )
    kinds = np.unique(row_codes(atoms.allowed.T.astype(np.int64)), return_index=True)[1]
    for where in atoms.allowed[kinds][::-1]:
        inside = ~(atoms.allowed & ~where).any(axis=1)
        on = np.flatnonzero(where[atoms.device_class])
        held, room = atoms.state[inside].sum(), problem.capacity[on].sum()
        if held > room * (1.0 + _ROUNDING):
            names = ", ".join(devices[d].name for d in on)
            yield (
                f"does not fit: {held:.0f} bytes of parameters and state can only be on {names}, "
                f"which have {room:.0f} together: {held - room:.0f} too many"
            )
    total, room = atoms.state.sum(), problem.capacity.sum()
    if total > room * (1.0 + _ROUNDING):
        yield (
            f"does not fit: {total:.0f} bytes of parameters and state, all devices together have "
            f"{room:.0f}: {total - room:.0f} too many"
        )


def windows(
    head: FloatArray, tail: FloatArray, path: float, fractions: Sequence[float]
) -> list[BoolArray]:
    """(N,) the operators with heads and tails of at least such parts of the critical path."""
    chosen: dict[bytes, BoolArray] = {}
    for early, late in product(fractions, repeat=2):
        inside = (head >= early * path) & (tail >= late * path)
        if inside.any():
            chosen.setdefault(inside.tobytes(), inside)
    return list(chosen.values())


def _windows(
    atoms: _Atoms, head: FloatArray, tail: FloatArray, path: float
) -> tuple[FloatArray, FloatArray]:
    """The sets S_k: (K,) r_k + q_k and (K, A, C) seconds of each atom's members in S_k."""
    chosen = windows(head, tail, path, _WINDOW_FRACTIONS)
    offset = np.zeros(len(chosen))
    seconds = np.zeros((len(chosen), *atoms.seconds.shape))
    for k, inside in enumerate(chosen):
        offset[k] = head[inside].min() + tail[inside].min()
        seconds[k] = sum_rows(atoms.op_seconds[inside], atoms.of[inside], len(atoms.state))
    return offset, seconds


def _certified(atoms: _Atoms, offset: FloatArray, seconds: FloatArray, scale: float) -> float:
    """The right side of the proof with the multipliers of the aggregated linear program."""
    load, memory = _multipliers(atoms, offset, seconds, scale)
    total = load.sum()
    if total <= 0.0:
        return 0.0
    price = memory * atoms.state[:, None]  # (A, C)
    for k in range(len(offset)):
        price += load[k] / atoms.members * np.where(atoms.allowed, seconds[k], 0.0)
    cheapest = np.where(atoms.allowed, price, np.inf).min(axis=1)
    parts = (float((load.sum(axis=1) * offset).sum()), float(cheapest.sum()))
    priced = memory > 0.0
    rent = float(memory[priced] @ (atoms.members * atoms.capacity)[priced])
    return float(max(0.0, sum(parts) - rent - _ROUNDING * (sum(parts) + rent)) / total)


def _multipliers(
    atoms: _Atoms, offset: FloatArray, seconds: FloatArray, scale: float
) -> tuple[FloatArray, FloatArray]:
    """(K, C) load and (C,) memory multipliers, non-negative, from HiGHS on aggregated atoms."""
    group = _aggregate(atoms, seconds)
    kinds, classes = int(group.max()) + 1, len(atoms.capacity)
    work = np.zeros((len(offset), kinds, classes))
    for k in range(len(offset)):
        work[k] = sum_rows(np.where(atoms.allowed, seconds[k], 0.0) / scale, group, kinds)
    work /= atoms.members
    room = atoms.members * atoms.capacity
    roomy = float(room[np.isfinite(room)].max(initial=1.0)) or 1.0
    state = sum_rows(atoms.state, group, kinds) / roomy
    allowed = np.ones((kinds, classes), dtype=np.bool_)
    np.logical_and.at(allowed, group, atoms.allowed)

    program = LinearProgram()
    finish = program.add_columns(1, cost=1.0)
    share = program.add_columns((kinds, classes), upper=np.where(allowed, 1.0, 0.0))
    rows = len(offset) * classes  # by window, then by class
    on = np.tile(share.T, (len(offset), 1))
    program.add_rows(
        rows,
        [
            (np.repeat(finish, rows), 1.0),
            (on, -work.transpose(0, 2, 1).reshape(rows, kinds)),
        ],
        lower=np.repeat(offset / scale, classes),
    )
    bounded = np.flatnonzero(np.isfinite(room))
    for c in bounded.tolist():
        program.add_row([(share[:, c], -state)], lower=-room[c] / roomy)
    program.add_rows(kinds, [(share, 1.0)], lower=1.0, upper=1.0)
    solver = program.solver(time_limit=_LP_SECONDS)
    solver.run()
    memory = np.zeros(classes)
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        even = np.zeros((len(offset), classes))
        even[0] = atoms.members
        return even, memory
    dual = np.maximum(np.array(solver.getSolution().row_dual, dtype=np.float64), 0.0)
    load = dual[: len(offset) * classes].reshape(len(offset), classes)
    memory[bounded] = dual[load.size : load.size + len(bounded)] * scale / roomy
    return load, memory


def _aggregate(atoms: _Atoms, seconds: FloatArray) -> IntArray:
    """(A,) class of each atom: alike in relative speeds, bytes per second and windows."""
    finite = np.where(atoms.allowed, atoms.seconds, 0.0)
    fastest = np.where(atoms.allowed, atoms.seconds, np.inf).min(axis=1)
    safe = np.where(fastest > 0.0, fastest, 1.0)
    speed = np.where(finite > 0.0, np.round(np.log(finite.clip(1e-300) / safe[:, None]) / 0.1), 0.0)
    stateful = atoms.state > 0.0
    density = np.where(
        stateful & (fastest > 0.0), np.round(np.log(atoms.state.clip(1e-300) / safe)), 0.0
    )
    inside = seconds.max(axis=2, where=atoms.allowed[None], initial=0.0)  # (K, A)
    part = np.round(4.0 * inside / np.where(inside[0] > 0.0, inside[0], 1.0)).T  # (A, K)
    columns = (*speed.T, density, stateful, *atoms.allowed.T, *part.T)
    return row_ranks(column.astype(np.int64) for column in columns)
