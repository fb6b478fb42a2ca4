"""A linear or mixed-integer program put together block by block, for HiGHS."""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class LinearProgram:
    """Minimise cost @ v subject to row_lower <= A v <= row_upper and column bounds.

    Columns and rows are numbered in the order in which they are added.
    """

    def __init__(self) -> None:
        self.num_columns = 0
        self._cost: list[FloatArray] = []
        self._lower: list[FloatArray] = []
        self._upper: list[FloatArray] = []
        self._integer: list[NDArray[np.bool_]] = []
        self._row_columns: list[IntArray] = []
        self._row_values: list[FloatArray] = []
        self._row_bounds: list[tuple[float, float]] = []

    @property
    def num_rows(self) -> int:
        """Constraints so far."""
        return len(self._row_bounds)

    def add_columns(
        self,
        shape: int | tuple[int, ...],
        *,
        cost: float = 0.0,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = highspy.kHighsInf,
        integer: bool = False,
    ) -> IntArray:
        """New variables; returns their numbers in an array of that shape.

        `lower` and `upper` broadcast to `shape`.
        """
        numbers = self.num_columns + np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        self.num_columns += numbers.size
        self._cost.append(np.full(numbers.size, cost))
        for column, bound in ((self._lower, lower), (self._upper, upper)):
            column.append(
                np.broadcast_to(np.asarray(bound, dtype=np.float64), numbers.shape).ravel()
            )
        self._integer.append(np.full(numbers.size, integer))
        return numbers

    def add_row(
        self,
        terms: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        lower: float = -highspy.kHighsInf,
        upper: float = highspy.kHighsInf,
    ) -> int:
        """One constraint: `terms` are pairs of columns and coefficients (broadcast to them).

        Coefficients of a column named twice add up. Returns the row's number.
        """
        columns: IntArray = np.concatenate(
            [np.asarray(column, dtype=np.int64).ravel() for column, _ in terms]
        )
        values = np.concatenate(
            [
                np.broadcast_to(np.asarray(value, dtype=np.float64), np.shape(column)).ravel()
                for column, value in terms
            ]
        )
        unique, inverse = np.unique(columns, return_inverse=True)
        total = np.bincount(inverse, weights=values, minlength=len(unique))
        self._row_columns.append(unique[total != 0.0])
        self._row_values.append(total[total != 0.0])
        self._row_bounds.append((lower, upper))
        return self.num_rows - 1

    def solver(self, *, time_limit: float, seed: int = 0) -> highspy.Highs:
        """A silent, single-threaded HiGHS with this program loaded; `time_limit` in seconds."""
        lp = highspy.HighsLp()
        lp.num_col_ = self.num_columns
        lp.num_row_ = self.num_rows
        lp.col_cost_ = np.concatenate(self._cost)
        lp.col_lower_ = np.concatenate(self._lower)
        lp.col_upper_ = np.concatenate(self._upper)
        bounds = np.array(self._row_bounds, dtype=np.float64).reshape(-1, 2)
        lp.row_lower_, lp.row_upper_ = bounds[:, 0], bounds[:, 1]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.concatenate(
            [[0], np.cumsum([len(row) for row in self._row_columns])]
        ).astype(np.int32)
        lp.a_matrix_.index_ = np.concatenate([*self._row_columns, []]).astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate([*self._row_values, []])
        integer = np.concatenate(self._integer)
        if integer.any():
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[int(flag)] for flag in integer]
        solver = highspy.Highs()
        solver.silent()
        for option, value in (("threads", 1), ("random_seed", seed), ("time_limit", time_limit)):
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        return solver
