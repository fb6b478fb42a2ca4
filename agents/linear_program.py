"""A linear or mixed-integer program put together block by block, for HiGHS."""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_array, csr_array

from envs.arrays import BoolArray, FloatArray, IntArray

_KINDS = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)


class LinearProgram:
    """Minimise cost @ v subject to row_lower <= A v <= row_upper and column bounds.

    Columns and rows are numbered in the order in which they are added.
    """

    def __init__(self) -> None:
        self.num_columns = 0
        self.num_rows = 0
        self._cost: list[FloatArray] = []
        self._lower: list[FloatArray] = []
        self._upper: list[FloatArray] = []
        self._integer: list[BoolArray] = []
        self._entry_row: list[IntArray] = []
        self._entry_column: list[IntArray] = []
        self._entry_value: list[FloatArray] = []
        self._row_lower: list[FloatArray] = []
        self._row_upper: list[FloatArray] = []

    def add_columns(
        self,
        shape: int | tuple[int, ...],
        *,
        cost: ArrayLike = 0.0,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = highspy.kHighsInf,
        integer: bool = False,
    ) -> IntArray:
        """New variables; returns their numbers in an array of that shape.

        `cost`, `lower` and `upper` broadcast to `shape`.
        """
        numbers = self.num_columns + np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        self.num_columns += numbers.size
        for column, bound in ((self._cost, cost), (self._lower, lower), (self._upper, upper)):
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
        self.add_rows(
            1,
            [
                (flat[None, :], np.broadcast_to(np.asarray(value, dtype=np.float64),
                                                np.shape(column)).ravel()[None, :])
                for column, value in terms
                for flat in (np.asarray(column, dtype=np.int64).ravel(),)
            ],
            lower=lower,
            upper=upper,
        )  # fmt: skip
        return self.num_rows - 1

    def add_rows(
        self,
        count: int,
        terms: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        lower: ArrayLike = -highspy.kHighsInf,
        upper: ArrayLike = highspy.kHighsInf,
    ) -> IntArray:
        """`count` constraints at once; returns their numbers.

        `terms` are pairs of columns (count,) or (count, K) and coefficients, which broadcast to
        them; `lower` and `upper` broadcast to (count,). Coefficients of a column named twice in a
        row add up.
        """
        rows = self.num_rows + np.arange(count, dtype=np.int64)
        self.num_rows += count
        for column, value in terms:
            columns = np.asarray(column, dtype=np.int64)
            columns = columns[:, None] if columns.ndim == 1 else columns
            values = np.asarray(value, dtype=np.float64)
            values = values[:, None] if values.ndim == 1 else values
            self._entry_row.append(np.repeat(rows, columns.shape[1]))
            self._entry_column.append(columns.ravel())
            self._entry_value.append(np.broadcast_to(values, columns.shape).ravel())
        for side, bound in ((self._row_lower, lower), (self._row_upper, upper)):
            side.append(np.broadcast_to(np.asarray(bound, dtype=np.float64), (count,)))
        return rows

    def solver(self, *, time_limit: float, seed: int = 0) -> highspy.Highs:
        """A silent, single-threaded HiGHS with this program loaded; `time_limit` in seconds."""
        matrix = self._matrix()
        lp = highspy.HighsLp()
        lp.num_col_ = self.num_columns
        lp.num_row_ = self.num_rows
        lp.col_cost_ = np.concatenate(self._cost)
        lp.col_lower_ = np.concatenate(self._lower)
        lp.col_upper_ = np.concatenate(self._upper)
        lp.row_lower_ = np.concatenate([*self._row_lower, np.zeros(0)])
        lp.row_upper_ = np.concatenate([*self._row_upper, np.zeros(0)])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
        lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
        lp.a_matrix_.value_ = matrix.data
        integer = np.concatenate(self._integer)
        if integer.any():
            lp.integrality_ = [_KINDS[flag] for flag in integer.tolist()]
        solver = highspy.Highs()
        solver.silent()
        for option, setting in (("threads", 1), ("random_seed", seed), ("time_limit", time_limit)):
            solver.setOptionValue(option, setting)
        solver.passModel(lp)
        return solver

    def _matrix(self) -> csr_array:
        """The coefficients: columns ascend in each row, those named twice are added, no zeros."""
        row, column, value = (
            np.concatenate(entries) if entries else np.zeros(0, np.int64)
            for entries in (self._entry_row, self._entry_column, self._entry_value)
        )
        found = coo_array((value, (row, column)), (self.num_rows, self.num_columns)).tocsr()
        found.eliminate_zeros()
        return found


def best_values(solver: highspy.Highs) -> FloatArray | None:
    """Runs the solver; the columns of the best solution it found, None where it found none."""
    solver.run()
    feasible = highspy.SolutionStatus.kSolutionStatusFeasible
    if solver.getInfo().primal_solution_status != feasible:
        return None
    return np.array(solver.getSolution().col_value, dtype=np.float64)
