"""What `experiments.price` does: exact worst ratios of every rule for a problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from agents.pricing.programs import best_ratio, best_sales
from agents.pricing.rules import RULES, rental_rules, reserve_levels
from envs.bounds import Count
from envs.errors import InputError
from envs.pricing import closed_forms
from envs.pricing.problem import PricingProblem, Spread, price_search
from envs.pricing.worst_case import RequestTree, worst_reserve_ratio, worst_sales_ratio
from experiments.pictures.pricing import draw_ratios
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.tables import Table, write_tables
from experiments.run.targets import build, build_as

PICTURE_FILE = "ratios.png"
FOUND = ("optimum", "greedy", "fixed", "reservation", "program", "untrained", "learned")
SHOWN = ("problem", "worst_above_optimum_percent", "worst_above_program_percent", "seconds")
CLASSES = {
    "k_max_search": "deterministic, forced sale at the lowest price",
    "k_min_search": "deterministic, forced purchase at the highest price",
    "one_way_trading": "any share, or one unit and chance; forced sale at the lowest price",
    "fractional_knapsack": "infinitesimal items, nothing forced",
    "knapsack": "items whole, nothing forced; the optimum is that of infinitesimal ones",
    "rentals": "chance, nothing forced; the program's is the optimum",
}


@dataclass
class PriceConfig:
    """`conf/price.yaml`; `rental` and `learner` are objects by `_target_`."""

    problem: str
    spreads: Annotated[list[Spread], MinLen(1)]
    units: Annotated[list[Count], MinLen(1)]
    levels: Annotated[int, Ge(2), Le(20_000)]
    parts: Annotated[int, Ge(1), Le(20_000)]
    sizes: Annotated[list[Count], MinLen(1)]
    rental: Any
    seeds: Annotated[int, Ge(0)]
    learner: Any
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.problem not in CLASSES:
            told = f"{self.problem!r} is none of {', '.join(CLASSES)}"
            raise InputError(f"config key 'problem': {told}")
        if max(self.sizes) > self.parts:
            raise InputError("config key 'sizes': an item is larger than all parts together")


Ratios = dict[str, float]
Train = Callable[[int], tuple[float, float]]  # seed to ratios before and after training


def price(config: PriceConfig, run: Run) -> Result:
    """Every rule on every case; the learner from as many seeds."""
    start, rows = time.perf_counter(), []
    for name, ratios, train in _cases(config):
        pairs = np.array([train(config.seed + own) for own in range(config.seeds)]).reshape(-1, 2)
        if len(pairs):
            ratios["untrained"], ratios["learned"] = pairs.mean(axis=0).tolist()
            ratios["learned_worst"] = float(pairs[:, 1].max())
        rows.append({"case": name, **ratios, "learned_ratios": pairs[:, 1]})
        run.console.print(f"{name}: {time.perf_counter() - start:.0f} s")
    title = f"Worst ratios of {config.problem}"
    write_tables(run, title, [_table(config, rows, title)], run.provenance)
    write_figure(run.folder / PICTURE_FILE, draw_ratios(rows, FOUND, title), run.provenance)
    values: dict[str, object] = {
        "problem": config.problem,
        "class": CLASSES[config.problem],
        "rows": rows,
        "worst_above_optimum_percent": _above(rows, "optimum"),
        "worst_above_program_percent": _above(rows, "program"),
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, run.provenance, SHOWN)


def _cases(config: PriceConfig) -> Iterator[tuple[str, Ratios, Train]]:
    """Of each case its name, the ratios of what is not learned, and the learner."""
    for spread in config.spreads:
        if config.problem == "rentals":
            tree = RequestTree(build(config.rental, "rental")(spread=spread))
            ratios = {name: tree.worst_ratio(*own) for name, own in rental_rules(tree).items()}
            yield (
                f"phi = {spread:g}",
                {**ratios, "program": best_ratio(tree)},
                _trainer(config, tree),
            )
            continue
        for units in config.units if "search" in config.problem else [config.parts]:
            problem, optimum = _search(config, spread, units)
            levels = {name: reserve_levels(problem, rule(problem)) for name, rule in RULES.items()}
            ratios = {name: worst_reserve_ratio(problem, own) for name, own in levels.items()}
            if config.problem in {"one_way_trading", "fractional_knapsack"}:
                ratios["program"] = worst_sales_ratio(problem, best_sales(problem)[0])
            name = f"phi = {spread:g}" + (f", k = {units}" if "search" in config.problem else "")
            yield name, {"optimum": optimum, **ratios}, _trainer(config, problem)


def _search(config: PriceConfig, spread: float, units: int) -> tuple[PricingProblem, float]:
    """The problem, and the least ratio of its class."""
    whole = config.problem == "knapsack"
    problem = price_search(
        spread,
        config.levels,
        units,
        buys=config.problem == "k_min_search",
        forced="knapsack" not in config.problem,
        sizes=config.sizes if whole else (1,),
    )
    if config.problem == "k_max_search":
        return problem, closed_forms.k_max_search(spread, units)
    if config.problem == "k_min_search":
        return problem, closed_forms.k_min_search(spread, units)
    if config.problem == "one_way_trading":
        return problem, closed_forms.one_way_trading(spread)
    return problem, closed_forms.fractional_knapsack(spread)


def _trainer(config: PriceConfig, problem: PricingProblem | RequestTree) -> Train:
    """The learner of a case; none learns to buy."""
    if not config.seeds or config.problem == "k_min_search":
        config.seeds = 0
        return lambda _: (np.nan, np.nan)
    from agents.pricing.learned import (
        Game,
        PlaySettings,
        RentalGame,
        ReserveGame,
        SalesGame,
        play,
    )

    game: Game
    if isinstance(problem, RequestTree):
        game = RentalGame(problem)
    elif config.problem == "k_max_search":
        game = ReserveGame(problem)
    else:
        game = SalesGame(problem, thresholds="knapsack" in config.problem)
    settings = build_as(PlaySettings, config.learner, "learner", "settings of two networks")
    return lambda seed: play(game, settings, seed)


def _above(rows: Sequence[Mapping[str, Any]], yardstick: str) -> float | None:
    """How far the worst learned ratio of all is above another, in per cent."""
    known = [row for row in rows if yardstick in row and "learned_worst" in row]
    return max((100.0 * (x["learned_worst"] / x[yardstick] - 1.0) for x in known), default=None)


def _table(config: PriceConfig, rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))[1:]
    columns.remove("learned_ratios")
    cells = [[row["case"], *(f"{row[name]:.3f}" for name in columns)] for row in rows]
    return Table(title, ["case", *(x.replace("_", " ") for x in columns)], cells,
                 f"{CLASSES[config.problem]}; learned: mean of {config.seeds} seeds.")  # fmt: skip
