"""Seek the numbers of a rule that chooses jobs and places, by replays of training windows.

python -m experiments.train model=rule regime=shared

The best few are checked on validation windows; `rule.json` in the run folder, with the best of
them, is what `agent=joint_choice agent.numbers=<file>` takes.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agents.cluster.rule_numbers import NumberSearch
from envs.bounds import Count
from experiments.cluster.headroom import JUDGING, LEARNING, mean_jcts, tuned
from experiments.cluster.regimes import RegimesConfig
from experiments.cluster.sampled_windows import check_windows, inputs_of
from experiments.config.targets import build_as
from experiments.run.artifacts import write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable, stamp
from experiments.study.statistics import bootstrap
from experiments.study.tables import TABLE_FILE, Table, write_tables

NUMBERS_FILE = "rule.json"
CAPTION = (
    "Mean JCT / that with the numbers before: geometric mean over the windows of the search, mean "
    "over those of the exam with a 95 % bootstrap interval."
)


@dataclass(kw_only=True)
class TrainRuleConfig(RegimesConfig):
    """`conf/train_rule.yaml`; policy and search are objects by `_target_`."""

    model: Any
    agent: Any
    regime: str = "shared"  # of known: where they are to be good
    window: str = "train"  # of the splits: whose jobs are replayed in the search
    exam_window: str = "validation"  # and whose jobs decide which of the best are kept
    windows: Count = 32  # of the search, the same for all numbers
    exam_windows: Count = 64
    exams: Count = 5  # of the best that are checked
    samples: Count = 2000  # of the bootstrap over windows
    json: bool

    def __post_init__(self) -> None:
        check_windows(self.splits, self.window, self.exam_window)
        self.chosen = self.named(self.regime, "regime")


def train_rule(config: TrainRuleConfig, run: Run) -> Result:
    """Search, examine the best beside what was before, and save the best of them."""
    began = time.perf_counter()
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    rule = config.chosen.policy(config.agent)
    training = config.problems(config.chosen, config.window, LEARNING, config.windows)
    exam = config.problems(config.chosen, config.exam_window, JUDGING, config.exam_windows)
    tried = tuned(search, rule, training, config.seed)
    before = {name: rule[name] for name in search.numbers}
    cost = next(one.cost for one in tried if one.numbers == before)
    best = tried[: config.exams]
    means = mean_jcts(rule, [before, *(one.numbers for one in best)], exam)
    exams = [bootstrap(row[:, None], config.samples, config.seed) for row in means[1:] / means[0]]
    ratios = [float(np.exp(one.cost - cost)) for one in best]
    winner = int(np.argmin([ratio.mean for ratio in exams]))
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    document = {
        "numbers": best[winner].numbers,
        "origin": {
            "regime": asdict(config.chosen),
            "windows": {config.window: config.windows, config.exam_window: config.exam_windows},
            "seed": config.seed, "before": before, "tried": len(tried),
            "ratio": ratios[winner], "exam": asdict(exams[winner]),
        },
    }  # fmt: skip
    stamped = stamp(document, portable(provenance), kind="rule_numbers")
    write_json(run.folder / NUMBERS_FILE, stamped)
    rows = [
        (f"{ratio:.3f}", found.text(), *(f"{x:.3g}" if isinstance(x, float) else str(x)
                                         for x in one.numbers.values()))
        for ratio, found, one in zip(ratios, exams, best, strict=True)
    ]  # fmt: skip
    table = Table(f"The best of {len(tried)}", ("search", "exam", *search.numbers), rows)
    write_tables(run, f"Numbers of a rule, {config.regime}", [table], provenance, caption=CAPTION)
    values: dict[str, object] = {
        **document,
        "exam": exams[winner].mean,
        "file": str(run.folder / NUMBERS_FILE),
        "table": str(run.folder / TABLE_FILE),
        "seconds": time.perf_counter() - began,
    }
    return Result(values, provenance, shown=("exam", "file", "table", "seconds"))
