"""Where metrics go beside the file, the trackers' own or one's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.config.targets import missing_extra
from experiments.learning.tracking import MLflow, Tracker, Tracking, WandB
from experiments.learning.trainer import COLUMNS, ITERATION, MetricsLog


def logged(run_folder: Path, last: int, tracking: Tracking) -> None:
    """The row of the iteration after `last`, of which one value alone is finite."""
    row = dict.fromkeys(COLUMNS, float("nan"))
    with MetricsLog(run_folder, last, COLUMNS, tracking) as log:
        log.write({**row, ITERATION: last + 1, "charts/seconds": 7.0 + last})


class Remembered:
    """Tracking of one's own: what it is given, and how the training ended."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        self.heard.append((run_folder, last_iteration))
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.heard.append((step, values["charts/seconds"], set(values)))

    def close(self, *, failed: bool) -> None:
        self.heard.append(failed)


def test_tracking_of_ones_own_has_every_row_beside_the_file(tmp_path: Path) -> None:
    mine = Remembered()
    logged(tmp_path, 0, mine)
    assert mine.heard == [(tmp_path, 0), (1, 7.0, set(COLUMNS[1:])), False]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
    with pytest.raises(ZeroDivisionError), MetricsLog(tmp_path, 1, COLUMNS, mine):
        raise ZeroDivisionError
    assert mine.heard[-1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("training: {ppo: {clip: 0.2}}\n")
    return folder


@pytest.mark.parametrize(("name", "kind"), [("mlflow", MLflow), ("wandb", WandB)])
def test_what_is_not_installed_is_told_before_anything_is_learned(
    name: str, kind: Callable[[], Tracking], monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(name) is not None:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as missing:
        kind()
    message = f"needs the extra '{name}': pip install 'meshwright[{name}]'"
    assert missing_extra(missing.value) == message


def test_mlflow_has_the_config_and_every_finite_value_and_goes_on(run: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    tracking = MLflow(f"sqlite:///{run.parent / 'mlflow.db'}", "toys")
    for last in (0, 1):
        logged(run, last, tracking)
    client = mlflow.MlflowClient(tracking.uri)
    (found,) = client.search_runs([client.get_experiment_by_name("toys").experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params == {"training.ppo.clip": "0.2"}
    history = client.get_metric_history(found.info.run_id, "charts/seconds")
    assert [(one.step, one.value) for one in history] == [(1, 7.0), (2, 8.0)]
    assert set(found.data.metrics) == {"charts/seconds"}


def test_weights_and_biases_has_the_config_and_every_value_and_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []

    def init(**named: Any) -> Any:
        heard.append(named)
        return SimpleNamespace(id=named["id"] or "fresh")

    library = SimpleNamespace(
        init=init,
        log=lambda values, step: heard.append((step, values["charts/seconds"])),
        finish=lambda exit_code: heard.append({"exit": exit_code}),
    )
    monkeypatch.setitem(sys.modules, "wandb", library)
    for last in (0, 1):
        logged(run, last, WandB("toys"))
    first, second = (heard.pop(place) for place in (0, 2))
    assert heard == [(1, 7.0), {"exit": 0}, (2, 8.0), {"exit": 0}]
    assert first.pop("id") is None
    assert second.pop("id") == "fresh"
    assert first == second
    assert (first["project"], first["mode"], first["name"]) == ("toys", "offline", "run")
    assert first["config"] == {"training.ppo.clip": 0.2}
