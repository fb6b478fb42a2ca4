"""A CSV file as columns of text, with the line of each row; plain or gzip."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.errors import InputError
from envs.files import read_content

SEPARATOR = ","


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
    cells: NDArray[np.int64]
    width: int

    def __len__(self) -> int:
        return len(self.cells)

    def get(self, field: str) -> pl.Series | None:
        """A column; None where the file does not have it."""
        return self.columns.get(field)


def read_table(path: str | Path, required: Sequence[str], optional: Sequence[str] = ()) -> Table:
    """The named columns of a CSV file with a header, in any order; other columns are not read.

    UTF-8 with or without byte order mark, lines end in LF or CRLF, blank lines do not count.

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
    for name in required:
        if name not in header:
            raise InputError("is missing", file=path, record="header", field=name)
    for name in (*required, *optional):
        if header.count(name) > 1:
            raise InputError("stands twice", file=path, record="header", field=name)
    if not len(cells):
        raise InputError("holds no job", file=path)
    named = {name: columns[header.index(name)] for name in (*required, *optional) if name in header}
    return Table(
        path=path,
        columns={name: column.fill_null("").str.strip_chars() for name, column in named.items()},
        place=lambda row: f"row {row + 1} (line {lines[row]})",
        cells=cells,
        width=len(header),
    )


_Split = tuple[list[str], list[pl.Series], NDArray[np.int64], NDArray[np.int64]]


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
