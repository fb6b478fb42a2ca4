"""Seek the numbers of a rule that chooses jobs and places, by replays of training windows.

python -m experiments.train task=rule regime=shared

The best few are checked on validation windows; `rule.json` in the run folder, with the best of
them, is what `agent=joint_choice agent.numbers=<file>` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from agents.cluster.rule_numbers import Numbers, NumberSearch, Tried
from envs.arrays import FloatArray
from envs.bounds import Count
from envs.errors import InputError
from experiments.cluster.regimes import JUDGING, LEARNING, RegimesConfig, mean_jcts
from experiments.cluster.split_windows import inputs_of
from experiments.config.targets import build_as
from experiments.learning.tracking import Tracking
from experiments.learning.trainer import Files, Rounds, Row, Task
from experiments.learning.training import WindowsConfig, begun, run_rounds
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_json
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable, stamp
from experiments.run.statistics import bootstrap

NUMBERS_FILE = "rule.json"
CAPTION = (
    "Mean JCT / that with the numbers before: geometric mean over the windows of the search, mean "
    "over those of the evaluation with a 95 % bootstrap interval."
)


class NumberTask(Task):
    """A step is a round of a search for numbers.

    Args:
        search: what is sought, and how.
        start: what is tried first.
        costs: of many at a time, logarithms: less is better.
        seed: of what is tried.
    """

    columns: Sequence[str] = ("search/tried",)
    identity: Mapping[str, Any] = {}
    steps = 0

    def __init__(
        self,
        search: NumberSearch,
        start: Numbers,
        costs: Callable[[Sequence[Numbers]], FloatArray],
        seed: int,
    ) -> None:
        self.search, self.start, self.costs = search, start, costs
        self.identity = {"search": asdict(search), "start": start, "seed": seed}
        self.tried = list[Tried]()
        self.rng = np.random.default_rng(seed)

    @property
    def outcomes(self) -> Sequence[float]:
        return (self.score(),)

    def step(self) -> Row:
        """Try more numbers."""
        found = self.search.round(self.steps, self.start, self.tried, self.costs, self.rng)
        self.tried, self.steps = found, self.steps + 1
        return {"search/tried": len(found)}

    def score(self) -> float:
        """The best cost over that of the start."""
        return self.ratio(self.tried[0]) if self.tried else 1.0

    def ratio(self, one: Tried) -> float:
        """Its cost over that of the start."""
        before = next(other.cost for other in self.tried if other.numbers == self.start)
        return float(np.exp(one.cost - before))

    def state(self) -> tuple[dict[str, Any], Files]:
        return {"tried": self.tried, "steps": self.steps, "rng": self.rng.bit_generator.state}, {}

    def load(self, numbers: dict[str, Any], files: Files) -> None:
        self.tried = [Tried(*one) for one in numbers["tried"]]
        self.steps, self.rng.bit_generator.state = numbers["steps"], numbers["rng"]


@dataclass(kw_only=True)
class TrainRuleConfig(RegimesConfig, WindowsConfig):
    """`conf/task/rule.yaml`; policy and search are objects by `_target_`."""

    model: Any
    agent: Any
    regime: str = "shared"  # of known: where they are to be good
    windows: Count = 32  # of the search, the same for all numbers
    evaluation_windows: Count = 64
    evaluations: Count = 5  # of the best that are checked
    samples: Count = 2000  # of the bootstrap over windows

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chosen = self.named(self.regime, "regime")


def train_rule(config: TrainRuleConfig, run: Run) -> Result:
    """Search, evaluate the best beside what was before, and save the best of them."""
    config, tracking = begun(config, run)
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    rule = config.chosen.policy(config.agent)
    if missing := [name for name in search.numbers if name not in rule]:
        raise InputError(f"config key 'model.numbers.{missing[0]}': is no number of the rule")
    training, judging = (
        config.problems(config.chosen, window, purpose, count)
        for window, purpose, count in (
            (config.window, LEARNING, config.windows),
            (config.evaluation_window, JUDGING, config.evaluation_windows),
        )
    )
    start = {name: rule[name] for name in search.numbers}

    def costs(asked: Sequence[Numbers]) -> FloatArray:
        logs: FloatArray = np.log(mean_jcts(rule, asked, training)).mean(axis=1)
        return logs

    origin = {
        "regime": asdict(config.chosen),
        "windows": {
            config.window: config.windows, config.evaluation_window: config.evaluation_windows
        },
    }  # fmt: skip
    return searched(
        config, tracking, run, NumberTask(search, start, costs, config.seed),
        lambda numbers: mean_jcts(rule, numbers, judging), config.evaluations, NUMBERS_FILE,
        f"Numbers of a rule, {config.regime}", CAPTION, origin, config.samples,
    )  # fmt: skip


def searched(
    config: WindowsConfig, tracking: Tracking, run: Run, task: NumberTask,
    evaluated: Callable[[Sequence[Numbers]], FloatArray], evaluations: int, file: str, title: str,
    caption: str, origin: Mapping[str, object] = MappingProxyType({}), samples: int = 2000,
    more: bool = False,
) -> Result:  # fmt: skip
    """Search (on), evaluate the best beside what was before, and write the best of them to a file.

    Args:
        config: of the command.
        tracking: where metrics go beside the file.
        run: its folder.
        task: the search.
        evaluated: (numbers, windows) what numbers come to in the evaluation.
        evaluations: how many of the best are evaluated.
        file: in the run's folder.
        title: of the table.
        caption: of the table.
        origin: of the numbers, besides what all searches tell.
        samples: of the bootstrap.
        more: is better.
    """
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    sign = -1.0 if more else 1.0
    with ProgressDisplay(run.console) as display:
        progress = run_rounds(
            config, tracking, task, Rounds(task.search.rounds + 1), run, display, provenance,
            lambda row: f"{row['search/tried']:.0f} tried, best {task.score() ** sign:.3f}",
        )  # fmt: skip
    before, best = task.start, task.tried[:evaluations]
    ratios = [task.ratio(one) ** sign for one in best]
    found = evaluated([before, *(one.numbers for one in best)])
    judged = [bootstrap(row[:, None], samples, config.seed) for row in found[1:] / found[0]]
    winner = int(np.argmin([sign * one.mean for one in judged]))
    numbers = best[winner].numbers
    document = {
        "numbers": numbers,
        "origin": {
            **origin, "seed": config.seed, "before": before, "tried": len(task.tried),
            "ratio": ratios[winner], "evaluation": asdict(judged[winner]),
        },
    }  # fmt: skip
    path = run.folder / file
    write_json(path, stamp(document, portable(provenance), kind="rule_numbers"))
    rows = [
        (f"{ratio:.3f}", one.text(), *(f"{x:.3g}" if isinstance(x, float) else str(x)
                                       for x in tried.numbers.values()))
        for ratio, one, tried in zip(ratios, judged, best, strict=True)
    ]  # fmt: skip
    table = Table(f"The best of {len(task.tried)}", ("search", "evaluation", *numbers), rows)
    table_file = write_tables(run, title, [table], provenance, caption=caption)
    values: dict[str, object] = {
        **document,
        "evaluation": judged[winner].mean,
        "file": str(path),
        "table": table_file,
        "seconds": progress.seconds,
    }
    return Result(values, provenance, shown=("evaluation", "file", "table", "seconds"))
