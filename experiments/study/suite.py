"""What `experiments.benchmark` runs: a suite of cells, checked first, and the report of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hydra.utils import get_class

from envs.bounds import Count
from envs.errors import InputError
from experiments.config.composing import check_command_line, check_words
from experiments.config.targets import SEEDS, build, build_as, no_such_thing, object_in_file
from experiments.run.one_run import Result, Run
from experiments.run.saved_run import resumed_config
from experiments.study.display import ProgressDisplay
from experiments.study.grid import AppCell, Document, Grid
from experiments.study.processes import Executor
from experiments.study.tables import TABLE_FILE, Table, write_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUITE_KEY = "config key 'suite'"


class Check(NamedTuple):
    """A command line that is composed before anything runs.

    `config` is a name of `conf`, `schema` the dotted name of its dataclass.
    """

    name: str  # of what it is about
    config: str
    schema: str
    overrides: Sequence[str]


@dataclass(frozen=True, eq=False)
class Report:
    """The tables (as texts), the pictures by file name, and the numbers behind both."""

    tables: Sequence[Table]
    figures: Mapping[str, Figure]
    numbers: Mapping[str, object]
    headline: Mapping[str, object] = field(default_factory=dict)  # scalars shown at the end
    caption: str = ""


@runtime_checkable
class Suite(Protocol):
    """What `experiments.benchmark suite=` names."""

    @property
    def title(self) -> str: ...

    @property
    def left_out(self) -> list[str]:
        """Graphs that need published data where there is none."""

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        """The runs it consists of, in folders below `folder`."""

    @property
    def own(self) -> tuple[str, ...]:
        """How the arguments begin that the suite sets itself."""

    def checks(self) -> Iterable[Check]:
        """Every kind of command line in it."""

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        """What the runs came to."""


def checked_cells(suite: Suite, folder: Path, seed: int) -> list[AppCell]:
    """The cells of a suite, after every kind of command line was composed once.

    Raises:
        InputError: a fault in a cell, told before anything runs.
    """
    for name, config_name, schema, overrides in suite.checks():
        for override in overrides:
            if override.lstrip("+~").startswith(suite.own):
                fault = f"{override!r} is not for a suite: the benchmark sets it itself"
                raise InputError(fault, file=SUITE_KEY, record=name)
        try:
            check_words(overrides)
            _require_data(check_command_line(overrides, config_name, get_class(schema)).config)
        except InputError as error:
            raise InputError(str(error), file=SUITE_KEY, record=name) from error
    cells = suite.grid(folder, seed)
    if not cells:
        raise InputError("has no cells to run", file=SUITE_KEY)
    folders = [cell.folder for cell in cells]
    for cell in cells:
        if folders.count(cell.folder) > 1:
            raise InputError("stands twice", file=SUITE_KEY, record=cell.name)
    return cells


@runtime_checkable
class NeedsData(Protocol):
    """A part of a config that stands for files which not everybody has."""

    def require_data(self) -> None: ...


def _require_data(part: object) -> None:
    if isinstance(part, NeedsData):
        part.require_data()
    elif isinstance(part, Mapping):
        for inner in part.values():
            _require_data(inner)
    elif is_dataclass(part):
        for key in fields(part):
            _require_data(getattr(part, key.name))


def check_several_seeds(seeds: Sequence[int]) -> None:
    """Two or more different ones, each a seed of every generator in use."""
    if len(seeds) < 2 or len(set(seeds)) != len(seeds):
        raise InputError(f"{seeds} are not two or more different ones", field="seeds")
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise InputError(f"{seed} is not in 0..{SEEDS - 1}", field="seeds")


def suite_file(path: str) -> Suite:
    """Anybody's suite, in a YAML file of the form of `conf/suite`.

    Args:
        path: of the YAML file.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    return object_in_file(path, "suite", Suite)


CELL_FOLDER = "cells"


@dataclass
class RayConfig:
    """Which Ray cluster there is; null: one of this machine is started when it is needed."""

    address: str | None = None  # of a Ray cluster; null: one is started here when it is needed


@dataclass(kw_only=True)
class BenchmarkConfig:
    """`conf/benchmark.yaml`; the suite and the executor are objects by `_target_`."""

    suite: Any
    executor: Any
    workers: Count = 1  # runs at a time; more than one disturbs the timing of each
    ray: RayConfig = field(default_factory=RayConfig)
    resume: str | None = None  # the run folder of a run to go on with; its config is taken up again
    seed: int
    json: bool


def benchmark(config: BenchmarkConfig, run: Run) -> Result:
    """Run what is not yet done of the suite's cells, then write its tables and pictures.

    Raises:
        SystemExit: cells have failed that may not; the run can be resumed.
    """
    start = time.perf_counter()
    if config.resume is not None:
        config = _resumed(config, run)
    origin = replace(run.provenance, seed=config.seed)
    suite = build(config.suite, "suite")
    if not isinstance(suite, Suite):
        raise no_such_thing("suite", config.suite, "suite of benchmarks")
    folder = run.folder.resolve() / CELL_FOLDER
    cells = checked_cells(suite, folder, config.seed)
    left_out = f"Left out without MESHWRIGHT_DATA: {', '.join(suite.left_out)}."
    if suite.left_out:
        run.console.say(left_out)
    minutes = sum(cell.budget_s or 0.0 for cell in cells) / config.workers / 60.0
    limit = f", at most {minutes:.0f} minutes of search" if minutes else ""
    run.console.say(f"{suite.title}: {len(cells)} cells{limit}")
    executor = build_as(Executor, config.executor, "executor", "executor of commands")
    with ProgressDisplay(run.console) as display:
        found = Grid(executor, origin).run(cells, display)
    if found.faults:
        print(f"error: {found.faults_line()}; resume={run.folder} goes on with it", file=sys.stderr)
        raise SystemExit(next(iter(found.faults.values())).exit_code)
    provenance = origin.with_inputs(**found.hashes(folder))
    report = suite.summary({cell: found.documents[cell] for cell in cells})
    caption = "\n\n".join(filter(None, (left_out if suite.left_out else "", report.caption)))
    numbers = {"left_out": suite.left_out, **report.numbers}
    write_tables(
        run, suite.title, report.tables, provenance, caption=caption, numbers=numbers,
        figures=report.figures,
    )  # fmt: skip
    return Result(
        {
            "title": suite.title,
            "cells": len(cells),
            "left_out": suite.left_out,
            "table": str(run.folder / TABLE_FILE),
            "figures": [str(run.folder / name) for name in report.figures],
            "seconds": time.perf_counter() - start,
            "lost_workers": sum(found.losses.values()),
            **report.headline,
            "report": dict(report.numbers),
        },
        provenance,
        shown=("table", "seconds", *report.headline),
    )


def _resumed(config: BenchmarkConfig, run: Run) -> BenchmarkConfig:
    """The config of the run that goes on: the same cells, wherever they run now."""
    where = [word for word in run.overrides if word.startswith(("executor", "ray.", "workers="))]
    rest = [word for word in run.overrides if word not in where]
    replaced = ("executor.address",) if where else ()
    kept = resumed_config(run.folder, config, rest, "workers=", replaced)
    if not where:
        return kept
    return replace(kept, executor=config.executor, ray=config.ray, workers=config.workers)
