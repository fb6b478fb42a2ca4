"""Tables of text with a header: CSV files read, and the faults of their rows by row and field."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.files import UNPRINTABLE, read_content
from envs.units import EXACT

CONTROL = "holds a control character"
SEPARATOR = ","
MOST_NAMED = 16  # columns of a header in a message


class Columns(dict[str, pl.Series]):
    """(R,) texts without surrounding blanks by name, "" where a row is too short.

    A column is made of what stands in the file when it is first asked for.

    Raises:
        InputError: by looking one up: the header has no such name, or has it twice.
    """

    def __init__(
        self, path: str | Path, header: Sequence[str], cells: Sequence[pl.Series], hint: str = ""
    ) -> None:
        super().__init__()
        self._path, self.header, self._cells, self._hint = path, header, cells, hint

    def __missing__(self, name: str) -> pl.Series:
        found = [
            cells for known, cells in zip(self.header, self._cells, strict=True) if known == name
        ]
        if len(found) != 1:
            names = ", ".join(self.header[:MOST_NAMED])
            message = (
                "stands twice" if found else f"is missing (the header has: {names}{self._hint})"
            )
            raise InputError(message, file=self._path, record="header", field=name)
        cells = self._cells[self.header.index(name)]
        try:
            text = cells.cast(pl.String)
        except PolarsError as error:
            message = f"{cells.dtype} cannot be read"
            raise InputError(message, file=self._path, field=name) from error
        self[name] = text.fill_null("").str.strip_chars()
        return self[name]


@dataclass(frozen=True, eq=False)
class Table:
    """R rows of text.

    `place` tells a person where row 0, 1, ... stands; `cells` is the number of cells of each row,
    `width` what it should be.
    """

    path: str | Path
    columns: Columns
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
        return self.columns[field] if field in self.columns.header else None


def read_table(
    path: str | Path,
    required: Sequence[str] | None = None,
    hint: str = "",
    content: bytes | None = None,
    separator: str = SEPARATOR,
) -> Table:
    """A CSV file with a header, whose columns are in any order.

    The columns `required` must be there and come first, in this order; without names all of them
    do. Others are there when they are asked for; with none required, so is a row by
    `RowChecks.finish`.

    UTF-8 with or without byte order mark, lines end in LF or CRLF, blank lines do not count. `hint`
    is added where a column is missing; `content` is the file's where it was read before. Cells are
    quoted only where commas separate them.

    Raises:
        InputError: the file cannot be read, is a damaged gzip, empty, not in UTF-8, no CSV, holds
            no row, or lacks a required column.
    """
    text = decoded(path, read_content(path) if content is None else content)
    if '"' in text and separator == SEPARATOR:
        header, parts, cells, lines = _split_quoted(path, text)
    else:
        header, parts, cells, lines = _split_plain(path, text, separator)
    columns = Columns(path, header, parts, hint)
    for name in header if required is None else required:
        columns[name]
    if not len(cells) and required != ():
        raise InputError("holds no row", file=path)
    return Table(
        path, columns, lambda row: f"row {row + 1} (line {lines[row]})", cells, len(header)
    )


def decoded(path: str | Path, content: bytes) -> str:
    """The text of a file, whose lines end in LF.

    Raises:
        InputError: it is not in UTF-8.
    """
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is no text in UTF-8 ({error.reason})"
        raise InputError(message, file=path, record=f"line {line}") from error


_Split = tuple[list[str], list[pl.Series], IntArray, IntArray]


def _split_plain(path: str | Path, text: str, separator: str) -> _Split:
    """Header, columns, cells and line of each row of a file without quotes."""
    lines = pl.Series(text.split("\n"))
    number = np.flatnonzero((lines.str.strip_chars() != "").to_numpy())
    if not len(number):
        raise InputError("is empty", file=path)
    header = [name.strip() for name in lines[int(number[0])].split(separator)]
    number = number[1:]
    rows = lines.gather(number)
    cells = rows.str.count_matches(separator, literal=True).to_numpy().astype(np.int64) + 1
    parts = rows.str.split_exact(separator, len(header) - 1).struct.unnest()
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
    padded = [(row + [""] * width)[:width] for row in rows]
    columns = [pl.Series(column, dtype=pl.String) for column in zip(*padded, strict=True)]
    empty = [pl.Series(dtype=pl.String)] * width
    return header, columns or empty, cells, np.array(line[1:], dtype=np.int64)


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
        self._code = np.zeros(len(table), dtype=np.int32)  # 0: no fault, else that of its kind
        self._kinds: dict[tuple[str | None, str, bool], int] = {}
        wrong = table.cells != table.width
        for cells in np.unique(table.cells[wrong]):
            reason = f"has {cells} cells, the header has {table.width}"
            self.reject(table.cells == cells, None, reason)

    @property
    def kept(self) -> BoolArray:
        """(R,) rows without a fault so far."""
        kept: BoolArray = self._code == 0
        return kept

    def reject(
        self, wrong: BoolArray, field: str | None, reason: str, *, excluded: bool = False
    ) -> None:
        """Mark rows, but for those with a fault already."""
        new = wrong & (self._code == 0)
        if new.any():
            kind = (field, reason, excluded)
            self._code[new] = self._kinds.setdefault(kind, 1 + len(self._kinds))

    def exclude(self, which: BoolArray, field: str | None, reason: str) -> None:
        """Mark sound rows that describe no job on GPUs; they stop no strict reader."""
        self.reject(which, field, reason, excluded=True)

    def text(self, field: str) -> pl.Series:
        """(R,) a column of texts; rows without one are marked."""
        text = self.table.columns[field]
        self.reject((text == "").to_numpy(), field, "is missing")
        return text

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
        text = self.table.columns[field].replace("", blank) if blank else self.text(field)
        parsed = text.cast(pl.Float64, strict=False)
        self.reject(parsed.is_null().to_numpy(), field, "is not a number")
        values = parsed.fill_null(0.0).to_numpy()
        finite = np.isfinite(values)
        self.reject(~finite, field, "is not finite")
        values = np.where(finite, values, 0.0)
        self.reject(values < 0, field, "is negative")
        return values

    def clock(self, field: str, form: str) -> IntArray:
        """(R,) seconds since 1970-01-01 00:00 of a column of times in the form `form` of polars.

        `%Y-%m-%dT%H:%M:%S%#z` is ISO 8601 with Z or an offset. Times with an offset from UTC are
        taken to UTC; times without one stay what the clock shows.
        """
        times = self.text(field).str.to_datetime(form, strict=False, time_unit="ms")
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
            InputError: for the first faulty row, where `strict`; there is no row.
        """
        if not len(self.table):
            raise InputError("holds no row", file=self.table.path)
        found: list[tuple[int, RejectedRows]] = []
        for (field, reason, excluded), number in self._kinds.items():
            rows = np.flatnonzero(self._code == number)
            first = self.table.place(int(rows[0]))
            found.append((int(rows[0]), RejectedRows(field, reason, len(rows), first, excluded)))
        found.sort(key=lambda item: item[0])
        for row, fault in found if strict else ():
            if not fault.excluded:
                column = None if fault.field is None else self.table.get(fault.field)
                cell = "" if column is None else str(column[row])
                message = f"{cell!r} {fault.reason}" if cell else fault.reason
                raise InputError(
                    message, file=self.table.path, record=fault.first, field=fault.field
                )
        return tuple(rejected for _, rejected in found)


def has_control(texts: pl.Series) -> BoolArray:
    """Which of some texts hold a control character."""
    return texts.str.contains(UNPRINTABLE).fill_null(False).to_numpy()
