"""Learned schedulers, baselines and references on the windows of a split, as it is or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.bounds import Count
from envs.errors import InputError
from experiments.cluster.baselines import baselines_of, check_class, files_of, of_class
from experiments.cluster.comparison import Contenders, Exported, checked_tuned, exported, hashes
from experiments.cluster.comparison_report import (
    Transferred,
    conditions_summary,
    windows_summary,
)
from experiments.cluster.conditions import Condition
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.study.display import ProgressDisplay
from experiments.study.grid import Grid
from experiments.study.processes import LocalProcesses
from experiments.study.tables import TABLE_FILE, write_tables

WIDTH = 150  # characters of a table where there is no terminal


@dataclass(kw_only=True)
class GeneraliseConfig:
    """`conf/generalise.yaml`."""

    split: SplitConfig
    window: str = "test"  # which of the split's windows
    # what may be looked at of a job that has not finished: unknown durations, or known
    information: str = "unknown"
    conditions: dict[str, Any]
    only: Sequence[str] | None = None  # names of the conditions that are tried; null: all
    agents: dict[str, Any]
    references: dict[str, Any]
    tuned: Sequence[str]
    placements: dict[str, Any]
    rules: dict[str, Sequence[str]]
    placement: Any
    # folders of exported schedulers: seeds of one recipe
    checkpoints: Sequence[str] = ()
    scheduler: Any
    samples: Count = 10000  # of the bootstrap
    cache: str = "outputs/baselines"  # folder of outcomes, kept by the hash of all they depend on
    seed: int
    json: bool

    def __post_init__(self) -> None:
        check_class(self.information, "information")
        for name in self.references:
            if name in self.agents:
                raise InputError(f"config key 'references.{name}': is among the agents as well")
        for name in self.only or ():
            if name not in self.conditions:
                known = ", ".join(self.conditions)
                raise InputError(f"config key 'only': {name!r} is unknown (known: {known})")
        if self.only == []:
            raise InputError("config key 'only': no condition")
        if self.conditions and self.references:
            raise InputError("config key 'references': no table shows them under conditions")
        if self.conditions and not self.checkpoints:
            raise InputError("config key 'checkpoints': no checkpoint")


def checkpoints_of(config: GeneraliseConfig, schedulers: int | None) -> list[Exported]:
    """The exported schedulers, several sharing the cluster where a condition says so."""
    node = dict(config.scheduler)
    if schedulers is not None:
        node["schedulers"] = schedulers
    return [exported(node, folder, config.information) for folder in config.checkpoints]


def generalise(config: GeneraliseConfig, run: Run) -> Result:
    """Replay everything under every condition, compare, write the tables and the picture."""
    split = Split(config.split)
    shifted = {
        n: x for n, x in config.conditions.items() if n in (config.only or config.conditions)
    }
    conditions = [Condition(name, changes) for name, changes in shifted.items()]
    conditions = conditions or [Condition("as_trained", {})]
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    references = of_class(config.information, "references", config.references, {}, {})
    tuned = checked_tuned(config.tuned, config.agents)
    contenders = {
        number: Contenders(baselines, references, checkpoints_of(config, number), tuned)
        for number in dict.fromkeys(condition.schedulers for condition in conditions)
    }
    chosen = [condition.windows(split, config.window) for condition in conditions]
    replays = [
        contenders[condition.schedulers].replays(some.windows, Path(config.cache))
        for condition, some in zip(conditions, chosen, strict=True)
    ]
    with ProgressDisplay(run.console) as display:
        cells = [cell for rows in replays for row in rows for cell in row]
        outcomes = Grid(LocalProcesses(1), run.provenance).run(cells, display)
    found = [
        contenders[condition.schedulers].compared(some.windows, rows, outcomes)
        for condition, some, rows in zip(conditions, chosen, replays, strict=True)
    ]
    title = f"{config.split.name}, {config.window} windows, {config.information} durations"
    if config.conditions:
        title = f"{title}, zero-shot"
        rows = zip(conditions, chosen, found, strict=True)
        transferred = [Transferred.of(*row, config.samples, config.seed) for row in rows]
        summary = conditions_summary(transferred, title)
    else:
        summary = windows_summary(found[0], title, config.samples, config.seed)
    left_out = split.left_out(config.window)
    for name, jobs in left_out.items():
        if any(jobs.values()):
            most, least = config.split.traces[name].max_gpus, config.split.least_jobs
            run.console.print(
                f"left out of {name}: {jobs['larger']} jobs of more than {most} GPUs, "
                f"{jobs['few']} of a window with fewer than {least} jobs",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
    inputs = {**config.split.inputs, **hashes(config.checkpoints)}
    for reference in references:
        inputs |= files_of(reference.node)
    provenance = run.provenance.with_inputs(**inputs)
    write_tables(run, title, summary.tables, provenance, caption=summary.caption, width=WIDTH)
    for name, figure in summary.figures.items():
        write_figure(run.folder / name, figure, provenance)
    values: dict[str, object] = {
        "split": config.split.name,
        "window": config.window,
        "information": config.information,
        "checkpoints": list(config.checkpoints),
        **summary.values,
        "left_out_jobs": left_out,
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / next(iter(summary.figures))),
    }
    return Result(values, provenance, ["split", *summary.shown, "table", "picture"])
