"""What the literature and this project claim, and what was measured here: one row for each."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from omegaconf import DictConfig, OmegaConf

from envs.errors import InputError, refused_in
from experiments.config.command_words import CONFIG_MODULE
from experiments.config.composing import check_words, typed
from experiments.config.verbs import EXPERIMENTS
from experiments.config.yaml_files import yaml_text
from experiments.reporting.measures import is_number
from experiments.study.tables import Table, markdown_table

CLAIMS = "claim_table.yaml"  # of conf
Subject = Literal["placement", "network", "cluster"]  # in the order of the table
Verdict = Literal["holds", "holds in part", "does not hold", "not comparable"]
COLUMNS = (
    "claim", "verdict", "published", "measured here", "interval", "conditions", "source", "command",
    "takes",
)  # fmt: skip
CLOSE = 1e-9  # relative: the same number
_COMMAND = re.compile(r"(?:python -m experiments\.|meshwright )(\w+)((?: .*)?)")
_ABOUT = """\
One row for each published headline of the systems in here, and for each claim of this project's
own; losses are rows like any other. `make claims ARGS="rerun=[flow_times]"` runs the command of a
row again and says whether its figure lies in the interval. Where a row has no `rerun.read`, it is
of a study of hours whose table a person reads. The rows are in `conf/claim_table.yaml`; this page
is written by `experiments.claims`.

The verdict is about what is *published*, under the conditions of the row. It **holds** where that
was found again; **in part** where it was found less far, or not everywhere; it **does not** where
it was not; it is **not comparable** where what it was measured against, or on, is not in here.
"""


@dataclass
class Source:
    """Where the claim stands."""

    authors: str
    title: str
    venue: str
    year: int


@dataclass
class Measured:
    """Our figure, when and at which commit it was noted."""

    what: str
    value: float
    low: float
    high: float
    unit: str
    interval: str  # what `low` and `high` are the ends of
    date: str
    commit: str


@dataclass
class Rerun:
    """How to measure it again: `read` leads to the number in the command's result.json."""

    command: str
    takes: str
    read: str | None = None  # None: a person reads it
    over: str | None = None  # a second command, whose number is divided by that of the first

    @property
    def commands(self) -> list[str]:
        return [self.command, *([self.over] if self.over else [])]


@dataclass
class Claim:
    """A row of `conf/claim_table.yaml`, by its name, or a file of a folder."""

    name: str
    subject: Subject
    claim: str
    source: Source
    published: str
    conditions: str
    measured: Measured
    verdict: Verdict
    rerun: Rerun

    def __post_init__(self) -> None:
        if not self.measured.low <= self.measured.value <= self.measured.high:
            raise InputError("config key 'measured': low, value and high do not ascend")
        for command in self.rerun.commands:
            if not _COMMAND.fullmatch(command):
                fault = "is no command of an app, python -m experiments.<app> <arguments>"
                raise InputError(f"config key 'rerun': {command!r} {fault}")
        if self.rerun.over is not None:
            _check_ratio(self.measured.what, self.rerun.over, self.rerun.command)

    @property
    def figure(self) -> str:
        return f"{_number(self.measured.value)}{_unit(self.measured.unit)}"

    @property
    def interval(self) -> str:
        found = self.measured
        if found.low == found.high:
            return found.interval
        return f"[{_number(found.low)}, {_number(found.high)}]{_unit(found.unit)}"

    def holds(self, value: float) -> bool:
        """Whether a number lies in the interval that was measured."""
        low, high = self.measured.low, self.measured.high
        slack = CLOSE * max(abs(low), abs(high))
        return low - slack <= value <= high + slack

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        source, found = self.source, self.measured
        about = "" if found.low == found.high else f" ({found.interval})"
        return (
            f"{self.name}: {self.claim}",
            self.verdict,
            self.published,
            f"{self.figure}, {found.what} ({found.date}, {found.commit})",
            f"{self.interval}{about}",
            self.conditions,
            f"{source.authors}: {source.title}. {source.venue}, {source.year}",
            self.rerun.command,
            self.rerun.takes,
        )


def _check_ratio(what: str, dividend: str, divisor: str) -> None:
    """See that `what`, "... of this over that of that", names the commands as they are divided.

    A command is named by an argument, its value or `key=value`, that the other has not.

    Raises:
        InputError: neither is named, or one on the other's side.
    """
    upper, lower = set(shlex.split(dividend)), set(shlex.split(divisor))
    above, _, below = what.partition(" over ")

    def named(words: set[str], text: str) -> bool:
        values = [word.rpartition("=")[2] for word in words]
        keys = [re.sub(r"^[\w.]*\.", "", word) for word in words]  # degrees=[], without its groups
        names = "|".join(re.escape(name) for name in (*values, *keys) if name)
        return bool(names) and re.search(rf"(?<![\w.])({names})(?!\w)", text) is not None

    told = named(upper - lower, above) or named(lower - upper, below)
    if not told or named(upper - lower, below) or named(lower - upper, above):
        fault = "names what 'rerun.over' measures before 'over', and 'rerun.command' behind it"
        raise InputError(f"config key 'measured.what': {what!r} is to be of a form that {fault}")


def read_claims(folder: str | Path | None = None) -> list[Claim]:
    """All claims of conf, and those of a folder: placements, the network, clusters, by name.

    Raises:
        InputError: a file is no claim, or two have one name.
    """
    own = str(files(CONFIG_MODULE).joinpath(CLAIMS))
    rows = [
        (name, own, {"subject": subject, **row})
        for subject, named in _mapping(own).items()
        for name, row in named.items()
    ]
    if folder is not None:
        if not Path(folder).is_dir():
            raise InputError("there is no such folder", file=folder)
        taken = {name for name, *_ in rows}
        for path in sorted(Path(folder).glob("*.yaml")):
            if path.stem in taken:
                raise InputError("has the name of another claim", file=path)
            rows.append((path.stem, str(path), _mapping(path)))
    claims = [_claim(*row) for row in rows]
    subjects = get_args(Subject)
    return sorted(claims, key=lambda claim: (subjects.index(claim.subject), claim.name))


def _mapping(path: str | Path) -> dict[str, Any]:
    found = OmegaConf.create(yaml_text(path))
    if not isinstance(found, DictConfig):
        raise InputError("is no mapping", file=path)
    return OmegaConf.to_container(found)  # type: ignore[return-value]


def _claim(name: str, path: str, row: Mapping[str, Any]) -> Claim:
    with refused_in(path, name):
        return typed(OmegaConf.create({**row, "name": name}), Claim)


def whole_table(claims: Sequence[Claim]) -> Table:
    """Everything that is known of every claim."""
    return Table("Claims", COLUMNS, [claim.cells() for claim in claims], on_console=False)


def short_table(claims: Sequence[Claim]) -> Table:
    """What fits on a console."""
    rows = [
        (claim.name, claim.claim, claim.published, f"{claim.figure} {claim.interval}",
         claim.verdict, claim.rerun.takes)
        for claim in claims
    ]  # fmt: skip
    columns = ("name", "claim", "published", "measured here", "verdict", "takes")
    return Table("Claims", columns, rows, "The whole table is in the run folder.")


def page_of(claims: Sequence[Claim]) -> str:
    """`docs/claims.md`."""
    commands = "".join(
        f"- `{claim.name}`: `{command}`\n" for claim in claims for command in claim.rerun.commands
    )
    rows = [claim.cells()[:-2] for claim in claims]
    table = markdown_table(COLUMNS[:-2], rows).replace("---:", "---")  # sentences begin at the left
    return f"# Claims\n\n{_ABOUT}\n{table}\n## Commands\n\n{commands}"


def rerun(claim: Claim, folder: Path) -> float:
    """Its number: of its command, or of both, run in folders below `folder`.

    Raises:
        InputError: no number is read of its command, or a command fails.
    """
    again = claim.rerun
    if again.read is None:
        fault = f"its figure is read by a person, in the table of: {again.command}"
        raise InputError(fault, file="config key 'rerun'", record=claim.name)
    value = _number_of(again.command, again.read, folder / claim.name)
    if again.over is not None:
        value = _number_of(again.over, again.read, folder / f"{claim.name}_over") / value
    return value


def _number_of(command: str, read: str, folder: Path) -> float:
    match = _COMMAND.fullmatch(command)
    assert match is not None
    words = [os.path.expandvars(word) for word in shlex.split(match[2])]
    for word in words:
        if "$" in word:
            raise InputError("the claim needs public data: set MESHWRIGHT_DATA", file=command)
    check_words(words)
    module = f"{EXPERIMENTS}.{match[1]}"  # of this installation
    quoted = str(folder.resolve()).replace("'", r"\'")
    arguments = [sys.executable, "-m", module, *words, "json=true", f"hydra.run.dir='{quoted}'"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise InputError(f"ended with code {done.returncode}: {last}", file=command)
    return number_at(json.loads(done.stdout), read)


def number_at(document: Any, path: str) -> float:
    """The number at `rules/rule=fgd/mean`: keys, numbers of items, or the item with a value.

    Raises:
        InputError: there is none.
    """
    found = document
    for part in path.split("/"):
        if isinstance(found, list):
            rows = {str(number): row for number, row in enumerate(found)}
            named = (row for row in reversed(found) if isinstance(row, Mapping))
            found = rows | {f"{key}={value}": row for row in named for key, value in row.items()}
        found = found.get(part) if isinstance(found, Mapping) else None
    if not is_number(found) or not math.isfinite(found):
        raise InputError(f"holds no number at {path!r}", file="result.json")
    return float(found)


def _number(value: float) -> str:
    whole = float(value).is_integer() and abs(value) >= 1000
    return f"{value:,.0f}" if whole else f"{value:.7g}"


def _unit(unit: str) -> str:
    return f" {unit}" if unit and unit != "x" else unit
