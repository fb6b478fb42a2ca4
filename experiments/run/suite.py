"""What `experiments.benchmark` runs: a suite of cells, checked first, and the report of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from hydra.utils import get_class

from envs.errors import InputError
from experiments.run.grid import AppCell, Document
from experiments.run.overrides import check_command_line
from experiments.run.tables import Table
from experiments.run.targets import SEEDS, object_in_file

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
    def title(self) -> str:
        """For a reader."""

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
            check_command_line(overrides, config_name, get_class(schema))
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


def check_seeds(seeds: Sequence[int]) -> None:
    """Two or more different ones, each a seed of every generator in use."""
    if len(seeds) < 2 or len(set(seeds)) != len(seeds):
        raise InputError(f"{seeds} are not two or more different ones", field="seeds")
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise InputError(f"{seed} is not in 0..{SEEDS - 1}", field="seeds")


def suite_file(path: str) -> Suite:
    """Anybody's suite, in a YAML file of the form of `conf/suite`.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    built = object_in_file(path, "suite")
    if not isinstance(built, Suite):
        raise InputError(f"describes no suite but a {type(built).__name__}", file=path)
    return built
