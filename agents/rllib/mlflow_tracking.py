"""Metrics of training in MLflow: of a server, or of files."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agents.rllib.metrics import Tracker
from envs.errors import InputError, in_one_line

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
