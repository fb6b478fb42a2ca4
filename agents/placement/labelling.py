"""Labels of placement problems: what a searching planner makes of them in little time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from agents.placement.labelled import LabelledProblem
from agents.placement.neighbourhood.seeds import splits
from agents.solver import Budget
from agents.step.grouping import GroupedProblem
from agents.step.problems import Planner, StepPlanning
from envs.arrays import IntArray
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem

_LOST = (
    1.005  # the price of a teacher's placement over that of its own order: search again above it
)
_AGAIN = 0.5  # of the budget, for placements alone, each in the best named order
_SAME = 1e-9  # relative difference, by rounding, of two equal times


def label(
    number: int, problem: StepProblem, teacher: Planner, budget_s: float
) -> LabelledProblem | None:
    """Fused `problem` with the best placement of its groups; None: none was found that fits.

    The best, in its best order, of the teacher's, of cheap splits and single devices. Where the
    teacher's plan owes its time to an order that no rule gives, it plans once more in named orders.
    """
    pricer, group = Pricer(problem), problem.graph.colocation
    first = np.unique(group, return_index=True)[1]  # (G,) a piece of every group

    def cheapest(devices: Iterable[IntArray]) -> tuple[float, IntArray | None]:
        found = [(_seconds(pricer.price(device[group])), device) for device in devices]
        return min(found, key=lambda pair: pair[0], default=(np.inf, None))

    single = cheapest(np.full(len(first), d) for d in range(problem.topology.num_devices))
    split = cheapest(d[first] for d in splits(GroupedProblem.of(problem, len(first))))
    device, free_s = _placed(problem, teacher, budget_s)
    best = min((single, split, cheapest(() if device is None else [device[first]])),
               key=lambda pair: pair[0])  # fmt: skip
    if best[0] > _LOST * free_s:
        named = replace(problem, orders=tuple(o for o in problem.orders if o != "free"))
        device, _ = _placed(named, teacher, _AGAIN * budget_s)
        again = cheapest(() if device is None else [device[first]])
        best = again if again[0] < best[0] else best
    if best[1] is None or not np.isfinite(best[0]):
        return None
    chosen = aligned(problem, best[1], pricer)
    price = pricer.price(chosen[group])
    return LabelledProblem(
        number, problem, chosen, price.rule, price.seconds, free_s, single[0], split[0]
    )


def _seconds(price: Price) -> float:
    return price.seconds if price.excess <= 0.0 else np.inf


def _placed(
    problem: StepProblem, teacher: Planner, budget_s: float
) -> tuple[IntArray | None, float]:
    """The placement (N,) of the teacher's plan and the plan's seconds; None, inf: it has none."""
    found = teacher.solve(StepPlanning(problem), Budget(budget_s))
    plan = found.solution
    return (None, np.inf) if plan is None else (plan.placement.device, found.value)


def aligned(problem: StepProblem, device: IntArray, pricer: Pricer) -> IntArray:
    """Placement (G,) of a fused problem, devices that are alike taken in the order of their use.

    Of devices of one server with equal times and memory, the one with the first group gets the
    lowest number, and so on; then likewise servers that are alike as a whole. Either is left as it
    was where it would make the step slower, as between islands of fast links.
    """
    server, devices = problem.topology.server, problem.topology.num_devices
    columns = np.concatenate([problem.op_seconds, problem.capacity[None]]).T
    kind = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    inside = [np.flatnonzero(server == one) for one in np.unique(server)]
    alone = [
        inside[at][kind[inside[at]] == k] for at in range(len(inside)) for k in np.unique(kind)
    ]
    best = pricer.price(device[problem.graph.colocation])
    for units in (
        [part[:, None] for part in alone],
        [np.stack(row) for row in _alike(inside, kind)],
    ):
        first = np.full(devices, len(device))
        np.minimum.at(first, device, np.arange(len(device)))
        number = np.arange(devices)
        for unit in units:  # rows of devices that stand for each other
            number[unit[np.argsort(first[unit].min(axis=1), kind="stable")]] = unit
        changed = number[device]
        price = pricer.price(changed[problem.graph.colocation])
        if price.excess <= best.excess and price.seconds <= best.seconds * (1.0 + _SAME):
            device, best = changed, price
    return device


def _alike(servers: list[IntArray], kind: IntArray) -> list[list[IntArray]]:
    """The servers (their devices) by the kinds of their devices."""
    found: dict[tuple[int, ...], list[IntArray]] = {}
    for devices in servers:
        found.setdefault(tuple(kind[devices].tolist()), []).append(devices)
    return list(found.values())
