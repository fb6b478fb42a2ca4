"""Train the network that predicts how jobs slow each other down, and evaluate it on unseen models.

python -m experiments.train task=interference measurements.gavel=simulation_throughputs.json.gz \\
    measurements.deepshare=<folder of DeepShare's tables>

The run folder is what `interference=learned interference.path=<run folder>` takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt, MinLen

from envs.arrays import BoolArray
from envs.bounds import Count, NonNegative
from envs.cluster.interference.deepshare import ISOLATED, SHARED
from envs.errors import InputError
from experiments.config.targets import build_as
from experiments.pictures.learning import Points, draw_errors, draw_predicted
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash
from models.interference.baselines import baselines
from models.interference.crossval import (
    Calibration,
    CrossValidation,
    cross_validate,
    evaluate,
    scores_of,
)
from models.interference.errors import (
    ALL,
    JOB,
    MODEL,
    NETWORK,
    Errors,
    coverages,
    errors_of,
    joined,
)
from models.interference.fit import FitConfig, Fitted, Task, fit
from models.interference.measurements import (
    Measurements,
    deepshare_measurements,
    fold_without,
    gavel_measurements,
)
from models.interference.rates import PREDICTORS, predictor_of, save_predictor


def error_cells(
    rows: Sequence[Errors], sources: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and cells of a table of errors.

    Args:
        rows: methods.
        sources: the tables of each source; a source of several has a column for all of them.
    """
    tables = [name for names in sources.values() for name in names]
    columns: dict[str, Sequence[str]] = {ALL: tables} if len(sources) > 1 else {}
    for source, names in sources.items():
        columns |= {source: names} if len(names) > 1 else {}
        columns |= {name: (name,) for name in names}
    cells = []
    for row in rows:
        texts = []
        for names in columns.values():
            found = [row.by_table[name] for name in names if name in row.by_table]
            texts.append(f"{np.concatenate(found).mean():.4f}" if len(found) == len(names) else "")
        cells.append((row.method, row.unseen, str(row.probes), *texts))
    return ("method", "unseen", "probes", *columns), cells


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
    """What is left out, and what is known of it."""

    probes: Annotated[int, Ge(0)]
    other_probes: list[Annotated[int, Ge(0)]]
    single_jobs: bool
    levels: Annotated[list[Annotated[float, Gt(0.0), Lt(1.0)]], MinLen(1)]
    eta_over_beta: NonNegative


@dataclass(kw_only=True)
class TrainInterferenceConfig:
    """`conf/task/interference.yaml`; groups are objects by `_target_`."""

    model: Any
    measurements: MeasurementsConfig
    evaluation: EvaluationConfig
    threads: Count = 1  # of torch
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.measurements.gavel is None and self.measurements.deepshare is None:
            raise InputError("config key 'measurements': give measurements.gavel or .deepshare")


@dataclass(frozen=True, eq=False)
class Source:
    """Measurements, and what came of them."""

    measurements: Measurements
    crossed: CrossValidation
    rows: list[Errors]
    coverage: list[dict[str, Any]]


def train_interference(config: TrainInterferenceConfig, run: Run) -> Result:
    """Cross-validate, compare, fit to everything, save, draw."""
    fitting = build_as(FitConfig, config.model, "model", "model of interference")
    torch.set_num_threads(config.threads)
    measured, provenance = read_measurements(config.measurements, run.provenance)
    sources = [evaluated(measurements, fitting, config, run) for measurements in measured]
    for source in sources:
        save_final(source, fitting, config, run.folder / PREDICTORS, provenance)
    rows = joined([source.rows for source in sources])
    coverage = [row for source in sources for row in source.coverage]
    title = f"Normalised throughput of unseen jobs, {config.evaluation.probes} probes"
    columns = {s.measurements.name: s.measurements.tables for s in sources}
    heads, cells = error_cells(rows, columns)
    intervals = [
        (one["table"], f"{one['level']:.0%}", f"{one['held']:.1%}", f"{one['worst']:.1%}",
         f"{one['width']:.3f}")
        for one in coverage
    ]  # fmt: skip
    sections = [
        Table("Errors on unseen models", heads, cells),
        Table(
            "Intervals on unseen models",
            ("table", "level", "held", "least of a model", "mean width"),
            intervals,
        ),
    ]
    table_file = write_tables(run, title, sections, provenance, caption=CAPTION, width=WIDTH)
    points: dict[str, Points] = {
        table: {
            model: (source.measurements.rate[k][asked], fitted.mean[k][asked])
            for model, fitted in source.crossed.folds.items()
            if (asked := fitted.task.fold.asked[k]).any()
        }
        for source in sources
        for k, table in enumerate(source.measurements.tables)
    }
    write_figure(run.folder / PREDICTED_FILE, draw_predicted(points, title), provenance)
    by_probes: dict[str, dict[str, dict[int, float]]] = {}
    for source in sources:
        methods = by_probes[source.measurements.name] = {}
        for row in source.rows:
            if row.unseen == MODEL:
                methods.setdefault(row.method, {})[row.probes] = row.mean
    figure = draw_errors(by_probes, NETWORK, "Errors on unseen models")
    write_figure(run.folder / ERRORS_FILE, figure, provenance)
    main = (MODEL, config.evaluation.probes, set(points))
    whole = [row for row in rows if (row.unseen, row.probes, set(row.by_table)) == main]
    network = next(row for row in whole if row.method == NETWORK)
    others = [row for row in whole if row.method != NETWORK]
    values: dict[str, object] = {
        "probes": config.evaluation.probes,
        "mae": network.mean,
        "mae_of_next": min(row.mean for row in others),
        "best_method": min(whole, key=lambda row: row.mean).method,
        "errors": [row.document() for row in rows],
        "coverage": coverage,
        "predictors": [str(run.folder / PREDICTORS / s.measurements.name) for s in sources],
        "table": table_file,
        "pictures": [str(run.folder / name) for name in (PREDICTED_FILE, ERRORS_FILE)],
        "seconds": run.seconds,
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


def evaluated(
    measurements: Measurements, fitting: FitConfig, config: TrainInterferenceConfig, run: Run
) -> Source:
    """All folds of the measurements, by all methods."""
    asked, began = config.evaluation, time.perf_counter()

    def progress(stage: str, ensembles: int) -> None:
        seconds = time.perf_counter() - began
        text = f"{measurements.name}: {stage}, {ensembles} ensembles, {seconds:.0f} s so far"
        run.console.say(text)

    def smaller(
        unseen: Mapping[str, BoolArray], jitter: Mapping[str, float], probes: int
    ) -> list[Fitted]:
        """Smaller ensembles for folds that leave out other jobs, or have other probes."""
        folds = {name: fold_without(measurements, jobs, probes) for name, jobs in unseen.items()}
        members = fitting.inner_members
        found = evaluate(measurements, folds, jitter, fitting, members, config.seed)
        progress(f"{probes} probes, {len(folds)} folds", len(folds))
        return list(found.values())

    crossed = cross_validate(
        measurements, fitting, asked.probes, asked.levels, config.seed, progress
    )
    jitter = {name: fitted.task.jitter for name, fitted in crossed.folds.items()}
    unseen = {name: measurements.jobs_of(name) for name in jitter}
    sets = [(MODEL, list(crossed.folds.values()))]
    sets += [(MODEL, smaller(unseen, jitter, probes)) for probes in asked.other_probes]
    if asked.single_jobs:
        jobs = measurements.jobs
        single = {str(n): row for n, row in enumerate(np.eye(len(jobs), dtype=np.bool_))}
        chosen = {str(n): jitter.get(job.model, crossed.jitter) for n, job in enumerate(jobs)}
        sets.append((JOB, smaller(single, chosen, asked.probes)))
    rows = []
    for unseen_kind, folds in sets:
        seeds = tuple(
            errors_of("", unseen_kind, measurements, folds, [f.rate[m] for f in folds]).mean
            for m in range(len(folds[0].rate))
        )
        means = [f.mean for f in folds]
        rows.append(errors_of(NETWORK, unseen_kind, measurements, folds, means, seeds))
        for method in baselines(measurements, asked.eta_over_beta):
            predicted = [method.predict(measurements, f.task.fold) for f in folds]
            rows.append(errors_of(method.name, unseen_kind, measurements, folds, predicted))
    return Source(measurements, crossed, rows, coverages(measurements, crossed))


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
    scores = scores_of(measurements, list(crossed.folds.values()))
    described = {
        "features": [
            *measurements.features,
            "fingerprint: own rates",
            "fingerprint: probes' rates",
        ],
        "probes": [vars(measurements.jobs[probe]) for probe in known.probes],
        "jitter": crossed.jitter,
        "hidden": fitting.hidden,
        **Calibration.of(scores, config.evaluation.levels).document(),
    }
    predictor = predictor_of(measurements, fitted)
    save_predictor(predictor, folder / measurements.name, described, provenance.document())
