"""Draw the evaluations of several trainings: seeds of one recipe together, those of a study apart.

python -m experiments.report curves=[<run folder>,<run folder>]
python -m experiments.report curves=[<run folder of a study>]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import MinLen

from envs.errors import InputError
from envs.files import read_json
from experiments.pictures.learning import (
    common,
    draw_each,
    draw_evaluations,
    interquartile_mean,
    read_evaluations,
)
from experiments.run.artifacts import METRICS_FILE, write_figure
from experiments.run.one_run import RESULT_FILE, Result, Run
from experiments.run.provenance import file_hash
from experiments.studies.frames import FAILED_STATUS, Frames

PICTURE, CELLS_FILE = "learning_curves.png", "cells.parquet"


@dataclass(kw_only=True)
class CurvesConfig:
    """`report curves=`."""

    # run folders of trainings, seeds of one recipe; or that of one study of trainings
    curves: Annotated[Sequence[str], MinLen(1)]
    seed: int
    json: bool


def curves(config: CurvesConfig, run: Run) -> Result:
    """Read the evaluations of every run and draw them."""
    folders = [Path(name) for name in config.curves]
    if len(folders) == 1:
        return _of_study(folders[0], run)
    runs = [read_evaluations(folder) for folder in folders]
    steps, scores = common(runs)
    if not len(steps):
        raise InputError("config key 'curves': were never evaluated after equally many steps")
    hashes = {f"run_{k}": file_hash(path / METRICS_FILE) for k, path in enumerate(folders)}
    provenance = run.provenance.with_inputs(**hashes)
    write_figure(run.folder / PICTURE, draw_evaluations(runs, f"{len(runs)} seeds"), provenance)
    mean = interquartile_mean(scores).tolist()
    values: dict[str, object] = {
        "runs": config.curves,
        "steps": steps.tolist(),
        "scores": scores.tolist(),
        "interquartile_mean": mean,
        "last": mean[-1],
        "picture": str(run.folder / PICTURE),
    }
    return Result(values, provenance, ("last", "picture"))


def _of_study(folder: Path, run: Run) -> Result:
    """A panel for every cell."""
    if not (folder / CELLS_FILE).is_file():
        reason = "is no study: several run folders are seeds of one recipe"
        raise InputError(reason, file=folder, field=CELLS_FILE)
    cells = Frames.read(folder).cells
    varying = [x for x in ("problem", "solver", "budget", "seed") if cells[x].n_unique() > 1]
    found, scores, hashes = {}, {}, {}
    for row in cells.iter_rows(named=True):
        name = ", ".join(str(row[x]) for x in varying) or row["problem"]
        if row["status"] == FAILED_STATUS:
            raise InputError(f"{name} failed: resume the study", file=folder)
        cell = Path(row["artefact"])
        result = read_json(cell / RESULT_FILE)
        if "evaluations" not in result:
            raise InputError(f"{name} is no training", file=folder)
        evaluations = [(one["iteration"], one["score"]) for one in result["evaluations"]]
        rules = [*(result.get("rules") or {}).values()]
        found[name] = read_evaluations(cell, evaluations), (rules or [None])[0]
        scores[name], hashes[row["cell"]] = result["best_score"], file_hash(cell / METRICS_FILE)
    provenance = run.provenance.with_inputs(**hashes)
    write_figure(run.folder / PICTURE, draw_each(found), provenance)
    values: dict[str, object] = {"scores": scores, "picture": str(run.folder / PICTURE)}
    return Result(values, provenance, ("picture",))
