"""Labels of placement problems: what a searching planner makes of them in little time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agents.base import Planner
from agents.placement.labelled import LabelledProblem
from agents.placement.local_search import LocalSearch
from agents.placement.neighbourhood.seeds import splits
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from envs.graphs.contraction import Fusion
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
_LOST = (
    1.005  # the price of a teacher's placement over that of its own order: search again above it
)
_SAME = 1e-9  # relative difference, by rounding, of two equal times
_AGAIN = 0.5  # of the budget, for placements alone, each in the best named order


def label(
    number: int,
    problem: StepProblem,
    teacher: Planner,
    budget_s: float,
    known: Iterable[IntArray] = (),
) -> LabelledProblem | None:
    """Fused `problem` with the best placement of its groups; None: none was found that fits.

    The best, in its best order, of the teacher's, of placements (G,) that are `known`, of cheap
    splits and single devices. A `LocalSearch` goes on from the best of `known`. Where its plan
    owes its time to an order that no rule gives, placements are searched once more in named orders.
    """
    fusion = Fusion.of_fused(problem.graph)
    pricer = Pricer(problem)
    pieces, devices = problem.graph.num_operators, problem.topology.num_devices
    single = [pricer.price(np.full(pieces, device)) for device in range(devices)]
    grouped = GroupedProblem.of(problem, fusion.num_groups)
    cheap = [(device, pricer.price(device)) for device in splits(grouped)]
    found = [(np.full(pieces, n), price) for n, price in enumerate(single)] + cheap
    given = [fusion.expand_pieces(device) for device in known]
    found += [(device, pricer.price(device)) for device in given]
    starts = sorted(found[len(found) - len(given) :], key=lambda pair: _seconds(pair[1]))
    device, free_s = _search(problem, teacher, budget_s, [start for start, _ in starts[:1]])
    if device is not None:
        found.append((device, pricer.price(device)))
    best_s = min(_seconds(price) for _, price in found)
    if best_s > _LOST * free_s:
        named = replace(problem, orders=tuple(o for o in problem.orders if o != "free"))
        device, _ = _search(named, teacher, _AGAIN * budget_s, [])
        if device is not None:
            found.append((device, pricer.price(device)))
    device, price = min(found, key=lambda pair: _seconds(pair[1]))
    if not np.isfinite(_seconds(price)):
        return None
    chosen = np.zeros(fusion.num_groups, dtype=np.int64)
    chosen[fusion.piece_group] = device
    chosen = aligned(problem, chosen, pricer)
    price = pricer.price(chosen[fusion.piece_group])
    return LabelledProblem(
        number=number,
        problem=problem,
        device=chosen,
        rule=price.rule,
        seconds=price.seconds,
        free_s=free_s,
        single_s=min(map(_seconds, single)),
        split_s=min((_seconds(price) for _, price in cheap), default=np.inf),
    )


def aligned(problem: StepProblem, device: IntArray, pricer: Pricer) -> IntArray:
    """Placement (G,) of a fused problem, devices that are alike taken in the order of their use.

    Of devices of one server with equal times and memory, the one with the first group gets the
    lowest number, and so on; then likewise servers that are alike as a whole. Either is left as it
    was where it would make the step slower, as between islands of fast links.
    """
    group, server = problem.graph.colocation, problem.topology.server
    kind = _numbered(np.concatenate([problem.op_seconds, problem.capacity[None]]).T)
    best = pricer.price(device[group])
    for renumbered in (_by_device, _by_server):
        changed = renumbered(device, kind, server)[device]
        price = pricer.price(changed[group])
        if price.excess <= best.excess and price.seconds <= best.seconds * (1.0 + _SAME):
            device, best = changed, price
    return device


def _by_device(device: IntArray, kind: IntArray, server: IntArray) -> IntArray:
    """(D,) new numbers of the devices, alike ones in the order of their first use."""
    first = _first_use(device, len(kind))
    number = np.empty(len(kind), dtype=np.int64)
    number[np.lexsort((first, kind, server))] = np.lexsort((kind, server))
    return number


def _by_server(device: IntArray, kind: IntArray, server: IntArray) -> IntArray:
    """(D,) new numbers of the devices, servers that are alike in the order of their first use."""
    first = _first_use(device, len(kind))
    inside = [np.flatnonzero(server == one) for one in range(int(server.max()) + 1)]
    inside = [devices for devices in inside if len(devices)]
    number = np.arange(len(kind))
    alike: dict[tuple[int, ...], list[IntArray]] = {}
    for devices in inside:
        alike.setdefault(tuple(kind[devices].tolist()), []).append(devices)
    for servers in alike.values():
        used = sorted(servers, key=lambda devices: int(first[devices].min()))
        for old, new in zip(used, servers, strict=True):
            number[old] = new
    return number


def _first_use(device: IntArray, devices: int) -> IntArray:
    """(D,) the first group on each device; the number of groups where there is none."""
    first = np.full(devices, len(device), dtype=np.int64)
    np.minimum.at(first, device, np.arange(len(device)))
    return first


def _numbered(rows: NDArray[np.float64]) -> IntArray:
    """(D,) a number for each of the rows (D, K), equal ones for equal rows."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(row.tobytes(), len(known)) for row in rows])


def _seconds(price: Price) -> float:
    return price.seconds if price.excess <= 0.0 else np.inf


def _search(
    problem: StepProblem, teacher: Planner, budget_s: float, starts: list[IntArray]
) -> tuple[IntArray | None, float]:
    """The placement (N,) of the teacher's plan and the plan's seconds; None, inf: it has none."""
    if starts and isinstance(teacher, LocalSearch):
        incumbent = StepIncumbent(problem)
        for start in starts:
            incumbent.offer(start)
        teacher.improve(incumbent, budget_s, None)
        result = incumbent.result()
    else:
        result = teacher.plan(problem, budget_s)
    if result.plan is None:
        return None, np.inf
    return result.plan.placement.device, result.step_time
