"""Learn how GADGET weighs the gains of malleable jobs in a slot, by whole plans.

meshwright train task=gains +split@splits.itp=itp

The best few of a search are checked on validation problems beside GADGET's own weights, its
untrained twin; `gains.json` in the run folder is what `Gadget(weights=<file>)` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agents.cluster.rule_numbers import Numbers, NumberSearch
from envs.arrays import FloatArray
from envs.bounds import Count
from experiments.config.targets import build_as
from experiments.learning.train_rule import NumberTask, searched
from experiments.learning.training import begun
from experiments.papers.malleable_jobs.gadget import OWN, Gadget
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.train_allocation import ProblemsConfig, utilities
from experiments.run.one_run import Result, Run

GAINS_FILE = "gains.json"


@dataclass(kw_only=True)
class TrainGainsConfig(ProblemsConfig):
    """`conf/task/gains.yaml`; the search and the problems are objects by `_target_`."""

    model: Any
    windows: Count = 8  # problems of the search, the same for all weights
    evaluation_windows: Count = 8  # problems on which the best are checked
    evaluations: Count = 3  # of the best that are


def train_gains(config: TrainGainsConfig, run: Run) -> Result:
    """Search, evaluate the best beside GADGET's own weights, and save the best of them."""
    config, tracking = begun(config, run)
    search, before = (
        build_as(NumberSearch, config.model, "model", "search for numbers"),
        asdict(OWN),
    )
    sources = zip(config.sources(), (config.windows, config.evaluation_windows), strict=True)
    training, judging = (config.drawn(source, count) for source, count in sources)

    def tried(numbers: Sequence[Numbers], problems: Sequence[AllocationProblem]) -> FloatArray:
        return utilities([Gadget(weights=one) for one in numbers], problems, config.seed)

    def costs(numbers: Sequence[Numbers]) -> FloatArray:
        ratios: FloatArray = (tried(numbers, training) / own).mean(axis=1)
        return -np.log(ratios)

    own = tried([before], training)[0]
    caption = "Utility over that with GADGET's own weights: mean over problems, 95 % bootstrap."
    return searched(
        config, tracking, run, NumberTask(search, before, costs, config.seed),
        lambda numbers: tried(numbers, judging), config.evaluations, GAINS_FILE, "Learned gains",
        caption, more=True,
    )  # fmt: skip
