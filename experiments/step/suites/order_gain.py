"""`suite=order_gain`: what the order of a step gains, and what the search of a placement does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envs.bounds import Positive, bounded
from envs.errors import require_one_of
from experiments.step.suites.cell import (
    Axis,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    cells_of,
    percent,
    reduction,
    spread,
)
from experiments.study.suite import SUITE_KEY, Report
from experiments.study.tables import Table

GAINS = ("by the order", "over the split")
PARTS = ("reduction", "order", "placement")
SPREAD = ("median", "largest", "smallest")
NOTE = (
    "By the order: 1 - step time in the best order / in the fixed one, of one planner. Over the "
    "split: 1 - its step time / that of the split, both in their best orders: whether a search is "
    "worth its time."
)
PART_NOTE = (
    "From the split in the fixed order to the best plan of all. The order's part is what the best "
    "order makes of the split; the placement's what the best plan is below that."
)


@bounded
@dataclass(frozen=True)
class OrderGain(PlanSuite):
    """Every planner twice on each case: in one fixed order, and in the best of all orders.

    Args:
        title: for a reader.
        cases: graphs and topologies; each problem of it is one set of orders.
        fixed: label of the problem with one order.
        best: label of the problem with all of them.
        split: label of the planner whose plan is the yardstick.
        planners: label: overrides of conf/plan.yaml, the split among them.
        budget_s: seconds of search of each of them.

    Raises:
        InputError: a label is not there.
    """

    title: str
    cases: Cases
    fixed: str
    best: str
    split: str
    planners: Axis
    budget_s: Positive

    def __post_init__(self) -> None:
        problems = self.cases.problems
        for field, known in ("fixed", problems), ("best", problems), ("split", self.planners):
            require_one_of(getattr(self, field), known, file=SUITE_KEY, field=field)

    def cells(self) -> list[PlanCell]:
        return cells_of([self.cases], self.planners, [self.budget_s])

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per case and planner, their medians, and the parts of the whole reduction."""
        found: dict[str, dict[tuple[str, str], Outcome]] = {}
        for cell, outcome in outcomes.items():
            name = f"{cell.case.graph} on {cell.case.topology}"
            found.setdefault(name, {})[cell.agent, cell.case.problem] = outcome
        texts, rows, parts = [], list[dict[str, object]](), dict[str, dict[str, float]]()
        gained: dict[str, list[tuple[float, float]]] = {planner: [] for planner in self.planners}
        for name, at in found.items():
            split = at[self.split, self.best]
            for planner in self.planners:
                fixed, best = at[planner, self.fixed], at[planner, self.best]
                gains = reduction(best, fixed), reduction(best, split)
                gained[planner].append(gains)
                texts.append(
                    (name, f"{max(fixed.operators, best.operators):,}", planner, fixed.text,
                     best.text, *map(percent, gains))
                )  # fmt: skip
                rows.append(
                    {"problem": name, "planner": planner, "fixed_order_s": fixed.objective,
                     "best_order_s": best.objective, **dict(zip(GAINS, gains, strict=True))}
                )  # fmt: skip
            # 1 - the whole reduction is 1 - the order's part times 1 - the placement's
            begun, last = at[self.split, self.fixed], min(at.values(), key=lambda x: x.objective)
            whole = (last, begun), (split, begun), (last, split)
            parts[name] = {part: reduction(*pair) for part, pair in zip(PARTS, whole, strict=True)}
        tables = [
            Table(
                self.title, ("problem", "operators", "planner", self.fixed, self.best, *GAINS),
                texts, note=NOTE,
            ),
            Table(
                "Planners", ("planner", *(f"{gain}: {x}" for gain in GAINS for x in SPREAD)),
                [(x, *(percent(y) for column in zip(*pairs, strict=True) for y in spread(column)))
                 for x, pairs in gained.items()],
            ),
            Table(
                "Where the reduction comes from", ("problem", *PARTS),
                [(name, *map(percent, part.values())) for name, part in parts.items()],
                note=PART_NOTE,
            ),
        ]  # fmt: skip
        headline = {
            f"{part}: {word}": value
            for part in PARTS
            for word, value in zip(SPREAD, spread(x[part] for x in parts.values()), strict=True)
        }
        return Report(tables, {}, {"rows": rows, "parts": parts}, headline)
