"""Groups and stages chosen anew as workers change: drift plus penalty beside other policies.

meshwright dynamic slots=walk slots.heterogeneity=8 budget.rent=0.5
meshwright dynamic slots=file slots.path=slots.csv seeds=1

The run folder receives the slots of the first seed, slots.csv, which slots=file reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from envs.arrays import FloatArray
from envs.bounds import Count, Positive
from envs.errors import InputError
from experiments.config.targets import SEEDS, build_as
from experiments.papers.dynamic_parallelism.batch_time import COSTS, BatchTime, Layers
from experiments.papers.dynamic_parallelism.policies import (
    UNLIMITED,
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
from experiments.pictures.style import Panel, Series, draw_curves
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.statistics import bootstrap

BASE, OURS, PROGRAM = "static", "lyapunov", "clairvoyant"
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


# The policies on the slots of one seed, and seconds and bound of the program that knew them all.
OneSeed = tuple[dict[str, Played], tuple[float, float]]


def dynamic(config: DynamicConfig, run: Run) -> Result:
    """Every policy on the slots of `seed`, `seed` + 1, ...; a table, a picture of the first seed.

    Raises:
        InputError: a node of the config describes no such thing, or no plans keep to the budgets.
    """
    start = time.perf_counter()
    if config.seed + config.seeds > SEEDS:
        raise InputError(f"config key 'seeds': seeds above {SEEDS - 1} are needed")
    layers = build_as(Layers, config.layers, "layers", "layers")
    source = build_as(SlotSource, config.slots, "slots", "source of slots")
    drawn = [source.draw(config.seed + n) for n in range(config.seeds)]
    found = [_one_seed(config, layers, slots) for slots in drawn]
    first, (rows, cells) = drawn[0], _rows(found, config.bootstrap, config.seed)
    reduction = next(row["reduction_percent"] for row in rows if row["policy"] == OURS)
    title = (
        f"{len(first.workers)} workers in {len(first.values)} slots, {config.seeds} "
        f"seeds: {OURS} takes {reduction:.1f} % less time than {BASE}"
    )
    table = Table.plain("Policies", cells, 4)
    figures = {PICTURE_FILE: _picture(found[0][0], title)}
    write_tables(run, title, [table], run.provenance, figures=figures)
    write_slots(first, run.folder / SLOTS_FILE)
    return Result(
        {
            "policies": rows,
            "reduction_percent": reduction,
            "clairvoyant_bound_s": [bound for _, (_, bound) in found],
            "beyond_the_theorem": max(
                (own.spent.mean(axis=0) - 1.0 - own.queue[-1] / len(own.queue)).max()
                for played, _ in found
                for own in played.values()
            ),  # an average cost above budget + queue(T) / T, in budgets: rounding only
            "slots": str(run.folder / SLOTS_FILE),
            "picture": str(run.folder / PICTURE_FILE),
            "seconds": time.perf_counter() - start,
        },
        run.provenance,
        SHOWN,
    )


def _one_seed(config: DynamicConfig, layers: Layers, slots: Slots) -> OneSeed:
    times = [BatchTime(layers, config.samples, slot) for slot in slots.values]
    mean = BatchTime(layers, config.samples, slots.values.mean(axis=0))
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
    played["static_hindsight"] = best_kept(times, budget, met)
    known = zip(*(own.batches for own in played.values()), strict=True)
    return played, clairvoyant(times, budget, known)


Records = list[dict[str, Any]]


def _rows(found: Sequence[OneSeed], samples: int, seed: int) -> tuple[Records, Records]:
    """What `result.json` and the table say of each policy, and of the program, over the seeds."""
    base = np.array([played[BASE].seconds.mean() for played, _ in found])
    rows, cells = Records(), Records()
    for name in (*found[0][0], PROGRAM):
        own = [played[name] for played, _ in found if name != PROGRAM]
        seconds = [x.seconds.mean() for x in own] or [least for _, (least, _) in found]
        ratio = bootstrap((np.array(seconds) / base)[:, None], samples, seed)
        mean = np.mean(seconds)
        rows.append({
            "policy": name,
            "mean_batch_s": mean,
            f"over_{BASE}": asdict(ratio),
            "reduction_percent": 100.0 * (1.0 - ratio.mean),
        })  # fmt: skip
        cells.append({"policy": name, "batch time, s": mean, f"over {BASE}": ratio.text()})
        if own:
            spent = np.mean([x.spent.mean(axis=0) for x in own], axis=0).tolist()
            cost = dict(zip(COSTS, spent, strict=True))
            queue = max(x.queue.max() for x in own)
            moving = np.mean([np.mean(x.moving) for x in own])
            rows[-1] |= {
                "cost_over_budget": cost, "largest_queue": queue, "mean_moving_s": moving,
            }  # fmt: skip
            cells[-1] |= {**cost, "largest queue": queue, "moving, s": moving}
    return rows, cells


def _picture(played: Mapping[str, Played], title: str) -> Figure:
    """Three panels over the slots, a line per policy: time, rent so far, the queue of rent."""
    rent, slots = COSTS.index("rent"), np.arange(1, 1 + len(played[BASE].batches))

    def series(of: Callable[[Played], FloatArray]) -> Series:
        return {name: (slots, of(own)) for name, own in played.items()}

    below = {"yscale": "symlog", "ylim": (0.0, None), "xlabel": "slot"}
    panels = [
        Panel(series(lambda own: own.seconds), {"yscale": "log", "ylabel": "batch time, s"}),
        Panel(
            series(lambda own: np.cumsum(own.spent[:, rent]) / slots),
            {"ylabel": "mean rent so far / budget"},
            level=1.0,
        ),
        Panel(
            series(lambda own: own.queue[:, rent]), {"ylabel": "queue of rent, budgets", **below}
        ),
    ]
    return draw_curves(title, panels, 9.0, 7.0, drawstyle="steps-mid")
