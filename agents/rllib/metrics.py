"""One row of metrics per training iteration: to a CSV file, and to where they are looked at."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import yaml

from envs.errors import InputError, in_one_line
from envs.files import write_atomically
from models.artifacts import sync

Row = Mapping[str, float]

ITERATION = "iteration"  # the first column of a log
NAN = float("nan")
CHARTS = (
    ITERATION,
    "charts/global_step",  # steps of environments so far
    "charts/episodes",  # so far
    "charts/seconds",  # wall clock spent training so far
    "charts/SPS",  # steps per second of this iteration, learning included, without its exam
    "charts/sample_seconds",  # of this iteration
    "charts/learn_seconds",  # of this iteration
    "charts/gradient_steps",  # of this iteration
    "charts/cloning",  # 1: the teacher is imitated, 0: PPO
    "charts/pupil_share",  # of the decisions of cloning; nan in PPO
    "charts/curriculum",  # progress, 0 to 1
    "charts/learning_rate",
    "charts/entropy_coefficient",
    "charts/episodic_return",  # mean over this iteration's episodes and over agents
    "charts/episodic_length",  # mean, steps
    "charts/best_objective",  # of the decisions met in training; inf before any
    "exam/score",  # geometric mean of outcome / the reference's; nan in iterations without
    "exam/outcome",  # mean over the episodes
    "exam/best_score",  # so far
)
LOSSES = (  # all of the last minibatch of the iteration; nan where there is none
    "policy_loss",
    "value_loss",
    "total_loss",
    "entropy",  # nats
    "old_approx_kl",  # from the sampling policy, nats; unbiased and may be negative
    "approx_kl",  # the same, never negative
    "clipfrac",  # share of the decisions beyond the clip
    "explained_variance",
    "gradient_norm",  # before clipping
    "cross_entropy",  # of the teacher's actions, nats
    "agreement",  # share of the teacher's actions that are the most probable ones
    "auxiliary_loss",  # cross entropy of the auxiliary head, nats
    "reference_kl",  # from the policy that PPO began with, nats
)


def columns(charts: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    """The columns of a run's metrics, in order."""
    return (
        *CHARTS,
        *(f"charts/{name}" for name in charts),
        *loss_columns({module: {} for module in modules}),
    )


def loss_columns(losses: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Losses by module as columns; with several modules these say whose."""
    return {
        f"losses/{name}" if len(losses) == 1 else f"losses/{module}/{name}": own.get(name, NAN)
        for module, own in losses.items()
        for name in LOSSES
    }


def mean(values: Sequence[float]) -> float:
    """Over those that are known; nan without any."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else NAN


class Tracker(Protocol):
    """An open log of one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of one iteration, each by its name; they may be nan and inf."""

    def close(self, *, failed: bool) -> None:
        """The training has ended, by an error where it has `failed`."""


@runtime_checkable
class Tracking(Protocol):
    """Where metrics go beside `metrics.csv`: an option of `conf/tracking`."""

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        """The log of the run in `run_folder`, which goes on after `last_iteration`."""


class TensorBoard:
    """Event files in the run folder's `tensorboard`."""

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        """See `Tracking`; later events that a killed run wrote are taken back."""
        from torch.utils.tensorboard import SummaryWriter

        folder = str(run_folder / "tensorboard")
        self._board = SummaryWriter(folder, purge_step=last_iteration + 1)
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()

    def close(self, *, failed: bool) -> None:
        self._board.close()


class MetricsLog:
    """`metrics.csv` in `run_folder`, and what `tracking` opens for it.

    A row is on the disk when `write` returns. Opened after `last_iteration` iterations, rows that
    a killed run wrote beyond that (or wrote half) are taken away first, so that the file has
    neither gaps nor duplicates.
    """

    def __init__(
        self, run_folder: Path, last_iteration: int, columns: Sequence[str], tracking: Tracking
    ) -> None:
        self.columns = tuple(columns)
        self.path = run_folder / "metrics.csv"
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(_rows_until(self.path, last_iteration, self.columns))
        write_atomically(self.path, text.getvalue().encode())
        sync(self.path)
        self._tracker = tracking.open(run_folder, last_iteration)
        self._file = self.path.open("a", encoding="utf-8", newline="")

    def write(self, row: Row) -> None:
        """Append one iteration's metrics; `row` has exactly the keys `columns`."""
        line = io.StringIO()
        csv.DictWriter(line, self.columns).writerow(row)
        self._file.write(line.getvalue())
        self._file.flush()
        os.fsync(self._file.fileno())
        values = {name: row[name] for name in self.columns[1:]}
        self._tracker.log(int(row[ITERATION]), values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        self._tracker.close(failed=kind is not None)


def _rows_until(path: Path, last_iteration: int, columns: Sequence[str]) -> list[dict[str, str]]:
    """The complete rows of iterations 1..`last_iteration`.

    Raises:
        InputError: they are not exactly these iterations.
    """
    if last_iteration == 0:
        return []
    if not path.exists():
        raise InputError("is missing", file=path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    complete = [row for row in rows if all(row.get(name) not in {None, ""} for name in columns)]
    kept = [row for row in complete if row[ITERATION].isdigit()]
    kept = [row for row in kept if int(row[ITERATION]) <= last_iteration]
    if [int(row[ITERATION]) for row in kept] != list(range(1, last_iteration + 1)):
        raise InputError(
            f"does not hold iterations 1 to {last_iteration} of the run, each once",
            file=path,
            field=ITERATION,
        )
    return kept


RUN_FILE = "mlflow_run.txt"  # in the run folder: the run's id, by which it goes on
CONFIG_FILE = "config.yaml"
BATCH = 100  # parameters that MLflow takes at a time
LENGTH = 500  # characters of one of them
QUIET = {  # unless the user says otherwise
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


@dataclass(frozen=True)
class MLflow:
    """Runs of one experiment; the config of a run is its parameters.

    Args:
        uri: of the server, or `sqlite:///<file>`; None: that of MLFLOW_TRACKING_URI, or MLflow's
            own default.
        experiment: its name; it is made where there is none.

    Raises:
        ModuleNotFoundError: it is not installed.
    """

    uri: str | None = None
    experiment: str = "meshwright"

    def __post_init__(self) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        import mlflow  # noqa: F401, told before anything is learned

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        """See `Tracking`; a resumed run goes on in MLflow too.

        Raises:
            InputError: there is no MLflow at `uri`.
        """
        import mlflow

        try:
            return _MLflowRun(self, run_folder)
        except (mlflow.MlflowException, OSError) as error:
            message = in_one_line(error)
            raise InputError(f"{self.uri!r}: {message}", field="tracking.uri") from error


class _MLflowRun:
    def __init__(self, asked: MLflow, run_folder: Path) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        self._failed = False
        if asked.uri is not None:
            mlflow.set_tracking_uri(asked.uri)
        mlflow.set_experiment(asked.experiment)
        kept, config = run_folder / RUN_FILE, run_folder / CONFIG_FILE
        if kept.is_file():
            mlflow.start_run(kept.read_text(encoding="utf-8").strip())
            return
        run = mlflow.start_run(run_name=run_folder.name)
        kept.write_text(f"{run.info.run_id}\n", encoding="utf-8")
        node = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
        items = [(key, str(value)[:LENGTH]) for key, value in _flat(node, "")]
        for first in range(0, len(items), BATCH):
            mlflow.log_params(dict(items[first : first + BATCH]))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add what is finite; a server that fails does not end the training."""
        finite = {name: float(x) for name, x in values.items() if math.isfinite(x)}
        try:
            self._mlflow.log_metrics(finite, step)
        except (self._mlflow.MlflowException, OSError) as error:
            if not self._failed:
                message = in_one_line(error)
                print(f"MLflow takes no metrics, metrics.csv has them: {message}", file=sys.stderr)
            self._failed = True

    def close(self, *, failed: bool) -> None:
        with suppress(self._mlflow.MlflowException, OSError):
            self._mlflow.end_run("FAILED" if failed else "FINISHED")


def _flat(node: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node
