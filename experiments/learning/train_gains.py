"""Learn how GADGET weighs the gains of malleable jobs in a slot, by whole plans.

python -m experiments.train model=gains +split@splits.itp=itp

The best few of a search are checked on validation problems beside GADGET's own weights, its
untrained twin; `gains.json` in the run folder is what `Gadget(weights=<file>)` takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agents.cluster.allocation.gadget import OWN, Gadget
from agents.cluster.rule_numbers import NumberSearch
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.bounds import Count
from envs.cluster.allocation.problem import AllocationProblem
from envs.cluster.allocation.windows import TraceProblems
from experiments.cluster.sampled_windows import check_windows, inputs_of
from experiments.cluster.split_windows import SplitConfig
from experiments.config.targets import build_as
from experiments.learning.train_allocation import problems_of
from experiments.run.artifacts import write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable, stamp
from experiments.study.statistics import bootstrap
from experiments.study.tables import Table, write_tables

GAINS_FILE = "gains.json"


@dataclass(kw_only=True)
class TrainGainsConfig:
    """`conf/train_gains.yaml`; the search and the problems are objects by `_target_`."""

    model: Any
    splits: dict[str, SplitConfig] = field(default_factory=dict)  # traces, +split@splits.itp=itp
    window: str = "train"  # of the splits: whose jobs are learned from
    exam_window: str = "validation"  # and whose are for exams
    problems: Any
    windows: Count = 8  # problems of the search, the same for all weights
    exam_windows: Count = 8  # problems on which the best are checked
    exams: Count = 3  # of the best that are
    seed: int
    json: bool

    def __post_init__(self) -> None:
        check_windows(self.splits, self.window, self.exam_window)


def train_gains(config: TrainGainsConfig, run: Run) -> Result:
    """Search, examine the best beside GADGET's own weights, and save the best of them."""
    began = time.perf_counter()
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    first, exam = problems_of(config.splits, config.window, config.exam_window, config.problems)
    searched = _drawn(first, config.windows, config.seed)
    costs = partial(
        _costs, utilities([OWN_WEIGHTS], searched, config.seed)[0], searched, config.seed
    )
    tried = search.tried(OWN_WEIGHTS, costs, np.random.default_rng(config.seed))
    best = tried[: config.exams]
    numbers = [OWN_WEIGHTS, *(one.numbers for one in best)]
    found = utilities(numbers, _drawn(exam, config.exam_windows, config.seed), config.seed)
    exams = [bootstrap(row[:, None], 2000, config.seed) for row in found[1:] / found[0]]
    winner = int(np.argmax([over.mean for over in exams]))
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    document = {
        "numbers": best[winner].numbers,
        "origin": {"seed": config.seed, "tried": len(tried), "exam": asdict(exams[winner])},
    }
    path = run.folder / GAINS_FILE
    write_json(path, stamp(document, portable(provenance), kind="rule_numbers"))
    rows = [
        (f"{np.exp(-one.cost):.3f}", over.text(), *(f"{x:.2f}" for x in one.numbers.values()))
        for one, over in zip(best, exams, strict=True)
    ]
    table = Table(f"The best of {len(tried)}", ("search", "exam", *search.numbers), rows)
    caption = "Utility over that with GADGET's own weights: mean over problems, 95 % bootstrap."
    write_tables(run, "Learned gains", [table], provenance, caption=caption)
    values: dict[str, object] = {
        **document,
        "exam": exams[winner].mean,
        "file": str(path),
        "seconds": time.perf_counter() - began,
    }
    return Result(values, provenance, shown=("exam", "file", "seconds"))


OWN_WEIGHTS: dict[str, Any] = asdict(OWN)


def _drawn(source: TraceProblems, windows: int, seed: int) -> list[AllocationProblem]:
    return [source(np.random.default_rng((seed, k))) for k in range(windows)]


def utilities(
    numbers: Sequence[dict[str, Any]], problems: Sequence[AllocationProblem], seed: int
) -> FloatArray:
    """(N, K) utilities of GADGET's plans with each of N weights for each of K problems."""
    planners = [Gadget(weights=weights) for weights in numbers]
    budget = Budget(seed=seed)
    return np.array([[p.solve(one, budget).value for one in problems] for p in planners])


def _costs(
    own: FloatArray,
    problems: Sequence[AllocationProblem],
    seed: int,
    numbers: Sequence[dict[str, Any]],
) -> FloatArray:
    """Minus the log of the mean of utilities over those with GADGET's own weights."""
    ratios: FloatArray = (utilities(numbers, problems, seed) / own).mean(axis=1)
    return -np.log(ratios)
