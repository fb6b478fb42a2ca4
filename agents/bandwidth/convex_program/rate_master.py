"""The linear program of `convex`: rates of channels, slowness of crossings, paths as cuts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from agents.bandwidth.convex_program.piped_step import Path, PipedStep
from agents.bandwidth.convex_program.rate_dual import PipeRange
from agents.linear_program import LinearProgram

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_TOLERANCE = 1e-10  # of the scaled program, primal and dual
_LEAST_SECONDS = 0.1  # for one solution, however near the deadline
_NEAREST_TO_ZERO = 1e-6  # in units of the pipe: tangents nearer to rate 0 are too steep


@dataclass(frozen=True, eq=False)
class MasterSolution:
    """What the linear program found, and its multipliers."""

    rate: FloatArray  # (C,) bytes/s
    slowness: FloatArray  # (J,) seconds per byte
    path_weight: FloatArray  # (K,) of the paths, in the order in which they were added
    link_price: FloatArray  # (links,) seconds per byte/s


class RateMaster:
    """Minimise the longest of some paths over rates within the links.

    Every pipe has a `unit` (P,) in bytes/s of its own, near the rate that it is going to have:
    small flows beside large ones would lose their digits otherwise. Rates are in units of their
    pipe, slowness in 1 / unit, times in `seconds`.
    """

    def __init__(self, step: PipedStep, pipes: IntArray, unit: FloatArray, seconds: float) -> None:
        network = step.network
        number = network.channel_pipe
        self._step = step
        self._seconds = seconds
        self._unit = unit  # (P,)
        of_pipe = np.ones(step.num_servers**2)
        of_pipe[pipes] = unit
        self._channel_unit = of_pipe[number]  # (C,)
        self._crossing_unit = of_pipe[step.pipe]  # (J,)
        self._crossings = [np.flatnonzero(step.pipe == pipe) for pipe in pipes]
        used = np.isin(number, pipes)
        program = LinearProgram()
        self._finish = int(program.add_columns(1, cost=1.0)[0])
        self._rate = program.add_columns(
            network.num_channels, upper=np.where(used, highspy.kHighsInf, 0.0)
        )
        self._pipe = program.add_columns(len(pipes))
        self._slow = program.add_columns(step.num_crossings, lower=self._crossing_unit / step.inner)
        self._room = np.where(network.link_capacity > 0.0, network.link_capacity, 1.0)
        share = network.incidence * self._channel_unit / self._room[:, None]
        self._links = np.array(
            [
                program.add_row([(self._rate, row)], upper=float(full))
                for row, full in zip(share, network.link_capacity > 0.0, strict=True)
            ],
            dtype=np.int64,
        )
        for column, pipe in zip(self._pipe, pipes, strict=True):
            together = [(self._rate[number == pipe], 1.0), (column, -1.0)]
            program.add_row(together, lower=0.0, upper=0.0)
        self._paths: list[int] = []
        self._most = np.zeros(step.num_crossings)  # what slowness 1 adds to a path, at most
        self._touched: list[list[float]] = [[] for _ in pipes]  # where tangents are, in units
        self._rows = program.num_rows
        self._solver = program.solver(time_limit=highspy.kHighsInf)
        for side in ("primal", "dual"):
            self._solver.setOptionValue(f"{side}_feasibility_tolerance", _TOLERANCE)

    def add_path(self, path: Path) -> None:
        """The step takes no less than `path`."""
        used = np.flatnonzero(path.volume)
        slow = -path.volume[used] / (self._crossing_unit[used] * self._seconds)
        columns, values = np.append(self._slow[used], self._finish), np.append(slow, 1.0)
        self._paths.append(self._row(path.constant / self._seconds, columns, values))
        self._most[used] = np.maximum(self._most[used], -slow)

    def add_tangents(self, pipes: FloatArray, error: float) -> None:
        """The slowness of each pipe lies above the tangent of 1 / B at `pipes` (P,) bytes/s.

        Left out where the tangents so far are so near to 1 / B that no path can be wrong by more
        than `error` seconds for all of them together.
        """
        near = np.maximum(pipes / self._unit, _NEAREST_TO_ZERO)
        allowed = error / self._seconds / max(len(self._pipe), 1)
        for row, (column, at, crossings) in enumerate(
            zip(self._pipe, near.tolist(), self._crossings, strict=True)
        ):
            known = self._touched[row]
            below = 1.0 / at - max((2.0 / x - at / x**2 for x in known), default=0.0)
            if known and below * self._most[crossings].sum() <= allowed:
                continue
            known.append(at)
            for crossing in crossings:
                columns = np.array([self._slow[crossing], column])
                self._row(2.0, columns, np.array([at, 1.0 / at]))

    def bound_pipes(self, within: PipeRange) -> None:
        """Look only at rates within these."""
        low, high = within.low / self._unit, within.high / self._unit
        for column, least, most in zip(self._pipe, low, high, strict=True):
            self._solver.changeColBounds(int(column), least, most)

    def solve(self, deadline: float) -> MasterSolution | None:
        """The solution for the paths and tangents so far; None when there was no time for one."""
        left = max(deadline - time.perf_counter(), _LEAST_SECONDS)
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + left)
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._solver.getSolution()
        value, dual = np.array(solution.col_value), np.array(solution.row_dual)
        return MasterSolution(
            rate=np.maximum(value[self._rate], 0.0) * self._channel_unit,
            slowness=np.maximum(value[self._slow], 0.0) / self._crossing_unit,
            path_weight=np.maximum(dual[self._paths], 0.0),
            link_price=np.maximum(-dual[self._links], 0.0) * self._seconds / self._room,
        )

    def _row(self, lower: float, columns: IntArray, values: FloatArray) -> int:
        added = columns.astype(np.int32)
        self._solver.addRow(lower, highspy.kHighsInf, len(added), added, values)
        self._rows += 1
        return self._rows - 1
