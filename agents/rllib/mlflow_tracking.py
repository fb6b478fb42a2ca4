"""Metrics of training in MLflow: of a server, or of files."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agents.rllib.metrics import Tracker
from envs.errors import InputError

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
            return _MLflowRun(mlflow.MlflowClient(self.uri), self.experiment, run_folder)
        except (mlflow.MlflowException, OSError) as error:
            message = " ".join(str(error).split())
            raise InputError(f"{self.uri!r}: {message}", field="tracking.uri") from error


class _MLflowRun:
    def __init__(self, client: Any, experiment: str, run_folder: Path) -> None:
        self._client, self._failed = client, False
        kept = run_folder / RUN_FILE
        if kept.is_file():
            self._id = kept.read_text(encoding="utf-8").strip()
            client.update_run(self._id, status="RUNNING")
            return
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        self._id = client.create_run(number, run_name=run_folder.name).info.run_id
        kept.write_text(f"{self._id}\n", encoding="utf-8")
        self._log_config(run_folder / CONFIG_FILE)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add what is finite; a server that fails does not end the training."""
        from mlflow import MlflowException
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(k, float(v), now, step) for k, v in values.items() if math.isfinite(v)]
        try:
            self._client.log_batch(self._id, metrics=metrics)
        except (MlflowException, OSError) as error:
            if not self._failed:
                message = " ".join(str(error).split())
                print(f"MLflow takes no metrics, metrics.csv has them: {message}", file=sys.stderr)
            self._failed = True

    def close(self, *, failed: bool) -> None:
        from mlflow import MlflowException

        try:
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")
        except (MlflowException, OSError):
            self._failed = True

    def _log_config(self, path: Path) -> None:
        if not path.is_file():
            return
        from mlflow.entities import Param

        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        items = [Param(key, str(value)[:LENGTH]) for key, value in _flat(config, "")]
        for first in range(0, len(items), BATCH):
            self._client.log_batch(self._id, params=items[first : first + BATCH])


def _flat(node: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node
