"""Make a dataset to train a placement policy on: problems drawn at random, labelled by a teacher.

python -m experiments.placement_data folder=data problems=2000 budget_s=1
python -m experiments.placement_data folder=better agent@teacher=learned
"""

from __future__ import annotations

import numpy as np

from experiments.run.app import main_of
from experiments.run.artifacts import to_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import text_hash
from experiments.step.placement_data import PlacementDataConfig, labelled
from experiments.study.display import ProgressDisplay

LOOKED_AT = 200  # problems, for the gain over cheap plans


def placement_data(config: PlacementDataConfig, run: Run) -> Result:
    """Write the shards that are missing in the folder, and say what stands there."""
    with ProgressDisplay(run.console) as display:
        found = labelled(config, display)
    gains = [min(item.single_s, item.split_s) / item.seconds for item in found[:LOOKED_AT]]
    values = {
        "folder": config.folder,
        "problems": len(found),
        "without_a_label": config.problems - len(found),
        "median_gain_over_cheap_plans": float(np.median(gains)) if gains else None,
    }
    made_from = text_hash(to_json({"from": config.distribution, "by": config.teacher}))
    return Result(values, run.provenance.with_inputs(labelling=made_from))


main = main_of("placement_data")
