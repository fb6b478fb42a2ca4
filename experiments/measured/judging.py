"""Predicted beside measured: whole models, layers, kernels, training steps.

python -m experiments.study study=measured measured.kind=layers
python -m experiments.study study=measured measured.kind=models measured.path=<table> cost=roofline
python -m experiments.study study=measured measured.kind=kernels measured.leave_out=true
python -m experiments.study study=measured measured.kind=steps measured.calibration=<constants.json>

The run folder receives predictions.csv, table.md, table.json and a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from agents.hybrid.uniform import step_of
from envs.arrays import FloatArray
from envs.bounds import Count
from envs.errors import InputError, refused_in, require_one_of
from envs.graphs.kernels import Kernels
from envs.graphs.transformer import Execution, Part
from envs.hardware.devices import DeviceSpec
from experiments.measured.leaving_out import Data, fitted_without
from experiments.measured.models import NO_OTHERS, NotPricedError, Server, known_as
from experiments.measured.pricing import LEARNED, Cost, Costs, cost_of, element_bytes, row_seconds
from experiments.measured.steps import read_steps
from experiments.measured.tables import (
    FAMILIES,
    MeasuredKernels,
    ModelRow,
    found_table,
    plain_rate,
    read_kernels,
    read_layers,
    read_models,
)
from experiments.pictures.learning import draw_ratios
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_text
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.training_constants import read_constants

PREDICTIONS_FILE, PICTURE_FILE = "predictions.csv", "predicted.png"
# Servers in which the published layers ran, where others of the same devices are joined otherwise.
OF_LAYERS = {
    "A100-80GB": "NVLink 3 board of 4", "GH200": "NVLink 4 board of 4", "RTX-3090": "PCIe 3",
    "RTX-3090/2": "NVLink bridge",
}  # fmt: skip
UNTIMED = 0.05  # of the pass forward: an embedding's pass back that is shorter was not run


@dataclass
class TableConfig:
    """`measured` in `conf/measured.yaml`."""

    kind: str
    path: str | None
    leave_out: bool
    training: str
    tensor_parallel: Count | None
    devices: dict[str, str]
    links: dict[str, str]
    float32: list[str]
    calibration: str | None


@dataclass(kw_only=True)
class MeasuredConfig:
    """`conf/measured.yaml`."""

    measured: TableConfig
    cost: str = LEARNED  # learned, roofline, or the folder of a learned one
    seed: int
    json: bool


class Row(NamedTuple):
    """A measured row beside what was predicted."""

    place: str
    labels: Mapping[str, str | int]
    measured_s: float
    predicted_s: float  # NaN where it is not priced
    reason: str = ""  # why it is not
    more: Mapping[str, float] = {}  # other columns of the predictions


class Judge(Protocol):
    """Prices the rows of a table, each with the cost of its device."""

    def __call__(self, path: str, config: TableConfig, cost: Costs) -> list[Row]:
        """All rows of the file."""


def price_kernels(table: MeasuredKernels, cost: Costs) -> list[Row]:
    """Kernels alone, as they were measured."""
    found = table.predicted(lambda kernels, spec: cost(spec)(kernels, spec, alone=True))
    labels = [
        {"gpu": table.devices[device].name, "family": FAMILIES[name].name.lower(), "operator": name}
        for device, name in zip(table.device.tolist(), table.operators, strict=True)
    ]
    numbers = zip(labels, table.seconds.tolist(), found.tolist(), strict=True)
    return [Row(f"row {row}", *columns) for row, columns in enumerate(numbers, 1)]


def price_models(
    rows: Sequence[ModelRow], cost: Costs, links: Mapping[str, str] = NO_OTHERS
) -> list[Row]:
    """Whole models, in float32 without TF32 where the table names no precision."""
    found = []
    for row in rows:
        passes, reason = np.full(2, np.nan), ""
        try:
            passes = row_seconds(row, cost(row.device), links)
        except NotPricedError as error:
            reason = str(error)
        labels: dict[str, str | int] = {
            "gpu": row.device.name, "model": row.model, "mode": row.mode,
            "parallel": row.parallel or "none", "batch": row.batch, "sequence": row.size.sequence,
        }  # fmt: skip
        more = _more(row.parts.forward_s, row.parts.backward_s, passes)
        found.append(Row(row.place, labels, row.seconds, float(passes.sum()), reason, more))
    return found


def price_layers(path: str, config: TableConfig, cost: Costs) -> list[Row]:
    """Layers forward and backward with Megatron-LM's loss, in TF32 where the device has it.

    Embeddings whose pass back took no time were not run back, and count forward alone.
    """
    found = []
    plain = {known_as(one) for one in config.float32}
    for row in read_layers(path, config.devices):
        if config.tensor_parallel not in (None, row.tensor):
            continue
        fast = "tfloat32" in row.device.peak_flops
        fast = fast and known_as(f"{row.model}/{row.gpu}") not in plain
        rate = row.precision or ("tfloat32" if fast else plain_rate(row.device))
        execution = Execution(
            rate=rate, element_bytes=element_bytes(rate), tensor=row.tensor, parallel_loss=True
        )
        server = Server(row.device, cost(row.device), {**OF_LAYERS, **config.links})
        passes = server.layer(row.size, row.part, row.micro_batch, execution)
        parts = row.parts
        short = UNTIMED * parts.forward_s if row.part is Part.EMBEDDING else 0.0
        if parts.backward_s <= short:
            passes[1] = 0.0
        labels: dict[str, str | int] = {
            "gpu": row.device.name, "model": row.model, "layer": row.layer,
            "tensor_parallel": row.tensor, "micro_batch": row.micro_batch,
        }  # fmt: skip
        more = _more(*parts, passes)
        found.append(Row(row.place, labels, sum(parts), float(passes.sum()), more=more))
    return found


class _ByDevice:
    """A cost of each device, as the layers of a run ask for it."""

    def __init__(self, cost: Costs) -> None:
        self._cost = cost

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec) -> FloatArray:
        """(K,) seconds amid others of a step."""
        return self._cost(spec)(kernels, spec)


def price_steps(path: str, config: TableConfig, cost: Costs) -> list[Row]:
    """Whole training steps on many devices."""
    constants = read_constants(config.calibration)
    found = []
    for step in read_steps(path, _ByDevice(cost), constants, config.devices):
        labels: dict[str, str | int] = {"gpu": step.device, "model": step.model}
        predicted, more = np.nan, {}
        if step.row is not None:
            run, size = step.row.run, f"{step.row.parameter_count / 1e9:.3g} B"
            labels |= {
                "size": size, "tensor_parallel": run.tensor,
                "pipeline_parallel": run.pipeline, "data_parallel": run.data,
                "micro_batch": run.micro_batch,
                "plans": f"{size} on {run.devices} GPUs, batch {run.global_batch}",
            }  # fmt: skip
            predicted, peak = step_of(step.row)
            more = {"predicted_peak_bytes": peak}
            if step.peak_bytes is not None:
                more["measured_peak_bytes"] = step.peak_bytes
        found.append(Row(step.place, labels, step.seconds, predicted, step.reason, more))
    return found


def rankings(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of plans of one model, devices and batch: how alike measured and predicted order them.

    Spearman's rank correlation, and the regret: seconds of the plan that is predicted to be the
    fastest over those of the fastest, less 1. Of groups with three rows or more.
    """
    found = {}
    for name, own in grouped(rows, "plans").items() if rows and "plans" in rows[0].labels else ():
        measured = np.array([row.measured_s for row in own])
        predicted = np.array([row.predicted_s for row in own])
        if len(own) > 2:
            found[name] = {
                "rows": len(own),
                "rank_correlation": float(spearmanr(measured, predicted).statistic),
                "regret": float(measured[predicted.argmin()] / measured.min() - 1.0),
            }
    return found


def memory_error(rows: Sequence[Row]) -> float | None:
    """Mean absolute error of peaks of memory in percent; None: none were measured."""
    errors = [
        abs(row.more["predicted_peak_bytes"] / row.more["measured_peak_bytes"] - 1.0)
        for row in rows
        if "measured_peak_bytes" in row.more
    ]
    return 100.0 * float(np.mean(errors)) if errors else None


def _more(forward_s: float, backward_s: float, passes: FloatArray) -> dict[str, float]:
    return {
        "measured_forward_s": forward_s, "measured_backward_s": backward_s,
        "predicted_forward_s": float(passes[0]), "predicted_backward_s": float(passes[1]),
    }  # fmt: skip


JUDGES: Mapping[str, Judge] = {
    "models": lambda path, config, cost: price_models(
        read_models(path, config.devices), cost, config.links
    ),
    "layers": price_layers,
    "kernels": lambda path, config, cost: price_kernels(read_kernels(path, config.devices), cost),
    "steps": price_steps,
}
COLOURED = {"layers": "layer", "kernels": "family"}  # the label that a picture shows, if not gpu
FITTED_APART = ("models", "kernels")  # kinds for which each GPU may be left out


def judge(config: MeasuredConfig, run: Run) -> Result:
    """Price every row, compare, draw."""
    about = config.measured
    require_one_of(about.kind, tuple(JUDGES), field="measured.kind")
    path = about.path
    if path is None:
        with refused_in("config key 'measured.path'"):
            path = found_table(about.training, about.kind)
    cost, inputs = _costs(config, run)
    rows = JUDGES[about.kind](path, about, cost)
    if not rows:
        raise InputError("holds no row that was asked for", file=path)
    provenance = run.provenance.with_files(path, *inputs)
    priced = [row for row in rows if not row.reason]
    by = breakdowns(priced)
    title = f"{Path(path).name}: predicted beside measured"
    whole = {"": {"rows": len(priced), **errors_of(priced)}} if priced else {}
    tables = [_table(title, "all rows", whole)]
    tables += [_table(f"by {label}", label, found) for label, found in by.items()]
    label, figures = COLOURED.get(about.kind, "gpu"), {}
    if priced:
        points = {
            name: tuple(np.array([(x.measured_s, x.predicted_s) for x in own]).T)
            for name, own in grouped(priced, label).items()
        }
        figures[PICTURE_FILE] = draw_ratios(points, title)
    values: dict[str, Any] = {
        "measured": about.kind,
        "cost": config.cost,
        "rows": len(rows),
        "priced": len(priced),
        **(errors_of(priced) if priced else dict.fromkeys(ERRORS)),
        "not_priced": [{"row": row.place, "reason": row.reason} for row in rows if row.reason],
        "memory_mean_absolute_percentage_error": memory_error(priced),
        "rankings": rankings(priced),
        "by": by,
    }
    table_file = write_tables(run, title, tables, provenance, numbers=values, figures=figures)
    write_text(run.folder / PREDICTIONS_FILE, _frame(rows).write_csv())
    for row in [row for row in rows if row.reason][:MOST_SAID]:
        run.console.say(f"not priced: {row.place}: {row.reason}")
    values |= {
        "predictions": str(run.folder / PREDICTIONS_FILE),
        "table": table_file,
        "seconds": run.seconds,
    }
    return Result(values, provenance, ("rows", "priced", *ERRORS, "predictions", "seconds"))


MOST_SAID = 20
MEAN, MEDIAN = "mean_absolute_percentage_error", "median_absolute_percentage_error"
ERRORS = (
    MEAN, MEDIAN,
    "worst_absolute_percentage_error", "geometric_mean_ratio",
)  # fmt: skip


def errors_of(rows: Sequence[Row]) -> dict[str, float]:
    """`ERRORS` of priced rows, in percent of what was measured."""
    ratio = np.array([row.predicted_s / row.measured_s for row in rows])
    error = 100.0 * np.abs(ratio - 1.0)
    found = error.mean(), np.median(error), error.max(), np.exp(np.log(ratio).mean())
    return dict(zip(ERRORS, map(float, found), strict=True))


def breakdowns(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """label -> its value -> `errors_of` and the number of rows."""
    labels = rows[0].labels if rows else {}
    return {
        label: {
            name: {"rows": len(own), **errors_of(own)} for name, own in grouped(rows, label).items()
        }
        for label in labels
    }


def grouped(rows: Sequence[Row], label: str) -> dict[str, list[Row]]:
    """Rows by the value of a label, in order."""
    found: dict[str | int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.labels[label], []).append(row)
    return {str(name): found[name] for name in sorted(found)}


def _table(title: str, label: str, found: Mapping[str, Mapping[str, float]]) -> Table:
    columns = {
        label: "{name}", "rows": "{rows}", "mean error %": "{mean_absolute_percentage_error:.1f}",
        "median": "{median_absolute_percentage_error:.1f}",
        "worst": "{worst_absolute_percentage_error:.1f}",
        "predicted / measured": "{geometric_mean_ratio:.3f}",
    }  # fmt: skip
    return Table.of(title, columns, [{"name": name, **x} for name, x in found.items()])


def _frame(rows: Sequence[Row]) -> pl.DataFrame:
    """All columns of every row."""
    return pl.DataFrame(
        [
            {
                "row": row.place, **row.labels, "measured_s": row.measured_s,
                "predicted_s": row.predicted_s, "ratio": row.predicted_s / row.measured_s,
                **row.more, "not_priced": row.reason,
            }
            for row in rows
        ],
        infer_schema_length=None,
    )  # fmt: skip


def _costs(config: MeasuredConfig, run: Run) -> tuple[Costs, Sequence[str | Path]]:
    """The cost of each device, and the files that it comes from."""
    about = config.measured
    if not about.leave_out:
        cost, files = cost_of(config.cost)
        return lambda _: cost, files
    with refused_in("config key 'measured.leave_out'"):
        if config.cost != LEARNED or about.kind not in FITTED_APART:
            raise InputError("fits networks of its own for kernels and models, with cost=learned")
    data = Data.read(about.training)
    known: dict[str, Cost] = {}

    def cost_without(spec: DeviceSpec) -> Cost:
        if spec.name not in known:
            with ProgressDisplay(run.console) as display:
                known[spec.name] = fitted_without(data, spec.name, config.seed, display)
        return known[spec.name]

    return cost_without, data.files
