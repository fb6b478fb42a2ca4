"""Run folders of any app, whoever made them: read within bounds, never followed or unpickled."""

from __future__ import annotations

import csv
import os
import re
import stat
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.files import parse_json
from experiments.config.composing import CONFIG_FILE
from experiments.config.yaml_files import yaml_document
from experiments.reporting.tables import TABLE_FILE, Table, read_tables
from experiments.run.artifacts import METRICS_FILE
from experiments.run.one_run import ENVIRONMENT_FILE, RESULT_FILE

MEGABYTE = 1_000_000
LARGEST = {  # bytes of a file; a larger one is refused
    RESULT_FILE: 64 * MEGABYTE,
    CONFIG_FILE: MEGABYTE,
    ENVIRONMENT_FILE: MEGABYTE,
    METRICS_FILE: 64 * MEGABYTE,
    TABLE_FILE: 16 * MEGABYTE,
}
LARGEST_PICTURE = 4 * MEGABYTE
PNG = b"\x89PNG\r\n\x1a\n"
SEED = "seed"
_SEED_FOLDER = re.compile(r"\bseed_\d+\b")  # of a grid's cell, whose work another cell goes on with
_APP = re.compile(r"\b(?:experiments\.|meshwright (?=[a-z]))(\w+)")


@dataclass(frozen=True)
class RunFolder:
    """A finished run.

    Args:
        path: of the folder.
        result: the content of its result.json.
        config: the content of its config.yaml, as text; empty where there is none.
        environment: the content of its environment.json.
    """

    path: Path
    result: Mapping[str, Any]
    config: str
    environment: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """The run in a folder.

        Raises:
            InputError: there is none that has ended, or a file of it is too large or faulty.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise InputError("there is no such run folder", file=path)
        if not os.path.lexists(folder / RESULT_FILE):
            raise InputError(f"is no finished run: it has no {RESULT_FILE}", file=path)
        config = _text(folder / CONFIG_FILE)
        return cls(
            folder, _mapping(folder / RESULT_FILE), config, _mapping(folder / ENVIRONMENT_FILE)
        )

    @property
    def name(self) -> str:
        """The last two parts of its path: the app's folder, and its own."""
        return "/".join(Path(os.path.abspath(self.path)).parts[-2:])

    @property
    def origin(self) -> Mapping[str, Any]:
        """Command, commit, seed, versions and inputs."""
        found = self.result.get("provenance")
        return found if isinstance(found, Mapping) else {}

    @property
    def seed(self) -> object:
        return self.origin.get("seed")

    @property
    def command(self) -> str:
        return str(self.origin.get("command", "unknown"))

    @property
    def verb(self) -> str:
        """The command that made it, or "run"."""
        found = _APP.search(self.command)
        return found[1] if found else "run"

    @cached_property
    def choices(self) -> Mapping[str, Any]:
        """The config without what only changes the dice."""
        parsed = yaml_document(self.path / CONFIG_FILE) if self.config else None
        return _without_seeds(parsed) if isinstance(parsed, Mapping) else {}

    @cached_property
    def metrics(self) -> Mapping[str, Sequence[float]]:
        """Columns of the metrics of a training; NaN where a row has none."""
        path = self.path / METRICS_FILE
        try:
            columns = zip(*csv.reader(_text(path).splitlines()), strict=True)
            return {name: [float(x or "nan") for x in cells] for name, *cells in columns}
        except (ValueError, csv.Error) as error:
            raise InputError(f"holds no metrics ({error})", file=path) from error

    @cached_property
    def tables(self) -> Sequence[Table]:
        """What the run itself has found, as it was printed."""
        return list(read_tables(_text(self.path / TABLE_FILE)))

    def pictures(self) -> Mapping[str, bytes]:
        """PNGs by name; those that are too large or no PNGs are left out."""
        found = {}
        for path in sorted(self.path.glob("*.png")):
            try:
                data = read_bounded(path, LARGEST_PICTURE)
            except InputError:
                continue
            if data.startswith(PNG):
                found[path.name] = data
        return found


def read_bounded(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most so many bytes.

    Raises:
        InputError: it is something else, or larger, or cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError("is no regular file", file=path)
            if status.st_size > largest:
                fault = f"has {status.st_size:,} bytes; a report reads up to {largest:,}"
                raise InputError(fault, file=path)
            return opened.read(largest)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", file=path) from error


def _text(path: Path) -> str:
    """Empty where there is no such file."""
    if not os.path.lexists(path):
        return ""
    try:
        return read_bounded(path, LARGEST[path.name]).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 ({error.reason})", file=path) from error


def _mapping(path: Path) -> Mapping[str, Any]:
    """Empty where there is no such file."""
    if not os.path.lexists(path):
        return {}
    document = parse_json(read_bounded(path, LARGEST[path.name]), path)
    if not isinstance(document, dict):
        raise InputError("is no mapping", file=path)
    return document


def _without_seeds(value: Any, left_out: Container[str] = (SEED, "json", "resume")) -> Any:
    """A config without what only changes the dice, and how a run reports and is resumed."""
    if isinstance(value, Mapping):
        return {
            str(key): _without_seeds(item, (SEED,))
            for key, item in value.items()
            if key not in left_out
        }
    if isinstance(value, list):
        return [_without_seeds(item, (SEED,)) for item in value]
    return _SEED_FOLDER.sub("seed", value) if isinstance(value, str) else value
