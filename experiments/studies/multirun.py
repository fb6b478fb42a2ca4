"""`-m`: one run for every combination of the values on a command line, and one table of them.

Hydra's sweeper says which runs there are, its launcher where they take place. Each is a cell as
those of a study, whose run folder lies in the sweep's. What is done is not done again when the same
command is given the same `hydra.sweep.dir`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from envs.errors import InputError, in_one_line
from envs.files import read_json
from experiments.config.command_words import own_flags, quoted, use_flags
from experiments.config.composing import (
    check_command_line,
    hydra_over_configs,
    hydra_words,
    missing_plugin,
    plain_groups,
)
from experiments.config.verbs import JOBS
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import require_own_folder, to_json, write_json
from experiments.run.interrupts import goes_on
from experiments.run.one_run import Run, RunConsole
from experiments.run.provenance import Provenance, stamp
from experiments.studies.cells import FAILED, record_of, run_cell
from experiments.studies.frames import OBJECTIVE, figure_at, objectives
from experiments.studies.study import Cell

RECIPES = "sweep"  # the group of the recipes of sweeps
CELL_FILE = "cell.json"  # beside a run folder: what it came to
SWEEP_FILE = "sweep.json"
OPTUNA = "OptunaSweeper"
HYDRA_FILE = "multirun.yaml"  # in the folder of a sweep, from its beginning
MOST_RUNS = 10_000  # of one sweep


class CellFailed(Exception):  # noqa: N818
    """A run of a sweep has no result; its line stands in the table."""


@dataclass(frozen=True)
class SweepCell:
    """What Hydra calls for each run: it is done, unless that was done before.

    Attributes:
        verb: of the command.
        fixed: the words that all runs have.
        objective: the key of `result.json` whose value is returned; None: nothing is.
        flags: of the user's own folders and names.
    """

    verb: str
    fixed: tuple[str, ...]
    objective: str | None
    flags: tuple[str, ...]

    def __call__(self, config: object) -> float | None:
        """The value of the objective; None where the result has none, as where no plan fits.

        Raises:
            CellFailed: the run has failed, or its result has no such key.
        """
        use_flags(self.flags)
        hydra = HydraConfig.get()
        mine = {RECIPES, *(_key(word) for word in self.fixed)}
        swept = [word for word in hydra.overrides.task if _key(word) not in mine]
        number, folder = int(hydra.job.num), Path(os.path.abspath(hydra.sweep.dir))
        cell = Cell(self.verb, {}, f"run {number}", "", None, 0, (*self.fixed, *swept))
        run_cell(cell, folder, self.flags)
        own, document = folder / cell.key, record_of(cell, folder) or {}
        about = {"number": number, "overrides": swept, "run_folder": str(own)}
        try:
            if FAILED in document:
                raise InputError(str(document[FAILED]))
            value = _value(document, self.objective, own)
        except InputError as error:
            outcome = {**about, "objective": None, "reason": str(error)}
            write_json(folder / f"{number}.{CELL_FILE}", outcome)
            raise CellFailed(str(error)) from error
        outcome = {**about, "objective": value, "reason": ""}
        write_json(folder / f"{number}.{CELL_FILE}", outcome)
        return value


def multirun(config_name: str, schema: type[Any], words: Sequence[str]) -> None:
    """Run a sweep, then print and write its table.

    Raises:
        InputError: as `check_command_line`, of the first value of what is swept and of every other
            beside it; a plugin that is not installed; an objective that is asked for and not given.
        SystemExit: a run has failed.
    """
    asked = check_sweep(config_name, schema, words)
    verb, flags = JOBS[config_name].verb, tuple(own_flags())
    task = SweepCell(verb, tuple(asked.fixed), asked.objective, flags)
    folder, failure = _swept(config_name, asked, task)
    _report(folder, asked.objective, failure, quiet=asked.quiet)


class Asked(NamedTuple):
    """What a command line with `-m` asks for."""

    objective: str | None
    words: list[str]  # of Hydra and of the runs, but for what is swept
    fixed: list[str]  # of these, what all runs have
    swept: list[str]
    quiet: bool  # json=true
    parsed: dict[str, Override]


def check_sweep(config_name: str, schema: type[Any], words: Sequence[str]) -> Asked:
    """Compose each value that is swept (of a range, both ends) beside the first of all others.

    Raises:
        InputError: as `check_command_line`.
    """
    objective, rest = _objective(config_name, words)
    said = [word.partition("=")[2].lower() for word in rest if _key(word) == "json"]
    given = [word for word in rest if _key(word) != "json"]
    with hydra_over_configs() as loader:
        parsed = _parsed(given, loader)
        plain = plain_groups(loader, config_name)
    swept = [word for word in given if parsed[word].is_sweep_override()]
    for key in map(_key, swept):
        if key in plain:  # Hydra takes it for a group
            raise InputError(f"config key '{key}': cannot be swept")
    steady = [word for word in given if word not in swept]
    fixed = [word for word in steady if not _is_hydras(parsed[word])]
    values = [_values(parsed[word]) for word in swept if _runs(parsed[word])]
    firsts = [one[0] for one in values]
    lines = [firsts]
    for place, one in enumerate(values):
        lines += [[*firsts[:place], word, *firsts[place + 1 :]] for word in one[1:]]
    for line in lines:
        check_command_line([*fixed, *line], config_name, schema)
    quiet = said[-1:] == ["true"]
    return Asked(objective, steady, fixed, swept, quiet, parsed)


def _swept(config_name: str, asked: Asked, task: SweepCell) -> tuple[Path, CellFailed | None]:
    """Have Hydra run the sweep: its folder, and the failure that ended it."""
    with hydra_over_configs() as loader:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        words = [*hydra_words(asked.words, loader, config_name), *asked.swept]
        try:
            config = loader.load_configuration(config_name, words, RunMode.MULTIRUN)
            folder = Path(os.path.abspath(str(OmegaConf.select(config, "hydra.sweep.dir"))))
            if not str(config.hydra.sweeper._target_).endswith(OPTUNA):
                _check_size([asked.parsed[word] for word in asked.swept])
            elif task.objective is None:
                raise InputError("Optuna needs one: a key of result.json", field=OBJECTIVE)
            if not any(folder.glob("*.lock")) and not (folder / HYDRA_FILE).is_file():
                require_own_folder(folder)
            words += [f"hydra.sweep.dir={quoted(folder)}", "hydra.sweep.subdir=."]  # everywhere
            with goes_on(f"the same command with hydra.sweep.dir={folder} goes on", folder):
                hydra.multirun(config_name, task, words, with_log_configuration=False)
        except CellFailed as failure:
            return folder, failure
        except BrokenProcessPool as error:
            again = f"the same command with hydra.sweep.dir={folder} goes on"
            raise InputError(f"a process of the launcher was killed; {again}") from error
        except (HydraException, OmegaConfBaseException, ModuleNotFoundError) as error:
            raise missing_plugin(error) or InputError(in_one_line(error)) from error
    return folder, None


def _check_size(swept: Sequence[Override]) -> None:
    runs = math.prod(map(_runs, swept))
    if runs > MOST_RUNS:
        raise InputError(f"a sweep of {runs:,} runs is larger than {MOST_RUNS:,}")


def _report(
    folder: Path, objective: str | None, failure: CellFailed | None, *, quiet: bool
) -> None:
    """One table of all cells in a sweep's folder."""
    found = [read_json(path) for path in folder.glob(f"*.{CELL_FILE}")]
    cells = sorted(found, key=lambda cell: int(cell["number"]))
    keys = list(dict.fromkeys(_key(word) for cell in cells for word in cell["overrides"]))
    rows = []
    for cell in cells:
        values = {_key(word): word.partition("=")[2] for word in cell["overrides"]}
        rows.append((str(cell["number"]), *(values.get(key, "") for key in keys), _shown(cell)))
    console = RunConsole(stderr=quiet)
    provenance = Provenance(seed=0, inputs={})
    run = Run(folder, console, provenance, {}, [])
    title = f"Sweep of {len(cells)} runs"
    table = Table(title, ("run", *keys, objective or "result"), rows)
    write_tables(run, title, [table], provenance)
    document = stamp({"objective": objective, "runs": cells}, provenance, kind="sweep")
    write_json(folder / SWEEP_FILE, document)
    if quiet:
        sys.stdout.write(to_json(document))
    else:
        console.say(f"sweep folder: {folder}")
    failed = [cell for cell in cells if cell["reason"]]
    if failed or failure is not None:
        first = failed[0] if failed else {"number": "?", "reason": str(failure)}
        print(
            f"error: {len(failed)} of {len(cells)} runs failed, run {first['number']}: "
            f"{first['reason']}; the same command with hydra.sweep.dir={folder} goes on",
            file=sys.stderr,
        )
        raise SystemExit(1)


def _shown(cell: Mapping[str, Any]) -> str:
    if cell["reason"]:
        return "failed"
    return "none" if cell["objective"] is None else f"{cell['objective']:.6g}"


def _objective(config_name: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The key asked for, or that of the app; and the words without it."""
    asked = [word.partition("=")[2] for word in words if _key(word) == OBJECTIVE]
    rest = [word for word in words if _key(word) != OBJECTIVE]
    if asked:
        return asked[-1], rest
    return objectives().get(config_name), rest


def _value(document: Mapping[str, Any], key: str | None, folder: Path) -> float | None:
    """The number under a dotted key of a result."""
    if key is None:
        return None
    try:
        node = figure_at(document, key)
    except KeyError as error:
        known = ", ".join(x for x, y in document.items() if isinstance(y, int | float))
        message = f"result.json has no {key!r} (its numbers: {known})"
        raise InputError(message, file=folder, field=OBJECTIVE) from error
    if node is None:
        return None
    if isinstance(node, bool) or not isinstance(node, int | float) or not math.isfinite(node):
        raise InputError(f"{key!r} is {json.dumps(node)[:40]}, no number", field=OBJECTIVE)
    return float(node)


def _parsed(words: Sequence[str], loader: Any) -> dict[str, Override]:
    parser = OverridesParser.create(config_loader=loader)
    found = {}
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise InputError(f"{word!r} is not of the form key=value")
        try:
            (found[word],) = parser.parse_overrides([word])
        except HydraException as error:
            raise InputError(f"{word!r} cannot be read as key=value or key=value,value") from error
        if found[word].key_or_group == "resume":
            message = (
                "a sweep goes on when its command is given again with hydra.sweep.dir=<folder>"
            )
            raise InputError(message, field="resume")
    return found


def _is_hydras(override: Override) -> bool:
    """Whether a word is about the sweep, not about its runs."""
    name = str(override.key_or_group)
    return bool(override.is_hydra_override()) or name.startswith("hydra/") or name == RECIPES


def _values(override: Override) -> list[str]:
    """The words of the values of one that is swept: of a range both ends, of an interval one.

    Raises:
        InputError: as `_runs`.
    """
    key, drawn = override.get_key_element(), override.value()
    if isinstance(drawn, IntervalSweep):  # of which Optuna draws
        return [f"{key}={drawn.start}"]
    if isinstance(drawn, RangeSweep):
        found: Any = drawn.range()
        last = _runs(override) - 1
        ends = (found[0], found[-1]) if isinstance(found, range) else (
            float(found.start), float(found.start + last * found.step)
        )  # fmt: skip
        return [f"{key}={end}" for end in dict.fromkeys(ends)]
    return [f"{key}={x}" for x in override.sweep_iterator(transformer=Transformer.encode)]


def _runs(override: Override) -> int:
    """How many values a word has that is swept.

    Raises:
        InputError: none, or no end of them.
    """
    drawn, found = override.value(), math.inf
    if not isinstance(drawn, RangeSweep):
        found = len(_values(override))
    elif drawn.step:
        limits: Any = drawn.range()
        with suppress(ArithmeticError, ValueError):  # of infinities, of what is no number
            found = math.ceil((limits.stop - limits.start) / limits.step)
    if not 0 < found < math.inf:
        reason = "has no value" if found < 1 else "has no end"
        raise InputError(f"config key '{override.key_or_group}': the sweep {reason}")
    return int(found)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
