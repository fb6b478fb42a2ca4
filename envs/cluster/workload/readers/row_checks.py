"""Which rows of a table are wrong, and why: the first fault of each row counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.cluster.workload.readers.table import Table
from envs.errors import InputError

MOST_GPUS = 2**31 - 1
_EXACT = 2**53  # above it not every whole number is a float

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


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
        """Mark faulty rows."""
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

    def whole(self, field: str, least: int = 0, most: int = _EXACT) -> IntArray:
        """(R,) a column of whole numbers; wrong rows are marked and hold `least`."""
        numbers = self.numbers(field)
        self.reject(numbers != np.floor(numbers), field, "is not a whole number")
        self._bound(numbers, field, least, most)
        return np.where(self.kept, numbers, least).astype(np.int64)

    def numbers(self, field: str) -> NDArray[np.float64]:
        """(R,) a column of finite numbers of at least 0; wrong rows are marked and hold 0."""
        text = self.table.columns[field]
        blank = (text == "").to_numpy()
        self.reject(blank, field, "is missing")
        parsed = text.cast(pl.Float64, strict=False)
        self.reject(parsed.is_null().to_numpy(), field, "is not a number")
        values = parsed.fill_null(0.0).to_numpy()
        self.reject(~np.isfinite(values), field, "is not finite")
        values = np.where(np.isfinite(values), values, 0.0)
        self.reject(values < 0, field, "is negative")
        return values

    def _bound(self, values: NDArray[np.float64], field: str, least: int, most: int) -> None:
        if least > 0:
            self.reject(values == 0, field, "is zero")
        self.reject(values < least, field, f"is below {least}")
        self.reject(values > most, field, "is too large")

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
        """Mark ids that are missing, and those that a sound row further up has too."""
        self.reject((ids == "").to_numpy(), field, "is missing")
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
