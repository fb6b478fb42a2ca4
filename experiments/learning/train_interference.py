"""Train the network that predicts how jobs slow each other down, and examine it on unseen models.

python -m experiments.train model=interference measurements.gavel=simulation_throughputs.json.gz \\
    measurements.deepshare=<folder of DeepShare's tables>

The run folder is what `interference=learned interference.path=<run folder>` takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from envs.cluster.interference.deepshare import ISOLATED, SHARED
from envs.errors import InputError
from experiments.learning.interference_errors import (
    COVERAGE_COLUMNS,
    JOB,
    MODEL,
    NETWORK,
    Coverage,
    Errors,
    coverages,
    error_cells,
    errors_of,
    joined,
    network_errors,
)
from experiments.pictures.learning import Points, draw_errors, draw_predicted
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_figure
from experiments.run.provenance import Provenance, file_hash
from experiments.run.tables import TABLE_FILE, Table, write_tables
from experiments.run.targets import build, no_such_thing
from models.interference.baselines import baselines
from models.interference.crossval import (
    CrossValidation,
    Examined,
    calibration_on,
    cross_validate,
    examine,
    fold_without,
)
from models.interference.fit import FitConfig, Task, fit
from models.interference.measurements import (
    Measurements,
    deepshare_measurements,
    gavel_measurements,
)
from models.interference.rates import PREDICTORS, predictor_of, save_predictor

PREDICTED_FILE, ERRORS_FILE = "predicted.png", "errors.png"
WIDTH = 130  # columns of the table where the console is none
CAPTION = (
    "Mean absolute errors of the throughput beside a neighbour, alone = 1, of pairs that a method "
    "has not seen. Unseen is a whole model, or one job (a batch size or placement) while others "
    "of its model are known. To every method an unseen job is known by its profile alone and by "
    "its measurements beside the probes; those are not among the errors."
)


@dataclass
class MeasurementsConfig:
    """Files of measurements."""

    gavel: str | None
    deepshare: str | None


@dataclass
class EvaluationConfig:
    """What is left out, and what is told of it."""

    probes: int
    other_probes: list[int]
    single_jobs: bool
    levels: list[float]
    eta_over_beta: float

    def __post_init__(self) -> None:
        for key, count in (
            ("probes", self.probes),
            *(("other_probes", k) for k in self.other_probes),
        ):
            if count < 0:
                raise InputError(f"config key 'evaluation.{key}': {count} is negative")
        if not self.levels or not all(0.0 < level < 1.0 for level in self.levels):
            raise InputError("config key 'evaluation.levels': are no shares between 0 and 1")
        if not 0.0 <= self.eta_over_beta < float("inf"):
            raise InputError("config key 'evaluation.eta_over_beta': is negative or not finite")


@dataclass
class TrainInterferenceConfig:
    """`conf/train_interference.yaml`; groups are objects by `_target_`."""

    model: Any
    measurements: MeasurementsConfig
    evaluation: EvaluationConfig
    threads: int
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.measurements.gavel is None and self.measurements.deepshare is None:
            raise InputError("config key 'measurements': give measurements.gavel or .deepshare")
        if self.threads < 1:
            raise InputError(f"config key 'threads': {self.threads} is not above 0")


@dataclass(frozen=True, eq=False)
class Source:
    """Measurements, and what came of them."""

    measurements: Measurements
    crossed: CrossValidation
    rows: list[Errors]
    coverage: list[Coverage]


def train_interference(config: TrainInterferenceConfig, run: Run) -> Result:
    """Cross-validate, compare, fit to everything, save, draw."""
    start = time.perf_counter()
    fitting = build(config.model, "model")
    if not isinstance(fitting, FitConfig):
        raise no_such_thing("model", config.model, "model of interference")
    torch.set_num_threads(config.threads)
    measured, provenance = read_measurements(config.measurements, run.provenance)
    sources = [examined(measurements, fitting, config, run) for measurements in measured]
    for source in sources:
        save_final(source, fitting, config, run.folder / PREDICTORS, provenance)
    rows = joined([source.rows for source in sources])
    coverage = [row for source in sources for row in source.coverage]
    title = f"Normalised throughput of unseen jobs, {config.evaluation.probes} probes"
    columns = {s.measurements.name: s.measurements.tables for s in sources}
    write_table(rows, coverage, columns, title, run, provenance)
    points = {t: p for source in sources for t, p in points_of(source).items()}
    write_figure(run.folder / PREDICTED_FILE, draw_predicted(points, title), provenance)
    by_probes = {
        s.measurements.name: [row for row in s.rows if row.unseen == MODEL] for s in sources
    }
    figure = draw_errors(by_probes, "Errors on unseen models")
    write_figure(run.folder / ERRORS_FILE, figure, provenance)
    main = [r for r in rows if (r.unseen, r.probes) == (MODEL, config.evaluation.probes)]
    whole = [row for row in main if set(row.by_table) == set(points)]
    network = next(row for row in whole if row.method == NETWORK)
    others = [row for row in whole if row.method != NETWORK]
    values: dict[str, object] = {
        "probes": config.evaluation.probes,
        "mae": network.mean,
        "mae_of_next": min(row.mean for row in others),
        "best_method": min(whole, key=lambda row: row.mean).method,
        "errors": [row.document() for row in rows],
        "coverage": [row.document() for row in coverage],
        "predictors": [str(run.folder / PREDICTORS / s.measurements.name) for s in sources],
        "table": str(run.folder / TABLE_FILE),
        "pictures": [str(run.folder / name) for name in (PREDICTED_FILE, ERRORS_FILE)],
        "seconds": time.perf_counter() - start,
    }
    shown = ("probes", "mae", "mae_of_next", "best_method", "table", "seconds")
    return Result(values, provenance, shown)


def read_measurements(
    config: MeasurementsConfig, provenance: Provenance
) -> tuple[list[Measurements], Provenance]:
    """The measurements that are given, and the hashes of their files.

    Raises:
        InputError: a file is missing or wrong.
    """
    found, inputs = [], {}
    if config.gavel is not None:
        found.append(gavel_measurements(Path(config.gavel)))
        inputs["gavel"] = file_hash(config.gavel)
    if config.deepshare is not None:
        folder = Path(config.deepshare)
        found.append(deepshare_measurements(folder))
        for name in (ISOLATED, SHARED):
            inputs[f"deepshare/{name}"] = file_hash(folder / name)
    return found, provenance.with_inputs(**inputs)


def examined(
    measurements: Measurements, fitting: FitConfig, config: TrainInterferenceConfig, run: Run
) -> Source:
    """All folds of the measurements, by all methods."""
    asked, began = config.evaluation, time.perf_counter()

    def progress(stage: str, done: int, total: int) -> None:
        if done == total:
            seconds = time.perf_counter() - began
            text = f"{measurements.name}: {stage}, {total} ensembles, {seconds:.0f} s so far"
            run.console.print(text, highlight=False)

    crossed = cross_validate(
        measurements, fitting, asked.probes, asked.levels, config.seed, progress
    )
    jitter = {fold.name: fold.jitter for fold in crossed.folds}
    sets: list[tuple[str, Sequence[Examined]]] = [(MODEL, crossed.folds)]
    for probes in asked.other_probes:
        unseen = {name: measurements.jobs_of(name) for name in jitter}
        found = examine(measurements, unseen, jitter, fitting, probes, config.seed, progress)
        sets.append((MODEL, found))
    if asked.single_jobs:
        names = range(len(measurements.jobs))
        single = {str(n): np.arange(len(measurements.jobs)) == n for n in names}
        chosen = {str(n): jitter.get(measurements.jobs[n].model, crossed.jitter) for n in names}
        found = examine(measurements, single, chosen, fitting, asked.probes, config.seed, progress)
        sets.append((JOB, found))
    rows = []
    for unseen_kind, folds in sets:
        rows.append(network_errors(unseen_kind, measurements, folds))
        for method in baselines(measurements, asked.eta_over_beta):
            predicted = [method.predict(measurements, fold.fold) for fold in folds]
            rows.append(errors_of(method.name, unseen_kind, measurements, folds, predicted))
    return Source(measurements, crossed, rows, coverages(measurements, crossed.folds))


def save_final(
    source: Source,
    fitting: FitConfig,
    config: TrainInterferenceConfig,
    folder: Path,
    provenance: Provenance,
) -> None:
    """Fit an ensemble to all measurements and save it."""
    measurements, crossed = source.measurements, source.crossed
    nobody = np.zeros(len(measurements.jobs), np.bool_)
    known = fold_without(measurements, nobody, config.evaluation.probes)
    task = Task(known, crossed.jitter, fitting.members)
    (fitted,) = fit(measurements, [task], fitting, config.seed)
    calibration = calibration_on(measurements, crossed.folds, config.evaluation.levels)
    described = {
        "features": [
            *measurements.features,
            "fingerprint: own rates",
            "fingerprint: probes' rates",
        ],
        "probes": [vars(measurements.jobs[probe]) for probe in known.probes],
        "jitter": crossed.jitter,
        "hidden": fitting.hidden,
    }
    predictor = predictor_of(measurements, known, fitted, calibration)
    save_predictor(predictor, folder / measurements.name, described, provenance.document())


def points_of(source: Source) -> dict[str, Points]:
    """For every table and unseen model, measured and predicted rates."""
    measurements = source.measurements
    found: dict[str, Points] = {}
    for number, table in enumerate(measurements.tables):
        points = {}
        for fold in source.crossed.folds:
            asked = fold.fold.asked[number]
            if asked.any():
                points[fold.name] = (
                    measurements.rate[number][asked],
                    fold.fitted.mean[number][asked],
                )
        found[table] = points
    return found


def write_table(
    rows: Sequence[Errors],
    coverage: Sequence[Coverage],
    sources: Mapping[str, Sequence[str]],
    title: str,
    run: Run,
    provenance: Provenance,
) -> None:
    """Print the tables and write them as Markdown."""
    columns, cells = error_cells(rows, sources)
    intervals = [row.cells() for row in coverage]
    sections = [
        Table("Errors on unseen models", columns, cells),
        Table("Intervals on unseen models", COVERAGE_COLUMNS, intervals),
    ]
    write_tables(run, title, sections, provenance, caption=CAPTION, width=WIDTH)
