"""Constants of a cluster from a table of its measured steps.

    python -m experiments.calibrate measured.path=steps.csv json=true

The file `constants.json` in the run folder is what `experiments.simulate calibration=...` and
`study=measured measured.calibration=...` take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from agents.hybrid.uniform import step_of
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count
from envs.errors import InputError
from envs.hybrid.transformer_row import Constants, KernelCost
from experiments.config.targets import build_as
from experiments.measured.steps import MeasuredStep, read_steps, with_constants
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.run.training_constants import write_constants

CONSTANTS_FILE = "constants.json"
TIMES = ("compute", "launch_s", "collective", "data", "pipeline")
UNIT_S = 1e-5  # in which the seconds of a launch are sought
PRIOR = 0.1  # weight of the logarithm of a constant, or of launches in `UNIT_S`, beside an error's
TOLERANCE = 0.1  # larger errors count by their size, not by their square
ROUNDS, STEP, CONVERGED = 6, 0.02, 0.005  # of Gauss and Newton's search
# Constants are sought between these logarithms; launches, in `UNIT_S`, from none.
LOWEST = np.array([-2.0, 0.0, -2.0, -2.0, -2.0])
HIGHEST = 2.0
MOST_MEMORY = 64e9  # bytes of a framework
SHOWN = ("rows", "constants", "error_before", "error_after", "error_left_out", "file")


@dataclass
class MeasuredConfig:
    """A table of steps."""

    path: str = "???"  # CSV, plain or gzip: the columns of docs/reality.md


@dataclass(kw_only=True)
class CalibrateConfig:
    """`conf/calibrate.yaml`."""

    measured: MeasuredConfig = field(default_factory=MeasuredConfig)
    cost: Any
    samples: Count = 2000  # of the bootstrap
    seed: int
    json: bool


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Constants, and how the logarithms of times change with what was sought.

    Attributes:
        constants: found.
        residual: (R,) logarithms of predicted over measured, at them.
        slope: (R, 5) of those by what is sought.
        place: (5,) where it was found.
        memory: (R, 2) bytes left for the framework, and at the peak; NaN: none were measured.
    """

    constants: Constants
    residual: FloatArray
    slope: FloatArray
    place: FloatArray
    memory: FloatArray

    def intervals(self, samples: int, seed: int) -> dict[str, tuple[float, float]]:
        """95 % of every constant over resampled rows, to first order about what was found."""
        rows = np.arange(len(self.residual))

        def again(chosen: IntArray) -> FloatArray:
            moved = _step(self.residual[chosen], self.slope[chosen], self.place)
            return _sought(np.clip(moved, LOWEST, HIGHEST))

        found = _percentiles(again, rows, samples, seed)
        named = dict(zip(TIMES, found, strict=True))
        known = np.flatnonzero(~np.isnan(self.memory[:, 0]))
        if len(known) > 1:
            (named["framework_bytes"],) = _percentiles(
                lambda chosen: np.array([_memory_of(self.memory[chosen])]), known, samples, seed
            )
        return named


def _percentiles(
    statistic: Callable[[IntArray], FloatArray], rows: IntArray, samples: int, seed: int
) -> list[tuple[float, float]]:
    interval = bootstrap(
        (rows,), statistic, vectorized=False, n_resamples=samples, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return [(float(a), float(b)) for a, b in zip(interval.low, interval.high, strict=True)]


def calibrate(steps: Sequence[MeasuredStep]) -> Calibrated:
    """The constants under which simulated steps are most like measured ones.

    Robust least squares of logarithms, each constant drawn to what physics says: with few rows, or
    rows that say nothing of it, it stays there. The framework's memory is what leaves the least
    sum of relative errors of measured peaks.

    Raises:
        InputError: there is no row that can be priced.
    """
    known = [step for step in steps if step.row is not None]
    if not known:
        raise InputError("holds no row that can be priced", field="measured.path")

    def errors(place: FloatArray) -> FloatArray:
        priced = with_constants(known, _constants(place))
        return np.array([_error(step) for step in priced])

    place = np.zeros(len(TIMES))
    for _ in range(ROUNDS):
        residual, slope = _linear(errors, place)
        moved = np.clip(_step(residual, slope, place), LOWEST, HIGHEST)
        if np.abs(moved - place).max() < CONVERGED:
            break
        place = moved
    memory = np.array([_left_for_framework(step) for step in known])
    constants = _constants(place)
    if not np.isnan(memory).all():
        constants = replace(constants, framework_bytes=_memory_of(memory))
    return Calibrated(constants, residual, slope, place, memory)


def _linear(
    errors: Callable[[FloatArray], FloatArray], place: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """((R,) errors at a place, (R, 5) how they change about it)."""
    here = errors(place)
    slope = [(errors(place + STEP * axis) - here) / STEP for axis in np.eye(len(place))]
    return here, np.stack(slope, axis=1)


def _constants(place: FloatArray) -> Constants:
    return Constants(**dict(zip(TIMES, _sought(place).tolist(), strict=True)))


def _sought(place: FloatArray) -> FloatArray:
    """Constants from where the search is: logarithms, but for launches."""
    values = np.exp(place)
    launch = TIMES.index("launch_s")
    values[launch] = place[launch] * UNIT_S
    return values


def _step(residual: FloatArray, slope: FloatArray, place: FloatArray) -> FloatArray:
    """Where some rows alone would have the search end, by one step of Gauss and Newton."""
    weight = (1.0 + (residual / TOLERANCE) ** 2) ** -0.25
    rows = np.concatenate([slope * weight[:, None], PRIOR * np.eye(len(place))])
    wrong = np.concatenate([residual * weight, PRIOR * place])
    moved: FloatArray = place - np.linalg.lstsq(rows, wrong, rcond=None)[0]
    return moved


def _error(step: MeasuredStep) -> float:
    assert step.row is not None
    return float(np.log(step_of(step.row)[0] / step.seconds))


def _left_for_framework(step: MeasuredStep) -> tuple[float, float]:
    if step.row is None or step.peak_bytes is None:
        return np.nan, np.nan
    needed = step_of(step.row)[1] - step.row.constants.framework_bytes
    return float(np.clip(step.peak_bytes - needed, 0.0, MOST_MEMORY)), step.peak_bytes


def _memory_of(memory: FloatArray) -> float:
    """The framework's bytes with the least sum of relative errors of peaks."""
    left, peak = memory[~np.isnan(memory[:, 0])].T
    order = np.argsort(left, kind="stable")
    weight = np.cumsum(1.0 / peak[order])
    return float(left[order][np.searchsorted(weight, weight[-1] / 2.0)])


def left_out(steps: Sequence[MeasuredStep]) -> dict[str, FloatArray]:
    """By model: relative errors of its rows under constants of the other models' rows.

    With one model alone, every fifth row is left out in turn.
    """
    known = [step for step in steps if step.row is not None]
    models = list(dict.fromkeys(step.model + _size(step) for step in known))
    groups = [step.model + _size(step) for step in known]
    if len(models) < 2:
        groups = [f"part {number % 5}" for number in range(len(known))]
    found = {}
    for group in dict.fromkeys(groups):
        others = [step for step, own in zip(known, groups, strict=True) if own != group]
        own = [step for step, its in zip(known, groups, strict=True) if its == group]
        constants = calibrate(others).constants
        found[group] = np.exp([_error(step) for step in with_constants(own, constants)]) - 1.0
    return found


def _size(step: MeasuredStep) -> str:
    assert step.row is not None
    return f" {step.row.parameter_count / 1e9:.3g} B"


def calibrating(config: CalibrateConfig, run: Run) -> Result:
    """Fit, judge on models left out, write."""
    cost = build_as(KernelCost, config.cost, "cost", "cost of kernels")
    steps = read_steps(config.measured.path, cost)
    known = [step for step in steps if step.row is not None]
    if len(known) < 2:
        reason = f"holds {len(known)} rows that can be priced, of 2 at least"
        raise InputError(reason, field="measured.path")
    run.begin("fitting constants")
    found = calibrate(steps)
    run.begin("fitting them without one model after the other")
    apart = left_out(steps)
    before = np.abs(np.exp([_error(step) for step in known]) - 1.0).mean()
    after = np.abs(np.exp(found.residual) - 1.0).mean()
    intervals = found.intervals(config.samples, config.seed)
    provenance = run.provenance.with_inputs(measured=file_hash(config.measured.path))
    file = run.folder / CONSTANTS_FILE
    write_constants(file, found.constants, intervals, provenance)
    rows = [
        [name.name, f"{getattr(found.constants, name.name):.4g}",
         "{:.4g} to {:.4g}".format(*intervals[name.name]) if name.name in intervals else ""]
        for name in fields(Constants)
    ]  # fmt: skip
    errors = [
        [name, str(len(wrong)), f"{np.abs(wrong).mean():.1%}", f"{np.abs(wrong).max():.1%}"]
        for name, wrong in apart.items()
    ]
    tables = [
        Table("Constants", ["constant", "value", "95 %"], rows),
        Table("Errors of what was left out", ["model", "rows", "mean", "worst"], errors),
    ]
    write_tables(run, "Calibration", tables, provenance)
    return Result(
        {
            "rows": len(steps),
            "not_priced": [
                {"row": step.place, "reason": step.reason} for step in steps if step.row is None
            ],
            "constants": {
                name.name: getattr(found.constants, name.name) for name in fields(Constants)
            },
            "intervals": {name: list(interval) for name, interval in intervals.items()},
            "error_before": 100.0 * float(before),
            "error_after": 100.0 * float(after),
            "error_left_out": 100.0 * float(np.abs(np.concatenate(list(apart.values()))).mean()),
            "left_out": {name: (100.0 * wrong).tolist() for name, wrong in apart.items()},
            "unit": "percent of the measured time",
            "file": str(file),
        },
        provenance,
        SHOWN,
    )
