"""Learn how GADGET weighs the gains of malleable jobs in a slot, by whole plans.

meshwright train task=gains +split@splits.itp=itp

The best few of a search are checked on validation problems beside GADGET's own weights, its
untrained twin; `gains.json` in the run folder is what `Gadget(weights=<file>)` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from agents.cluster.rule_numbers import Numbers, NumberSearch
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.bounds import Count
from experiments.config.targets import build_as
from experiments.learning.train_rule import NumberTask, searched
from experiments.learning.training import WindowsConfig, begun
from experiments.papers.malleable_jobs.gadget import OWN, Gadget
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.train_allocation import problems_of
from experiments.run.one_run import Result, Run

GAINS_FILE = "gains.json"
OWN_WEIGHTS: Numbers = asdict(OWN)


@dataclass(kw_only=True)
class TrainGainsConfig(WindowsConfig):
    """`conf/task/gains.yaml`; the search and the problems are objects by `_target_`."""

    model: Any
    problems: Any
    windows: Count = 8  # problems of the search, the same for all weights
    evaluation_windows: Count = 8  # problems on which the best are checked
    evaluations: Count = 3  # of the best that are


def train_gains(config: TrainGainsConfig, run: Run) -> Result:
    """Search, evaluate the best beside GADGET's own weights, and save the best of them."""
    config, tracking = begun(config, run)
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    windows = config.window, config.evaluation_window
    sources = problems_of(config.splits, *windows, config.problems)
    counts = config.windows, config.evaluation_windows
    drawn = [
        [source(np.random.default_rng((config.seed, k))) for k in range(count)]
        for source, count in zip(sources, counts, strict=True)
    ]
    searching, judging = (partial(utilities, problems=one, seed=config.seed) for one in drawn)
    own = searching([OWN_WEIGHTS])[0]

    def costs(numbers: Sequence[Numbers]) -> FloatArray:
        ratios: FloatArray = (searching(numbers) / own).mean(axis=1)
        return -np.log(ratios)

    caption = "Utility over that with GADGET's own weights: mean over problems, 95 % bootstrap."
    task = NumberTask(search, OWN_WEIGHTS, costs, config.seed)
    return searched(
        config, tracking, run, task, judging, config.evaluations, GAINS_FILE, "Learned gains",
        caption, more=True,
    )  # fmt: skip


def utilities(
    numbers: Sequence[Numbers], problems: Sequence[AllocationProblem], seed: int
) -> FloatArray:
    """(N, K) utilities of GADGET's plans with each of N weights for each of K problems."""
    planners = [Gadget(weights=weights) for weights in numbers]
    budget = Budget(seed=seed)
    return np.array([[p.solve(one, budget).value for one in problems] for p in planners])
