"""What is claimed, by others and here, and what was measured: one table, and its rows run again.

python -m experiments.claims
python -m experiments.claims rerun=[moirai_example,flow_times]

The claims are rows of conf/claim_table.yaml. The run folder receives claims.md, claims.tex and
claims.html.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from envs.errors import InputError, refused_in
from experiments.config.command_words import CONFIG_MODULE, quoted
from experiments.config.composing import check_words, typed
from experiments.config.verbs import EXPERIMENTS
from experiments.config.yaml_files import yaml_text
from experiments.reporting.page import Page
from experiments.reporting.tables import Table, markdown_table, write_tables
from experiments.run.artifacts import write_text
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import stamp

CLAIMS = "claim_table.yaml"  # of conf
MARKDOWN, LATEX, PAGE = "claims.md", "claims.tex", "claims.html"
MOST_WORDS = 25  # of the conditions
COLUMNS = ("claim", "published", "ours", "verdict", "conditions", "more")
CLOSE = 1e-9  # relative: the same number
_COMMAND = re.compile(r"(?:python -m experiments\.|meshwright )(\w+)((?: .*)?)")
_ABOUT = """\
Published claims by year, then those of this project, losses included. The verdict is about the
*published* claim under the conditions of the row: it **holds**, holds **in part** (to a lesser
degree, or not everywhere), **does not** hold, or is **not comparable** because what it was measured
on is not available here. The last column links to the page with the details.

`meshwright claims rerun=[flow_times]` runs the command of a row again and reports whether its
figure is in the interval. The rows are in `conf/claim_table.yaml`; the same command writes this
page.
"""


@dataclass
class Measured:
    """Our figure, when and at which commit it was noted."""

    what: str
    value: float
    low: float
    high: float
    unit: str
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
    claim: str
    source: str  # authors and year, or: this project
    published: str
    conditions: str  # of ours, in a few words
    page: str  # of the documentation, with the rest
    measured: Measured
    verdict: Literal["holds", "in part", "does not", "not comparable"]
    rerun: Rerun

    def __post_init__(self) -> None:
        if not self.measured.low <= self.measured.value <= self.measured.high:
            raise InputError("config key 'measured': low, value and high do not ascend")
        if len(self.conditions.split()) > MOST_WORDS:
            raise InputError(f"config key 'conditions': has more than {MOST_WORDS} words")
        for command in self.rerun.commands:
            if not _COMMAND.fullmatch(command):
                fault = "is no command, python -m experiments.<verb> <arguments>"
                raise InputError(f"config key 'rerun': {command!r} {fault}")
        if self.rerun.over is not None:
            _check_ratio(self.measured.what, self.rerun.over, self.rerun.command)

    @property
    def figure(self) -> str:
        """Value and interval with their unit."""
        found = self.measured
        unit = found.unit if found.unit in ("", "x") else f" {found.unit}"
        if found.low == found.high:
            return f"{_number(found.value)}{unit}"
        return f"{_number(found.value)} [{_number(found.low)}, {_number(found.high)}]{unit}"

    def holds(self, value: float) -> bool:
        """Whether a number lies in the interval that was measured."""
        low, high = self.measured.low, self.measured.high
        slack = CLOSE * max(abs(low), abs(high))
        return low - slack <= value <= high + slack

    def cells(self, link: str = "{}") -> tuple[str, ...]:
        """The row of the table; `link` is the form of one to a page."""
        return (
            f"{self.claim} ({self.source})",
            self.published,
            f"{self.figure}: {self.measured.what}",
            self.verdict,
            self.conditions,
            link.format(self.page),
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

    reason = named(upper - lower, above) or named(lower - upper, below)
    if not reason or named(upper - lower, below) or named(lower - upper, above):
        fault = "names what 'rerun.over' measures before 'over', and 'rerun.command' behind it"
        raise InputError(f"config key 'measured.what': {what!r} is to be of a form that {fault}")


def read_claims(folder: str | Path | None = None) -> list[Claim]:
    """All claims of conf in their order, then those of a folder.

    Raises:
        InputError: a file is no claim, or two have one name.
    """
    own = str(files(CONFIG_MODULE).joinpath(CLAIMS))
    rows: dict[str, tuple[str, Any]] = {name: (own, row) for name, row in _mapping(own).items()}
    if folder is not None:
        if not Path(folder).is_dir():
            raise InputError("there is no such folder", file=folder)
        for path in sorted(Path(folder).glob("*.yaml")):
            if path.stem in rows:
                raise InputError("has the name of another claim", file=path)
            rows[path.stem] = str(path), _mapping(path)
    return [_claim(name, path, row) for name, (path, row) in rows.items()]


def _mapping(path: str | Path) -> dict[str, Any]:
    found = OmegaConf.create(yaml_text(path))
    if not isinstance(found, DictConfig):
        raise InputError("is no mapping", file=path)
    return OmegaConf.to_container(found)  # type: ignore[return-value]


def _claim(name: str, path: str, row: Mapping[str, Any]) -> Claim:
    with refused_in(path, name):
        return typed(OmegaConf.create({**row, "name": name}), Claim)


def table_of(claims: Sequence[Claim], link: str = "{}") -> Table:
    return Table("Claims", COLUMNS, [claim.cells(link) for claim in claims])


def page_of(claims: Sequence[Claim]) -> str:
    """`docs/claims.md`."""
    table = markdown_table(COLUMNS, table_of(claims, "[more]({})").rows)
    table = table.replace("---:", "---")  # sentences begin at the left
    return f"# Claims\n\n{_ABOUT}\n{table}"


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
    place = f"hydra.run.dir={quoted(folder.resolve())}"
    arguments = [sys.executable, "-m", module, *words, "json=true", place]
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
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise InputError(f"holds no number at {path!r}", file="result.json")
    return float(found)


@dataclass(kw_only=True)
class ClaimsConfig:
    """`conf/claims.yaml`."""

    # a folder with further claims, a file each, in the form of a row
    folder: str | None = None
    # names of claims whose commands are run, and their figures compared: rerun=[flow_times]
    rerun: Sequence[str] = ()
    seed: int
    json: bool


def claims(config: ClaimsConfig, run: Run) -> Result:
    """Write the table; run the commands that are asked for, and compare."""
    known = {claim.name: claim for claim in read_claims(config.folder)}
    for name in config.rerun:
        if name not in known:
            raise InputError(f"config key 'rerun': no claim {name!r} (known: {', '.join(known)})")
    with ProgressDisplay(run.console) as display:
        reruns = list(_reruns([known[name] for name in config.rerun], run.folder, display))
    table = table_of(list(known.values()))
    write_tables(run, "Claims", [table], run.provenance)
    write_text(run.folder / MARKDOWN, page_of(list(known.values())))
    write_text(run.folder / LATEX, table.latex())
    page = Page("Claims", "What is claimed, and what was measured here.")
    page.table(table, wide=True)
    mark = stamp({"title": "Claims"}, run.provenance, kind="claims")
    write_text(run.folder / PAGE, page.html(mark))
    return Result(
        {
            "claims": len(known),
            "do_not_hold": [name for name, own in known.items() if own.verdict == "does not"],
            "reruns": reruns,
            "all_in_their_intervals": all(x["in_the_interval"] for x in reruns) if reruns else None,
            "page": str(run.folder / PAGE),
        },
        run.provenance,
    )


def _reruns(
    asked: Sequence[Claim], folder: Path, display: ProgressDisplay
) -> Iterator[dict[str, object]]:
    for claim in asked:
        task = display.begin(f"{claim.name} ({claim.rerun.takes})")
        value = rerun(claim, folder / "reruns")
        holds = claim.holds(value)
        where = "inside" if holds else "OUTSIDE"
        display.end(task, f"{value:.7g}, {where} {claim.figure}")
        yield {"claim": claim.name, "value": value, "in_the_interval": holds}


def _number(value: float) -> str:
    whole = float(value).is_integer() and abs(value) >= 1000
    return f"{value:,.0f}" if whole else f"{value:.7g}"
