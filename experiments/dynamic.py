"""Groups and stages chosen anew as workers change: drift plus penalty beside other policies.

python -m experiments.dynamic
python -m experiments.dynamic slots=walk slots.heterogeneity=8 budget.rent=0.5
python -m experiments.dynamic slots=file slots.path=slots.csv seeds=1

The run folder receives the slots of the first seed, slots.csv, which slots=file reads.
"""

from __future__ import annotations

import time

from envs.hybrid.slots import write_slots
from experiments.pictures.studies import draw_dynamic
from experiments.run.app import main_of
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.step.dynamic import (
    BASE,
    COLUMNS,
    OURS,
    DynamicConfig,
    all_seeds,
    beyond_the_theorem,
    cells,
    rows,
)
from experiments.study.tables import Table, write_tables

SLOTS_FILE, PICTURE_FILE = "slots.csv", "dynamic.png"
SHOWN = ("reduction_percent", "beyond_the_theorem", "slots", "picture", "seconds")


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
    values = {
        "policies": table,
        "reduction_percent": ours["reduction_percent"],
        "clairvoyant_bound_s": [one.yardstick.bound for one in found],
        "beyond_the_theorem": beyond_the_theorem(found),
        "slots": str(slots),
        "picture": str(picture),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, run.provenance, SHOWN)


main = main_of("dynamic")
