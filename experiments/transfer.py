"""Learned schedulers on windows under conditions that they were not trained for.

python -m experiments.transfer split=itp checkpoints=[runs/0/checkpoint,runs/1/checkpoint]
python -m experiments.transfer split=philly window=validation checkpoints=[runs/0/checkpoint] \\
    only=[as_trained,half_the_nodes]

Nothing is trained or chosen again. Under every condition the checkpoints are compared, paired by
window, with the baselines that are strongest where they were trained.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from envs.errors import InputError
from experiments.cluster.generalise_comparison import (
    PER_WINDOW,
    Comparison,
    Exported,
    checked_tuned,
    exported,
    hashes,
    measured,
)
from experiments.cluster.generalise_statistics import Interval, bootstrap
from experiments.cluster.generalise_tables import window_documents
from experiments.cluster.split_baselines import BaselineRuns, baselines_of, check_class
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.cluster.transfer_conditions import Condition, ConditionWindows
from experiments.pictures.comparison import draw_forest
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import write_figure
from experiments.run.provenance import Provenance
from experiments.run.tables import TABLE_FILE, Table, write_tables

PICTURE_FILE = "transfer.png"
OVERALL = "the best overall"
COLUMNS = ("condition", "windows", "jobs", "left out", "best overall", OVERALL, PER_WINDOW)
CAPTION = (
    "Mean JCT of the checkpoints over that of a baseline: means over windows (and seeds), 95 % "
    "percentile bootstrap over windows and seeds. Best overall is the best of these baselines "
    "under the condition; every policy has the placement rule that is best for it there. Left out: "
    "jobs that fit no GPU type of the cluster any more, and those of windows with too few others. "
    "The times between submissions are stretched so that the load stays that of the split, unless "
    "the load is what is changed. A single window with a single checkpoint has no interval."
)
WIDTH = 150  # characters of a table where there is no terminal


@dataclass
class TransferConfig:
    """`conf/transfer.yaml`."""

    split: SplitConfig
    window: str
    information: str
    conditions: dict[str, Any]
    only: list[str] | None
    agents: dict[str, Any]
    tuned: list[str]
    placements: dict[str, Any]
    rules: dict[str, list[str]]
    placement: Any
    checkpoints: list[str]
    scheduler: Any
    samples: int
    cache: str
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"config key 'samples': {self.samples} is below 1")
        if not self.checkpoints:
            raise InputError("config key 'checkpoints': no checkpoint")
        check_class(self.information, "information")
        for name in self.only or ():
            if name not in self.conditions:
                known = ", ".join(self.conditions)
                raise InputError(f"config key 'only': {name!r} is unknown (known: {known})")
        if not self.conditions or self.only == []:
            raise InputError("config key 'conditions': no condition")


class Transferred(NamedTuple):
    """What was measured under one condition."""

    condition: Condition
    chosen: ConditionWindows
    found: Comparison
    ratios: Mapping[str, Interval]  # by what they are to: OVERALL, PER_WINDOW, names of policies


def transfer(config: TransferConfig, run: Run) -> Result:
    """Replay everything under every condition, write the tables and the picture."""
    split = Split(config.split)
    conditions = [
        Condition(name, changes)
        for name, changes in config.conditions.items()
        if config.only is None or name in config.only
    ]
    tuned = checked_tuned(config.tuned, config.agents)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    players = {
        number: checkpoints_of(config, number)
        for number in dict.fromkeys(condition.schedulers for condition in conditions)
    }
    chosen = [condition.windows(split, config.window) for condition in conditions]
    runs = BaselineRuns(Path(config.cache))
    rows = []
    for condition, some in zip(conditions, chosen, strict=True):

        def tell(news: str, name: str = condition.name) -> None:
            run.console.print(f"{name}: {news}", highlight=False, soft_wrap=True)

        exports = players[condition.schedulers]
        found = measured(some.windows, baselines, [], exports, tuned, runs, tell)
        ratios = ratios_of(found, config.samples, config.seed)
        rows.append(Transferred(condition, some, found, ratios))
    inputs = {**config.split.inputs, **hashes(config.checkpoints)}
    return report(rows, config, run, run.provenance.with_inputs(**inputs))


def checkpoints_of(config: TransferConfig, schedulers: int | None) -> list[Exported]:
    """The exported schedulers, several sharing the cluster where a condition says so."""
    node = dict(config.scheduler)
    if schedulers is not None:
        node["schedulers"] = schedulers
    return [exported(node, folder, config.information) for folder in config.checkpoints]


def ratios_of(found: Comparison, samples: int, seed: int) -> dict[str, Interval]:
    """Mean JCTs of the checkpoints over those of each window's best, the best overall, and each
    policy with its best placement rule."""
    yardsticks: dict[str, int | None] = {PER_WINDOW: None, OVERALL: found.overall}
    for policy in dict.fromkeys(baseline.policy for baseline in found.baselines):
        yardsticks[policy] = found.best_of(policy)
    return {
        name: bootstrap(found.ratios("mean_jct_s", baseline), samples, seed)
        for name, baseline in yardsticks.items()
    }


def report(
    rows: list[Transferred], config: TransferConfig, run: Run, provenance: Provenance
) -> Result:
    """The tables, the picture and the numbers behind them."""
    first = [
        (
            row.condition.name, str(len(row.chosen.windows)), f"{row.chosen.jobs:,}",
            f"{row.chosen.left_out:,}", best_name(row.found), told(row, OVERALL),
            told(row, PER_WINDOW),
        )
        for row in rows
    ]  # fmt: skip
    policies = [name for name in rows[0].ratios if name not in (OVERALL, PER_WINDOW)]
    second = [(row.condition.name, *(told(row, policy) for policy in policies)) for row in rows]
    number = len(config.checkpoints)
    sections = [
        Table(f"Other conditions, checkpoints: {number}", COLUMNS, first),
        Table("Against each policy", ("condition", *policies), second),
    ]
    name = config.split.name
    title = f"{name}, {config.window} windows, {config.information} durations, zero-shot"
    write_tables(run, title, sections, provenance, caption=CAPTION, width=WIDTH)
    picture = draw_forest(
        [row.condition.name for row in rows],
        [row.ratios[OVERALL] for row in rows],
        [best_name(row.found) for row in rows],
        title,
    )
    write_figure(run.folder / PICTURE_FILE, picture, provenance)
    values: dict[str, object] = {
        "split": name,
        "window": config.window,
        "information": config.information,
        "checkpoints": list(config.checkpoints),
        "conditions": {row.condition.name: document(row) for row in rows},
        "better": sum(several(row) and row.ratios[OVERALL].below_one for row in rows),
        "of": len(rows),
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / PICTURE_FILE),
    }
    return Result(values, provenance, ["split", "better", "of", "table", "picture"])


def several(row: Transferred) -> bool:
    """Whether there is anything that an interval could be about."""
    return row.found.ratios("mean_jct_s", None).size > 1


def told(row: Transferred, against: str) -> str:
    """A ratio for a table, with its interval where there is one."""
    return row.ratios[against].text() if several(row) else f"{row.ratios[against].mean:.3f}"


def best_name(found: Comparison) -> str:
    """The baseline that is best overall."""
    return found.baselines[found.overall].name


def document(row: Transferred) -> dict[str, object]:
    """A condition as numbers."""
    return {
        "changes": dict(row.condition.changes),
        "jobs": row.chosen.jobs,
        "left_out": row.chosen.left_out,
        "best_overall": best_name(row.found),
        "ratios": {name: asdict(ratio) for name, ratio in row.ratios.items()},
        "windows": window_documents(row.found),
    }


if __name__ == "__main__":
    sys.exit(run_app("transfer", TransferConfig, transfer))
