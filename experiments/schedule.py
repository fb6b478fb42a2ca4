"""A pipeline schedule by its name: makespan, span, live activations, a picture.

python -m experiments.schedule name=1f1b ranks=4 micro_batches=8 forward=10 input_gradient=12 \\
    weight_gradient=8 communication=1 json=true
"""

from __future__ import annotations

import math
import time

from envs.errors import InputError
from experiments.pictures.step import draw_pipeline
from experiments.run.app import main_of
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.step.schedules import ScheduleConfig, schedule_of
from experiments.study.tables import Table, write_tables

PICTURE_FILE = "schedule.png"
SHOWN = ("makespan", "max_rank_span", "work_per_rank", "method", "status", "lower_bound", "picture")


def schedule(config: ScheduleConfig, run: Run) -> Result:
    """Play the schedule, draw it."""
    start = time.perf_counter()
    found = schedule_of(config)
    seconds = time.perf_counter() - start
    if not math.isfinite(found.played.makespan):
        raise InputError("config key 'forward': the times of actions have no finite sum")
    title = (
        f"{config.name}: {config.micro_batches} micro-batches on {config.ranks} ranks take "
        f"{found.played.makespan:g}, the longest span of a rank {found.played.max_rank_span:g}"
    )
    picture = run.folder / PICTURE_FILE
    write_figure(picture, draw_pipeline(found.played, found.pipeline, title), run.provenance)
    columns = ["rank", "first start", "last end", "span", "busy", "live until W", "live until I"]
    write_tables(run, title, [Table("Ranks", columns, found.rows())], run.provenance)
    values = {
        "name": config.name,
        "ranks": config.ranks,
        "micro_batches": config.micro_batches,
        **found.document(),
        "picture": str(picture),
        "seconds": seconds,
    }
    return Result(values, run.provenance, SHOWN)


main = main_of("schedule")
