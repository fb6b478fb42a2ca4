"""Learn how GADGET weighs the gains of malleable jobs in a slot, by whole plans.

python -m experiments.train model=gains +split@splits.itp=itp

The best few of a search are checked on validation problems beside GADGET's own weights, its
untrained twin; `gains.json` in the run folder is what `Gadget(weights=<file>)` takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from agents.cluster.allocation.gadget import OWN, Gadget
from agents.cluster.rule_numbers import Numbers, NumberSearch
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.bounds import Count
from envs.cluster.allocation.problem import AllocationProblem
from experiments.config.targets import build_as
from experiments.learning.train_allocation import problems_of
from experiments.learning.train_rule import kept
from experiments.learning.training import WindowsConfig
from experiments.run.one_run import Result, Run

GAINS_FILE = "gains.json"


@dataclass(kw_only=True)
class TrainGainsConfig(WindowsConfig):
    """`conf/train_gains.yaml`; the search and the problems are objects by `_target_`."""

    model: Any
    problems: Any
    windows: Count = 8  # problems of the search, the same for all weights
    exam_windows: Count = 8  # problems on which the best are checked
    exams: Count = 3  # of the best that are


def train_gains(config: TrainGainsConfig, run: Run) -> Result:
    """Search, examine the best beside GADGET's own weights, and save the best of them."""
    began = time.perf_counter()
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    first, exam = problems_of(config.splits, config.window, config.exam_window, config.problems)
    drawn = [
        [source(np.random.default_rng((config.seed, k))) for k in range(windows)]
        for source, windows in ((first, config.windows), (exam, config.exam_windows))
    ]
    searched, judged = (partial(utilities, problems=one, seed=config.seed) for one in drawn)
    own = searched([OWN_WEIGHTS])[0]

    def costs(numbers: Sequence[Numbers]) -> FloatArray:
        ratios: FloatArray = (searched(numbers) / own).mean(axis=1)
        return -np.log(ratios)

    tried = search.tried(OWN_WEIGHTS, costs, np.random.default_rng(config.seed))
    caption = "Utility over that with GADGET's own weights: mean over problems, 95 % bootstrap."
    return kept(
        run, config, config.exams, tried, OWN_WEIGHTS, judged, began, GAINS_FILE,
        "Learned gains", caption, more=True,
    )  # fmt: skip


OWN_WEIGHTS: Numbers = asdict(OWN)


def utilities(
    numbers: Sequence[Numbers], problems: Sequence[AllocationProblem], seed: int
) -> FloatArray:
    """(N, K) utilities of GADGET's plans with each of N weights for each of K problems."""
    planners = [Gadget(weights=weights) for weights in numbers]
    budget = Budget(seed=seed)
    return np.array([[p.solve(one, budget).value for one in problems] for p in planners])
