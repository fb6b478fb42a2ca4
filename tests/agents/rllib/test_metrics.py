from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest

from agents.rllib.metrics import MetricsLog, MLflow, TensorBoard, Tracker, columns
from experiments.config.targets import missing_extra
from tests.refusal import refusal

ONE = columns(["failed"], ["default_policy"])


def row(iteration: int) -> dict[str, float]:
    return {name: float("nan") for name in ONE} | {"iteration": iteration}


def iterations(run_folder: Path) -> list[str]:
    with (run_folder / "metrics.csv").open(newline="") as file:
        return [line["iteration"] for line in csv.DictReader(file)]


def test_rows_are_readable_before_the_log_is_closed(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0, ONE, TensorBoard()) as log:
        log.write(row(1))
        assert iterations(tmp_path) == ["1"]
        log.write(row(2))
        assert iterations(tmp_path) == ["1", "2"]


def test_rows_after_the_checkpoint_and_broken_ones_are_taken_away(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0, ONE, TensorBoard()) as log:
        for iteration in (1, 2, 3):
            log.write(row(iteration))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4,1.0")
    with MetricsLog(tmp_path, 2, ONE, TensorBoard()) as log:
        assert iterations(tmp_path) == ["1", "2"]
        log.write(row(3))
    assert iterations(tmp_path) == ["1", "2", "3"]


def test_a_fresh_run_starts_with_an_empty_table(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0, ONE, TensorBoard()) as log:
        log.write(row(1))
    with MetricsLog(tmp_path, 0, ONE, TensorBoard()):
        assert iterations(tmp_path) == []


@pytest.mark.parametrize("content", ["", "garbage\n1\n", "iteration\n1\n2\n"])
def test_a_table_that_is_not_the_runs_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    with refusal("does not hold iterations 1 to 2"):
        MetricsLog(tmp_path, 2, ONE, TensorBoard())


def test_several_modules_have_losses_of_their_own() -> None:
    one, two = ONE, columns([], ["placer", "allocator"])
    assert "losses/entropy" in one
    assert "charts/failed" in one
    assert "losses/placer/entropy" in two
    assert "losses/allocator/entropy" in two
    assert len(set(two)) == len(two)


class Remembered:
    """Tracking of one's own: what it is given, and how the training ended."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}
        self.opened: tuple[Path, int] | None = None
        self.failed: bool | None = None

    def open(self, run_folder: Path, last_iteration: int) -> Tracker:
        self.opened = (run_folder, last_iteration)
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values[step] = dict(values)

    def close(self, *, failed: bool) -> None:
        self.failed = failed


def test_tracking_of_ones_own_has_every_row_beside_the_file(tmp_path: Path) -> None:
    mine = Remembered()
    with MetricsLog(tmp_path, 0, ONE, mine) as log:
        log.write({**row(1), "charts/SPS": 7.0})
    assert mine.opened == (tmp_path, 0)
    assert mine.values[1]["charts/SPS"] == 7.0
    assert set(mine.values[1]) == set(ONE) - {"iteration"}
    assert iterations(tmp_path) == ["1"]
    assert mine.failed is False
    assert not (tmp_path / "tensorboard").exists()
    with pytest.raises(ZeroDivisionError), MetricsLog(tmp_path, 1, ONE, mine):
        raise ZeroDivisionError
    assert mine.failed


def test_mlflow_has_the_config_and_every_finite_value_and_goes_on(tmp_path: Path) -> None:
    """Where it is installed; elsewhere it is told before anything is learned."""
    if importlib.util.find_spec("mlflow") is None:
        with pytest.raises(ModuleNotFoundError) as missing:
            MLflow(None, "toys")
        assert missing_extra(missing.value) == (
            "needs the extra 'mlflow': pip install 'meshwright[mlflow]'"
        )
        return
    import mlflow

    run, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'mlflow.db'}"
    run.mkdir()
    (run / "config.yaml").write_text("training: {ppo: {clip: 0.2}}\n")
    tracking = MLflow(uri, "toys")
    for last in (0, 1):
        with MetricsLog(run, last, ONE, tracking) as log:
            log.write({**row(last + 1), "charts/SPS": 7.0 + last})
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("toys").experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params == {"training.ppo.clip": "0.2"}
    history = client.get_metric_history(found.info.run_id, "charts/SPS")
    assert [(one.step, one.value) for one in history] == [(1, 7.0), (2, 8.0)]
    assert set(found.data.metrics) == {"charts/SPS"}
