"""Groups and stages chosen anew as workers change: drift plus penalty beside other policies.

python -m experiments.dynamic slots=walk slots.heterogeneity=8 budget.rent=0.5
python -m experiments.dynamic slots=file slots.path=slots.csv seeds=1

The run folder receives the slots of the first seed, slots.csv, which slots=file reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from envs.bounds import Count, Positive
from envs.errors import InputError
from experiments.config.targets import SEEDS, build_as
from experiments.papers.dynamic_parallelism.batch_time import COSTS, BatchTime, Layers
from experiments.papers.dynamic_parallelism.policies import (
    UNLIMITED,
    Clairvoyant,
    Played,
    Policy,
    best_kept,
    clairvoyant,
    even,
    greedy,
    lyapunov,
    play,
    search,
    static,
)
from experiments.papers.dynamic_parallelism.slots import Slots, SlotSource, write_slots
from experiments.pictures.style import Panel, draw_curves
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.statistics import Interval, bootstrap

BASE, OURS, PROGRAM = "static", "lyapunov", "clairvoyant"
COLUMNS = (
    "policy", "batch time, s", f"over {BASE}", "rent", "traffic", "largest queue", "moving, s",
)  # fmt: skip
SLOTS_FILE, PICTURE_FILE = "slots.csv", "dynamic.png"
SHOWN = ("reduction_percent", "beyond_the_theorem", "slots", "picture", "seconds")


@dataclass
class BudgetConfig:
    """Of a slot on average, over what plain data parallelism costs on mean rents; None: none."""

    rent: Positive | None
    traffic: Positive | None


@dataclass(kw_only=True)
class DynamicConfig:
    """`conf/dynamic.yaml`; `layers` and `slots` are objects by `_target_`."""

    layers: Any
    slots: Any
    samples: Count = 256  # of a batch; a slot is one batch
    budget: BudgetConfig
    # V: what the time of the static plan counts, against a queue of one budget
    weight: Positive = 3.0
    seeds: Count = 5  # seed, seed + 1, ...
    bootstrap: Count = 2000  # samples of the interval over seeds
    seed: int
    json: bool


def dynamic(config: DynamicConfig, run: Run) -> Result:
    """Every policy on every seed; a table, and a picture of the first seed."""
    start = time.perf_counter()
    found = all_seeds(config)
    first, table = found[0], rows(found, config.bootstrap, config.seed)
    ours = next(row for row in table if row["policy"] == OURS)
    title = (
        f"{len(first.slots.workers)} workers in {len(first.slots.speed)} slots, {config.seeds} "
        f"seeds: {OURS} takes {ours['reduction_percent']:.1f} % less time than {BASE}"
    )
    policies = Table("Policies", COLUMNS, [cells(row) for row in table])
    write_tables(run, title, [policies], run.provenance)
    slots, picture = run.folder / SLOTS_FILE, run.folder / PICTURE_FILE
    write_slots(first.slots, slots)
    write_figure(picture, draw_dynamic(first.played, title), run.provenance)
    return Result(
        {
            "policies": table,
            "reduction_percent": ours["reduction_percent"],
            "clairvoyant_bound_s": [one.yardstick.bound for one in found],
            "beyond_the_theorem": beyond_the_theorem(found),
            "slots": str(slots),
            "picture": str(picture),
            "seconds": time.perf_counter() - start,
        },
        run.provenance,
        SHOWN,
    )


@dataclass(frozen=True, eq=False)
class OneSeed:
    """All policies on the slots of one seed, and the program that knew them beforehand."""

    slots: Slots
    played: dict[str, Played]
    yardstick: Clairvoyant


def run_seed(config: DynamicConfig, layers: Layers, slots: Slots) -> OneSeed:
    """Let every policy decide.

    Raises:
        InputError: no plans keep to the budgets.
    """
    times = [BatchTime(layers, config.samples, slots, t) for t in range(len(slots.speed))]
    mean = BatchTime(layers, config.samples, slots.mean, 0)
    share = [getattr(config.budget, name) for name in COSTS]
    budget = mean.of(even(mean)).cost * [np.inf if part is None else part for part in share]
    kept = search(mean, limit=budget)
    policies: dict[str, Policy] = {
        "even": static(even(mean)),
        BASE: static(kept.plan),
        "greedy": greedy(UNLIMITED),
        "greedy_budget": greedy(budget),
        OURS: lyapunov(config.weight, kept.seconds, budget),
    }
    played = {name: play(policy, times, budget) for name, policy in policies.items()}
    met = [own for name, own in played.items() if name != "even"]
    played["static_hindsight"] = play(static(best_kept(times, budget, met)), times, budget)
    known = [[own.batches[t] for own in played.values()] for t in range(len(times))]
    return OneSeed(slots, played, clairvoyant(times, budget, known))


def all_seeds(config: DynamicConfig) -> list[OneSeed]:
    """The policies on the slots of `seed`, `seed` + 1, ...

    Raises:
        InputError: a node of the config describes no such thing, or as `run_seed`.
    """
    if config.seed + config.seeds > SEEDS:
        raise InputError(f"config key 'seeds': seeds above {SEEDS - 1} are needed")
    layers = build_as(Layers, config.layers, "layers", "layers")
    source = build_as(SlotSource, config.slots, "slots", "source of slots")
    return [
        run_seed(config, layers, source.draw(seed))
        for seed in range(config.seed, config.seed + config.seeds)
    ]


def rows(found: Sequence[OneSeed], samples: int, seed: int) -> list[dict[str, Any]]:
    """What `result.json` says of each policy, and of the program; ratios with their interval."""
    base = np.array([one.played[BASE].seconds.mean() for one in found])
    table = []
    for name in (*found[0].played, PROGRAM):
        own = [one.played[name] for one in found if name != PROGRAM]
        seconds = [x.seconds.mean() for x in own] or [one.yardstick.seconds for one in found]
        ratio = bootstrap((np.array(seconds) / base)[:, None], samples, seed)
        row: dict[str, Any] = {
            "policy": name,
            "mean_batch_s": float(np.mean(seconds)),
            f"over_{BASE}": asdict(ratio),
            "reduction_percent": 100.0 * (1.0 - ratio.mean),
        }
        if own:
            spent = np.mean([played.spent.mean(axis=0) for played in own], axis=0).tolist()
            row["cost_over_budget"] = dict(zip(COSTS, spent, strict=True))
            row["largest_queue"] = max(float(played.queue.max()) for played in own)
            row["mean_moving_s"] = float(np.mean([played.moving.mean() for played in own]))
        table.append(row)
    return table


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table, as texts."""
    spent = row.get("cost_over_budget", {})
    numbers = [spent.get(name) for name in COSTS]
    numbers += [row.get("largest_queue"), row.get("mean_moving_s")]
    texts = ["" if number is None else f"{number:.3f}" for number in numbers]
    over = Interval(**row[f"over_{BASE}"]).text()
    return [row["policy"], f"{row['mean_batch_s']:.4g}", over, *texts]


def beyond_the_theorem(found: Sequence[OneSeed]) -> float:
    """The most that an average cost is above budget + queue(T) / T, in budgets: rounding only."""
    return max(
        float((own.spent.mean(axis=0) - 1.0 - own.queue[-1] / len(own.queue)).max())
        for one in found
        for own in one.played.values()
    )


def draw_dynamic(played: Mapping[str, Played], title: str) -> Figure:
    """Three panels over the slots, a line per policy: time, rent so far, the queue of rent."""
    rent, slots = COSTS.index("rent"), np.arange(1, 1 + len(next(iter(played.values())).seconds))
    seconds = {name: (slots, own.seconds) for name, own in played.items()}
    spent = {name: (slots, np.cumsum(own.spent[:, rent]) / slots) for name, own in played.items()}
    queue = {name: (slots, own.queue[:, rent]) for name, own in played.items()}
    below = {"yscale": "symlog", "ylim": (0.0, None), "xlabel": "slot"}
    panels = [
        Panel(seconds, {"yscale": "log", "ylabel": "batch time, s"}),
        Panel(spent, {"ylabel": "mean rent so far / budget"}, level=1.0),
        Panel(queue, {"ylabel": "queue of rent, budgets", **below}),
    ]
    return draw_curves(title, panels, 9.0, 7.0, drawstyle="steps-mid")
