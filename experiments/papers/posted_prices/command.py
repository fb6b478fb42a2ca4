"""Prices against an adversary: the exact worst ratio of rules, programs and a learned rule.

meshwright price problem=k_max_search units=[1,2,5] spreads=[5,20,50]
meshwright price problem=rentals spreads=[5] seeds=2
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from envs.arrays import FloatArray
from envs.bounds import Count
from envs.errors import InputError, require_one_of
from experiments.config.targets import build, build_as
from experiments.papers.posted_prices.problem import (
    PricingProblem,
    RequestTree,
    Spread,
    fractional_knapsack,
    k_search,
    one_way_trading,
    price_search,
    worst_reserve_ratio,
)
from experiments.papers.posted_prices.rules import (
    RULES,
    best_ratio,
    best_sales,
    rental_rules,
    reserve_levels,
)
from experiments.pictures.style import draw_bars
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run

PICTURE_FILE = "ratios.png"
MOST_DRAWN = 1e3  # a ratio above it has no bar
MOST_STATES = 1 << 25  # of the worst ratio, 32 bytes each: 1 GiB
SHOWN = ("problem", "worst_above_optimum_percent", "worst_above_program_percent", "seconds")
CLASSES: Mapping[str, tuple[str, Callable[..., float] | None]] = {  # and w of phi, of searches k
    "k_max_search": ("deterministic, forced sale at the lowest price", k_search),
    "k_min_search": (
        "deterministic, forced purchase at the highest price",
        partial(k_search, buys=True),
    ),
    "one_way_trading": (
        "any share, or one unit and chance; forced sale at the lowest price",
        one_way_trading,
    ),
    "fractional_knapsack": ("infinitesimal items, nothing forced", fractional_knapsack),
    "knapsack": (
        "items whole, nothing forced; the optimum is that of infinitesimal ones",
        fractional_knapsack,
    ),
    "rentals": ("chance, nothing forced; the program's is the optimum", None),
}


@dataclass(kw_only=True)
class PriceConfig:
    """`conf/price.yaml`; `rental` and `learner` are objects by `_target_`."""

    # k_min_search, one_way_trading, fractional_knapsack, knapsack, rentals
    problem: str = "k_max_search"
    # phi: the highest price over the lowest
    spreads: Annotated[Sequence[Spread], MinLen(1)] = (5.0, 20.0, 50.0)
    # k of the searches; the others have parts, or rentals one unit each
    units: Annotated[Sequence[Annotated[int, Ge(1), Le(20_000)]], MinLen(1)] = (1, 2, 5)
    levels: Annotated[int, Ge(2), Le(20_000)] = 1000  # prices of the geometric grid
    # units that stand for a divisible one: knapsacks, reserves of one-way trading
    parts: Annotated[int, Ge(1), Le(20_000)] = 1000
    sizes: Annotated[Sequence[Count], MinLen(1)] = (
        1,
        2,
        5,
        20,
    )  # of the items of knapsack, in parts
    rental: Any
    seeds: Annotated[int, Ge(0)] = 5  # runs of the learner, from seed on; 0: none
    learner: Any
    seed: int
    json: bool

    def __post_init__(self) -> None:
        require_one_of(self.problem, CLASSES, file="config key 'problem'")
        key = "units" if self.searches else "parts"
        most = max(self.units) if key == "units" else self.parts
        if most * min(most, self.levels) > MOST_STATES:
            fault = f"{most} at {self.levels} levels has more than {MOST_STATES} states"
            raise InputError(f"config key '{key}': {fault}")
        if max(self.sizes) > self.parts:
            raise InputError("config key 'sizes': an item is larger than all parts together")

    @property
    def searches(self) -> bool:
        """Whether it is one of the two that have k units."""
        return "search" in self.problem


def price(config: PriceConfig, run: Run) -> Result:
    """Every rule on every case; the learner from as many seeds."""
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name, ratios, problem in _cases(config):
        pairs = _learned(config, problem)
        if len(pairs):
            ratios["untrained"], ratios["learned"] = pairs.mean(axis=0).tolist()
            ratios["learned_worst"] = pairs[:, 1].max()
        rows.append({"case": name, **ratios, "learned_ratios": pairs[:, 1]})
        run.console.print(f"{name}: {time.perf_counter() - start:.0f} s")
    title, about = f"Worst ratios of {config.problem}", CLASSES[config.problem][0]
    columns = [name for name, ratio in rows[0].items() if isinstance(ratio, float)]
    forms = {x.replace("_", " "): f"{{{x}:.3f}}" for x in columns}
    note = f"{about}; learned: mean of {len(pairs)} seeds, and the worst."
    tables = [Table.of(title, {"case": "{case}", **forms}, rows, note)]
    drawn = {x: [row[x] if row[x] <= MOST_DRAWN else np.nan for row in rows] for x in columns}
    cases = [row["case"].replace(", ", "\n") for row in rows]
    figures = {PICTURE_FILE: draw_bars(cases, drawn, "worst ratio", title, base=1.0)}
    write_tables(run, title, tables, run.provenance, figures=figures)
    values: dict[str, object] = {
        "problem": config.problem,
        "class": about,
        "rows": rows,
        "worst_above_optimum_percent": _above(rows, "optimum"),
        "worst_above_program_percent": _above(rows, "program"),
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, run.provenance, SHOWN)


def _cases(
    config: PriceConfig,
) -> Iterator[tuple[str, dict[str, float], PricingProblem | RequestTree]]:
    """Of each case its name, and the ratios of what is not learned."""
    kind, form = config.problem, CLASSES[config.problem][1]
    for spread in config.spreads:
        name = f"phi = {spread:g}"
        if form is None:
            tree = RequestTree(build(config.rental, "rental")(spread=spread))
            ratios = {rule: tree.worst_ratio(*own) for rule, own in rental_rules(tree).items()}
            yield name, {**ratios, "program": best_ratio(tree)}, tree
            continue
        for units in config.units if config.searches else [config.parts]:
            problem = price_search(
                spread, config.levels, units, buys=kind == "k_min_search",
                forced="knapsack" not in kind, sizes=config.sizes if kind == "knapsack" else (1,),
            )  # fmt: skip
            ratios = {"optimum": form(spread, units) if config.searches else form(spread)}
            for rule, prices in RULES.items():
                levels = reserve_levels(problem, prices(problem))
                ratios[rule] = worst_reserve_ratio(problem, levels)
            if kind in {"one_way_trading", "fractional_knapsack"}:
                ratios["program"] = best_sales(problem)[1]
            yield f"{name}, k = {units}" if config.searches else name, ratios, problem


def _learned(config: PriceConfig, problem: PricingProblem | RequestTree) -> FloatArray:
    """(seeds, 2) worst ratios before and after training; there is no learning to buy."""
    if not config.seeds or config.problem == "k_min_search":
        return np.empty((0, 2))
    from experiments.papers.posted_prices import learned

    settings = build_as(learned.PlaySettings, config.learner, "learner", "settings of two networks")
    game: learned.Game
    if isinstance(problem, RequestTree):
        game = learned.RentalGame(problem)
    elif config.searches:
        game = learned.ReserveGame(problem)
    else:
        game = learned.SalesGame(problem, thresholds="knapsack" in config.problem)
    seeds = range(config.seed, config.seed + config.seeds)
    return np.array([learned.play(game, settings, seed) for seed in seeds])


def _above(rows: Sequence[Mapping[str, Any]], yardstick: str) -> float | None:
    """How far the worst learned ratio of all is above another, in per cent."""
    known = [row for row in rows if yardstick in row and "learned_worst" in row]
    return max((100.0 * (x["learned_worst"] / x[yardstick] - 1.0) for x in known), default=None)
