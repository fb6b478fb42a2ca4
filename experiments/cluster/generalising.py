"""Learned schedulers, baselines and references on the windows of a split, as it is or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.cluster.shipped import scheduler_folder
from envs.bounds import Count
from envs.errors import InputError, require_one_of
from experiments.cluster.baselines import (
    CLASSES,
    Contender,
    baselines_of,
    check_class,
    files_of,
    of_class,
    replayed_on,
)
from experiments.cluster.comparison import Comparison, conditions_summary, windows_summary
from experiments.cluster.conditions import Condition
from experiments.cluster.evaluate_cluster import SPEC_FILE
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.config.targets import build, no_such_thing
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.study.tables import TABLE_FILE, write_tables

LEARNED = "checkpoint"
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
            require_one_of(name, self.conditions, file="config key 'only'")
        for name in self.tuned:
            if name not in self.agents:
                raise InputError(f"config key 'tuned': '{name}' is not among the agents")
        if self.only == []:
            raise InputError("config key 'only': no condition")
        if self.conditions and self.references:
            raise InputError("config key 'references': no table shows them under conditions")
        if self.conditions and not self.checkpoints:
            raise InputError("config key 'checkpoints': no checkpoint")


def exported(config: GeneraliseConfig, schedulers: int | None) -> list[Contender]:
    """The exported schedulers, so many sharing the cluster; None: as many as ever.

    Raises:
        InputError: a folder holds none, or one may look at more than the class allows.
    """
    found = []
    for folder in config.checkpoints:
        node = {**config.scheduler, "checkpoint": str(folder_of(folder))}
        if schedulers is not None:
            node["schedulers"] = schedulers
        scheduler = build(node, "scheduler")
        if not hasattr(scheduler, "knows"):
            raise no_such_thing("scheduler", config.scheduler, "scheduler of clusters")
        if scheduler.knows not in CLASSES[config.information]:
            message = f"it sees durations, the class is {config.information!r}"
            raise InputError(f"config key 'checkpoints': {message}", file=folder)
        found.append(Contender(LEARNED, None, node, lambda scheduler=scheduler: scheduler))
    return found


def folder_of(checkpoint: str) -> Path:
    """The folder of an exported scheduler, or of a shipped one by its name."""
    try:
        return scheduler_folder(checkpoint)
    except InputError as error:
        raise InputError(f"config key 'checkpoints': {error.message}") from error


def generalise(config: GeneraliseConfig, run: Run) -> Result:
    """Replay everything under every condition, compare, write the tables and the picture."""
    split = Split(config.split)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    references = of_class(config.information, "references", config.references, {}, {})
    changes = config.conditions or {"as_trained": {}}
    conditions = [
        Condition.of(name, changes[name], split, config.window) for name in config.only or changes
    ]
    learned = {
        number: exported(config, number)
        for number in (condition.changes.get("schedulers") for condition in conditions)
    }
    rows = []
    for condition in conditions:
        problems = [window.problem for window in condition.windows]
        players = [*baselines, *references, *learned[condition.changes.get("schedulers")]]
        asked = [(player, problems) for player in players]
        outcomes = replayed_on(asked, Path(config.cache), run)
        found = Comparison(
            condition.windows, baselines, references, outcomes, config.tuned, config.samples,
            config.seed,
        )  # fmt: skip
        rows.append((condition, found))
    title = f"{config.split.name}, {config.window} windows, {config.information} durations"
    if config.conditions:
        title = f"{title}, zero-shot"
        summary = conditions_summary(rows, title)
    else:
        summary = windows_summary(rows[0][1], title)
    left_out = split.left_out(config.window)
    for name, jobs in left_out.items():
        if any(jobs.values()):
            most, least = config.split.traces[name].max_gpus, config.split.least_jobs
            run.console.print(
                f"left out of {name}: {jobs['larger']} jobs of more than {most} GPUs, "
                f"{jobs['few']} of a window with fewer than {least} jobs",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
    inputs = {
        **config.split.inputs,
        **{f"{LEARNED} {x}": file_hash(folder_of(x) / SPEC_FILE) for x in config.checkpoints},
    }
    for reference in references:
        inputs |= files_of(reference.node)
    provenance = run.provenance.with_inputs(**inputs)
    write_tables(run, title, summary.tables, provenance, caption=summary.caption, width=WIDTH)
    write_figure(run.folder / summary.file, summary.picture, provenance)
    values: dict[str, object] = {
        "split": config.split.name,
        "window": config.window,
        "information": config.information,
        "checkpoints": list(config.checkpoints),
        **summary.values,
        "left_out_jobs": left_out,
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / summary.file),
    }
    return Result(values, provenance, ["split", *summary.shown, "table", "picture"])
