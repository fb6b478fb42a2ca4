"""Learning curves of schedulers over several seeds: the interquartile mean and its interval.

python -m experiments.plot runs=[<run folder>,<run folder>]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import MinLen

from envs.errors import InputError
from experiments.pictures.learning import (
    METRICS_FILE,
    common,
    draw_exams,
    interquartile_mean,
    read_exams,
)
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_figure
from experiments.run.provenance import file_hash

CURVE_FILE = "learning_curves.png"


@dataclass
class CurvesConfig:
    """`conf/cluster_curves.yaml`."""

    runs: Annotated[list[str], MinLen(2)]
    seed: int
    json: bool


def curves(config: CurvesConfig, run: Run) -> Result:
    """Read the exams of every run and draw them together."""
    folders = [Path(name) for name in config.runs]
    runs = [read_exams(folder) for folder in folders]
    decisions, scores = common(runs)
    if not len(decisions):
        raise InputError("config key 'runs': were never examined after equally many decisions")
    hashes = {f"run_{k}": file_hash(path / METRICS_FILE) for k, path in enumerate(folders)}
    provenance = run.provenance.with_inputs(**hashes)
    write_figure(run.folder / CURVE_FILE, draw_exams(runs, f"{len(runs)} seeds"), provenance)
    values: dict[str, object] = {
        "runs": config.runs,
        "decisions": decisions.tolist(),
        "scores": scores.tolist(),
        "interquartile_mean": interquartile_mean(scores).tolist(),
        "last": float(interquartile_mean(scores)[-1]),
        "picture": str(run.folder / CURVE_FILE),
    }
    return Result(values, provenance, ("last", "picture"))
