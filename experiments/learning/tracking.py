"""Where metrics go beside `metrics.csv`: the writers of TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import yaml

from envs.errors import InputError, in_one_line
from experiments.config.composing import by_key

RUN_FILE = "tracked_run.txt"  # in the run folder: the run's id, by which it goes on
BATCH = 100  # parameters that MLflow takes at a time
LENGTH = 500  # characters of one of them


class Tracker(Protocol):
    """An open log of one run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of one iteration, each by its name; they may be nan and inf."""

    def close(self, *, failed: bool) -> None:
        """The training has ended, by an error where it has `failed`."""


@runtime_checkable
class Tracking(Protocol):
    """An option of `conf/tracking`."""

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


@dataclass
class MLflow:
    """Runs of one experiment; the config of a run is its parameters.

    Args:
        uri: of the server, or `sqlite:///<file>`; None: that of MLFLOW_TRACKING_URI, or MLflow's
            own default, a file here.
        experiment: its name; it is made where there is none.

    Raises:
        ModuleNotFoundError: it is not installed.
    """

    uri: str | None = None
    experiment: str = "meshwright"
    _failed: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow  # noqa: F401, fails before anything is learned

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        """See `Tracking`; a resumed run goes on in MLflow too.

        Raises:
            InputError: there is no MLflow at `uri`.
        """
        import mlflow

        try:
            if self.uri is not None:
                mlflow.set_tracking_uri(self.uri)
            mlflow.set_experiment(self.experiment)
            known = _known_run(run_folder)
            run = mlflow.start_run(known, run_name=run_folder.name)
            if known is None:
                _keep_run(run_folder, run.info.run_id)
                items = [(key, str(x)[:LENGTH]) for key, x in _parameters(run_folder).items()]
                for first in range(0, len(items), BATCH):
                    mlflow.log_params(dict(items[first : first + BATCH]))
        except (mlflow.MlflowException, OSError) as error:
            message = in_one_line(error)
            raise InputError(f"{self.uri!r}: {message}", field="tracking.uri") from error
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add what is finite; a server that fails does not end the training."""
        import mlflow

        finite = {name: float(x) for name, x in values.items() if math.isfinite(x)}
        try:
            mlflow.log_metrics(finite, step)
        except (mlflow.MlflowException, OSError) as error:
            if not self._failed:
                message = in_one_line(error)
                print(f"MLflow takes no metrics, metrics.csv has them: {message}", file=sys.stderr)
            self._failed = True

    def close(self, *, failed: bool) -> None:
        import mlflow

        with suppress(mlflow.MlflowException, OSError):
            mlflow.end_run("FAILED" if failed else "FINISHED")


@dataclass(frozen=True)
class WandB:
    """Runs of one project of Weights & Biases, in files until they are synchronised.

    Args:
        project: its name.
        mode: offline, online or disabled.

    Raises:
        ModuleNotFoundError: it is not installed.
    """

    project: str = "meshwright"
    mode: str = "offline"

    def __post_init__(self) -> None:
        import wandb  # noqa: F401, fails before anything is learned

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        """See `Tracking`; a resumed run goes on."""
        import wandb

        run: Any = wandb.init(
            project=self.project, mode=self.mode, dir=run_folder, name=run_folder.name,
            id=_known_run(run_folder), resume="allow", config=_parameters(run_folder),
        )  # fmt: skip
        _keep_run(run_folder, run.id)
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        import wandb

        wandb.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        import wandb

        wandb.finish(exit_code=int(failed))


def _known_run(run_folder: Path) -> str | None:
    """The id of a run that goes on."""
    path = run_folder / RUN_FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _keep_run(run_folder: Path, run: str) -> None:
    (run_folder / RUN_FILE).write_text(f"{run}\n", encoding="utf-8")


def _parameters(run_folder: Path) -> dict[str, Any]:
    """The config of a run, by dotted key."""
    path = run_folder / "config.yaml"
    node = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(by_key(node))
