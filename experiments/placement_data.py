"""Make a dataset to train a placement policy on: problems drawn at random, labelled by a teacher.

python -m experiments.placement_data folder=data problems=2000 budget_s=1
python -m experiments.placement_data folder=better improve=data plans=plans.npz
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from envs.bounds import Count, Positive
from envs.errors import InputError
from experiments.run.app import run_app
from experiments.run.artifacts import to_json
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import text_hash
from experiments.step.placement_data import Labelling, labelled


@dataclass
class PlacementDataConfig:
    """`conf/placement_data.yaml`; groups are objects by `_target_`."""

    distribution: Any
    teacher: Any
    folder: str
    problems: Count
    shard_size: Count
    first_stage: Annotated[float, Ge(0.0), Le(1.0)]
    last_stage: Annotated[float, Ge(0.0), Le(1.0)]
    budget_s: Positive
    piece_s: Positive
    processes: Annotated[int, Ge(1), Le(256)]
    improve: str | None
    plans: str | None
    seed: int
    json: bool


def placement_data(config: PlacementDataConfig, run: Run) -> Result:
    """Write the shards that are missing in the folder, and say what stands there."""
    if config.first_stage > config.last_stage:
        raise InputError(f"{config.first_stage} is above last_stage", field="first_stage")
    asked = Labelling(
        config.distribution, config.teacher, config.problems,
        (config.first_stage, config.last_stage), config.budget_s, config.piece_s,
        config.shard_size, config.seed, config.improve, config.plans,
    )  # fmt: skip
    made_from = {**vars(asked), "stages": list(asked.stages), "problems": None}
    provenance = run.provenance.with_inputs(labelling=text_hash(to_json(made_from)))
    with ProgressDisplay(run.console) as display:
        found = labelled(asked, Path(config.folder), config.processes, display, made_from)
    gains = [min(item.single_s, item.split_s) / item.seconds for item in found[:200]]
    values = {
        "folder": config.folder,
        "problems": len(found),
        "without_a_label": asked.problems - len(found),
        "median_gain_over_cheap_plans": float(np.median(gains)) if gains else None,
    }
    return Result(values, provenance)


def main(arguments: list[str] | None = None) -> int:
    return run_app("placement_data", PlacementDataConfig, placement_data, arguments)


if __name__ == "__main__":
    sys.exit(main())
