"""Seek the numbers of a rule that chooses jobs and places, by replays of training windows.

python -m experiments.train model=rule regime=shared

The best few are checked on validation windows; `rule.json` in the run folder, with the best of
them, is what `agent=joint_choice agent.numbers=<file>` takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from agents.cluster.rule_numbers import Numbers, NumberSearch, Tried
from envs.arrays import FloatArray
from envs.bounds import Count
from experiments.cluster.regimes import JUDGING, LEARNING, RegimesConfig, mean_jcts, tuned
from experiments.cluster.split_windows import inputs_of
from experiments.config.targets import build_as
from experiments.learning.training import WindowsConfig
from experiments.reporting.tables import TABLE_FILE, Table, write_tables
from experiments.run.artifacts import write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable, stamp
from experiments.run.statistics import bootstrap

NUMBERS_FILE = "rule.json"
CAPTION = (
    "Mean JCT / that with the numbers before: geometric mean over the windows of the search, mean "
    "over those of the exam with a 95 % bootstrap interval."
)


@dataclass(kw_only=True)
class TrainRuleConfig(RegimesConfig, WindowsConfig):
    """`conf/train_rule.yaml`; policy and search are objects by `_target_`."""

    model: Any
    agent: Any
    regime: str = "shared"  # of known: where they are to be good
    windows: Count = 32  # of the search, the same for all numbers
    exam_windows: Count = 64
    exams: Count = 5  # of the best that are checked
    samples: Count = 2000  # of the bootstrap over windows

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chosen = self.named(self.regime, "regime")


def train_rule(config: TrainRuleConfig, run: Run) -> Result:
    """Search, examine the best beside what was before, and save the best of them."""
    began = time.perf_counter()
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    rule = config.chosen.policy(config.agent)
    training = config.problems(config.chosen, config.window, LEARNING, config.windows)
    exam = config.problems(config.chosen, config.exam_window, JUDGING, config.exam_windows)
    tried = tuned(search, rule, training, config.seed)
    origin = {
        "regime": asdict(config.chosen),
        "windows": {config.window: config.windows, config.exam_window: config.exam_windows},
    }
    return kept(
        run, config, config.exams, tried, {name: rule[name] for name in search.numbers},
        lambda numbers: mean_jcts(rule, numbers, exam), began, NUMBERS_FILE,
        f"Numbers of a rule, {config.regime}", CAPTION, origin, config.samples,
    )  # fmt: skip


def kept(
    run: Run, config: WindowsConfig, exams: int, tried: Sequence[Tried], before: Numbers,
    examined: Callable[[Sequence[Numbers]], FloatArray], began: float, file: str, title: str,
    caption: str, origin: Mapping[str, object] = MappingProxyType({}), samples: int = 2000,
    more: bool = False,
) -> Result:  # fmt: skip
    """Examine the best of a search beside what was before, and write the best of them to a file.

    Args:
        run: its folder.
        config: of the app.
        exams: how many of the best are examined.
        tried: in the search, the best first; `before` is among them.
        before: the numbers.
        examined: (numbers, windows) what they come to in the exam.
        began: when the run did.
        file: in the run's folder.
        title: of the table.
        caption: of the table.
        origin: of the numbers, besides what all searches tell.
        samples: of the bootstrap.
        more: is better.
    """
    best = tried[:exams]
    cost, sign = next(one.cost for one in tried if one.numbers == before), -1.0 if more else 1.0
    ratios = [float(np.exp(sign * (one.cost - cost))) for one in best]
    found = examined([before, *(one.numbers for one in best)])
    judged = [bootstrap(row[:, None], samples, config.seed) for row in found[1:] / found[0]]
    winner = int(np.argmin([sign * exam.mean for exam in judged]))
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    numbers = best[winner].numbers
    document = {
        "numbers": numbers,
        "origin": {
            **origin, "seed": config.seed, "before": before, "tried": len(tried),
            "ratio": ratios[winner], "exam": asdict(judged[winner]),
        },
    }  # fmt: skip
    path = run.folder / file
    write_json(path, stamp(document, portable(provenance), kind="rule_numbers"))
    rows = [
        (f"{ratio:.3f}", exam.text(), *(f"{x:.3g}" if isinstance(x, float) else str(x)
                                        for x in one.numbers.values()))
        for ratio, exam, one in zip(ratios, judged, best, strict=True)
    ]  # fmt: skip
    table = Table(f"The best of {len(tried)}", ("search", "exam", *numbers), rows)
    write_tables(run, title, [table], provenance, caption=caption)
    values: dict[str, object] = {
        **document,
        "exam": judged[winner].mean,
        "file": str(path),
        "table": str(run.folder / TABLE_FILE),
        "seconds": time.perf_counter() - began,
    }
    return Result(values, provenance, shown=("exam", "file", "table", "seconds"))
