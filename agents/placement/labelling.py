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
    first = np.zeros(fusion.num_groups, dtype=np.int64)
    first[fusion.piece_group] = device
    return LabelledProblem(
        number=number,
        problem=problem,
        device=first,
        rule=price.rule,
        seconds=price.seconds,
        free_s=free_s,
        single_s=min(map(_seconds, single)),
        split_s=min((_seconds(price) for _, price in cheap), default=np.inf),
    )


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
