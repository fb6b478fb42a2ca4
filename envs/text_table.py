"""Tables of text with a header: CSV files read, and the faults of their rows by row and field."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.files import UNPRINTABLE, read_content
from envs.units import EXACT

CONTROL = "holds a control character"
SEPARATOR = ","
MOST_NAMED = 16  # columns of a header in a message


@dataclass(frozen=True, eq=False)
class Table:
    """R rows of text.

    `columns` are (R,) texts without surrounding blanks, "" where a row is too short; `place` tells
    a person where row 0, 1, ... stands; `cells` is the number of cells of each row, `width` what
    it should be.
    """

    path: str | Path
    columns: Mapping[str, pl.Series]
    place: Callable[[int], str]
    cells: IntArray
    width: int

    def __len__(self) -> int:
        return len(self.cells)

    def rows(self) -> pl.Series:
        """The numbers of the rows, from 0, as texts."""
        return pl.Series(np.arange(len(self))).cast(pl.String)

    def get(self, field: str) -> pl.Series | None:
        """A column; None where the file does not have it."""
        return self.columns.get(field)


def read_table(
    path: str | Path,
    required: Sequence[str] | None = None,
    optional: Sequence[str] = (),
    hint: str = "",
) -> Table:
    """The named columns of a CSV file with a header, in any order; other columns are not read.

    Without names all columns are read, in their order.

    UTF-8 with or without byte order mark, lines end in LF or CRLF, blank lines do not count. `hint`
    is added where a column is missing.

    Raises:
        InputError: the file cannot be read, is a damaged gzip, empty, not in UTF-8, no CSV, holds
            no row, or lacks a required column.
    """
    content = read_content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is no text in UTF-8 ({error.reason})", file=path, record=f"line {line}"
        ) from error
    split = _split_quoted if '"' in text else _split_plain
    header, columns, cells, lines = split(path, text.replace("\r\n", "\n"))
    required = header if required is None else required
    for name in required:
        if name not in header:
            told = f"is missing (the header has: {', '.join(header[:MOST_NAMED])}{hint})"
            raise InputError(told, file=path, record="header", field=name)
    for name in (*required, *optional):
        if header.count(name) > 1:
            raise InputError("stands twice", file=path, record="header", field=name)
    if not len(cells):
        raise InputError("holds no row", file=path)
    named = {name: columns[header.index(name)] for name in (*required, *optional) if name in header}
    return Table(
        path=path,
        columns={name: column.fill_null("").str.strip_chars() for name, column in named.items()},
        place=lambda row: f"row {row + 1} (line {lines[row]})",
        cells=cells,
        width=len(header),
    )


_Split = tuple[list[str], list[pl.Series], IntArray, IntArray]


def _split_plain(path: str | Path, text: str) -> _Split:
    """Header, columns, cells and line of each row of a file without quotes."""
    lines = pl.Series(text.split("\n"))
    number = np.flatnonzero((lines.str.strip_chars() != "").to_numpy())
    if not len(number):
        raise InputError("is empty", file=path)
    header = [name.strip() for name in lines[int(number[0])].split(SEPARATOR)]
    number = number[1:]
    rows = lines.gather(number)
    cells = rows.str.count_matches(SEPARATOR, literal=True).to_numpy().astype(np.int64) + 1
    parts = rows.str.split_exact(SEPARATOR, len(header) - 1).struct.unnest()
    return header, parts.get_columns(), cells, number + 1


def _split_quoted(path: str | Path, text: str) -> _Split:
    """The same where cells may be quoted, and so hold separators and line ends."""
    reader = csv.reader(io.StringIO(text, newline="\n"), strict=True)
    rows: list[list[str]] = []
    line: list[int] = []
    next_line = 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                line.append(next_line)
            next_line = reader.line_num + 1
    except csv.Error as error:
        where = f"line {reader.line_num}"
        raise InputError(f"is no CSV ({error})", file=path, record=where) from error
    if not rows:
        raise InputError("is empty", file=path)
    header = [name.strip() for name in rows.pop(0)]
    cells = np.array([len(row) for row in rows], dtype=np.int64)
    width = len(header)
    padded = [
        tuple(itertools.islice(itertools.chain(row, itertools.repeat("")), width)) for row in rows
    ]
    transposed = list(zip(*padded, strict=True)) or [()] * width
    columns = [pl.Series(column, dtype=pl.String) for column in transposed]
    return header, columns, cells, np.array(line[1:], dtype=np.int64)


@dataclass(frozen=True)
class RejectedRows:
    """Rows left out for one reason."""

    field: str | None  # of the source; None: the row as a whole
    reason: str
    rows: int
    first: str  # where the first of them stands
    excluded: bool  # a sound row of something that is no job on GPUs, rather than a faulty one


class RowChecks:
    """Collects the faults of the rows of a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._code = np.zeros(len(table), dtype=np.int32)  # 0: no fault, else 1 + kind
        self._kinds: list[tuple[str | None, str, bool]] = []
        wrong = table.cells != table.width
        for cells in np.unique(table.cells[wrong]):
            reason = f"has {cells} cells, the header has {table.width}"
            self.reject(table.cells == cells, None, reason)

    @property
    def kept(self) -> BoolArray:
        """(R,) rows without a fault so far."""
        kept: BoolArray = self._code == 0
        return kept

    def reject(self, wrong: BoolArray, field: str | None, reason: str) -> None:
        self._mark(wrong, field, reason, excluded=False)

    def exclude(self, which: BoolArray, field: str | None, reason: str) -> None:
        """Mark sound rows that describe no job on GPUs; they stop no strict reader."""
        self._mark(which, field, reason, excluded=True)

    def _mark(self, which: BoolArray, field: str | None, reason: str, *, excluded: bool) -> None:
        new = which & (self._code == 0)
        if new.any():
            kind = (field, reason, excluded)
            if kind not in self._kinds:
                self._kinds.append(kind)
            self._code[new] = 1 + self._kinds.index(kind)

    def whole(self, field: str, least: int = 0, most: int = EXACT) -> IntArray:
        """(R,) a column of whole numbers; wrong rows are marked and hold `least`."""
        numbers = self.numbers(field)
        self.reject(numbers != np.floor(numbers), field, "is not a whole number")
        if least > 0:
            self.reject(numbers == 0, field, "is zero")
        self.reject(numbers < least, field, f"is below {least}")
        self.reject(numbers > most, field, "is too large")
        return np.where(self.kept, numbers, least).astype(np.int64)

    def numbers(self, field: str, blank: str = "") -> FloatArray:
        """(R,) a column of finite numbers of at least 0; wrong rows are marked and hold 0.

        Args:
            blank: what a cell without a text counts as; "": it is missing.
        """
        text = self.table.columns[field]
        text = text.replace("", blank) if blank else text
        self.reject((text == "").to_numpy(), field, "is missing")
        parsed = text.cast(pl.Float64, strict=False)
        self.reject(parsed.is_null().to_numpy(), field, "is not a number")
        values = parsed.fill_null(0.0).to_numpy()
        finite = np.isfinite(values)
        self.reject(~finite, field, "is not finite")
        values = np.where(finite, values, 0.0)
        self.reject(values < 0, field, "is negative")
        return values

    def clock(self, field: str, form: str) -> IntArray:
        """(R,) seconds since 1970-01-01 00:00 of a column of times in strftime's form `form`.

        Times with an offset from UTC are taken to UTC; times without one stay what the clock shows.
        """
        text = self.table.columns[field]
        self.reject((text == "").to_numpy(), field, "is missing")
        times = text.str.to_datetime(form, strict=False, time_unit="ms")
        self.reject(times.is_null().to_numpy(), field, f"is no time of the form {form}")
        seconds = times.dt.epoch("s").fill_null(0)
        return np.asarray(seconds.to_numpy(), dtype=np.int64)

    def unique(self, field: str, ids: pl.Series) -> None:
        """Mark ids that are missing or unprintable, and those of a sound row further up."""
        self.reject((ids == "").to_numpy(), field, "is missing")
        self.reject(has_control(ids), field, CONTROL)
        kept = np.flatnonzero(self.kept)
        again = np.zeros(len(ids), dtype=bool)
        again[kept] = ~ids.gather(kept).is_first_distinct().to_numpy()
        self.reject(again, field, "stands twice")

    def finish(self, *, strict: bool) -> tuple[RejectedRows, ...]:
        """The marked rows by reason, in the order of the file.

        Raises:
            InputError: for the first faulty row, where `strict`.
        """
        found = []
        for number, (field, reason, excluded) in enumerate(self._kinds, start=1):
            rows = np.flatnonzero(self._code == number)
            found.append(
                (
                    int(rows[0]),
                    RejectedRows(
                        field, reason, len(rows), self.table.place(int(rows[0])), excluded
                    ),
                )
            )
        found.sort(key=lambda item: item[0])
        faults = [item for item in found if not item[1].excluded]
        if strict and faults:
            raise self._error(*faults[0])
        return tuple(rejected for _, rejected in found)

    def _error(self, row: int, fault: RejectedRows) -> InputError:
        column = None if fault.field is None else self.table.get(fault.field)
        cell = "" if column is None else str(column[row])
        message = f"{cell!r} {fault.reason}" if cell else fault.reason
        return InputError(message, file=self.table.path, record=fault.first, field=fault.field)


def has_control(texts: pl.Series) -> BoolArray:
    """Which of some texts hold a control character."""
    return texts.str.contains(UNPRINTABLE).fill_null(False).to_numpy()
