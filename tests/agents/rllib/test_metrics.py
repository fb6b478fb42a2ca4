from __future__ import annotations

import csv
from pathlib import Path

import pytest

from agents.rllib.metrics import MetricsLog, columns
from envs.errors import InputError

ONE = columns(["failed"], ["default_policy"])


def row(iteration: int) -> dict[str, float]:
    return {name: float("nan") for name in ONE} | {"iteration": iteration}


def iterations(run_folder: Path) -> list[str]:
    with (run_folder / "metrics.csv").open(newline="") as file:
        return [line["iteration"] for line in csv.DictReader(file)]


def test_rows_are_readable_before_the_log_is_closed(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0, ONE) as log:
        log.write(row(1))
        assert iterations(tmp_path) == ["1"]
        log.write(row(2))
        assert iterations(tmp_path) == ["1", "2"]


def test_rows_after_the_checkpoint_and_broken_ones_are_taken_away(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0, ONE) as log:
        for iteration in (1, 2, 3):
            log.write(row(iteration))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4,1.0")
    with MetricsLog(tmp_path, 2, ONE) as log:
        assert iterations(tmp_path) == ["1", "2"]
        log.write(row(3))
    assert iterations(tmp_path) == ["1", "2", "3"]


def test_a_fresh_run_starts_with_an_empty_table(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0, ONE) as log:
        log.write(row(1))
    with MetricsLog(tmp_path, 0, ONE):
        assert iterations(tmp_path) == []


@pytest.mark.parametrize("content", ["", "garbage\n1\n", "iteration\n1\n2\n"])
def test_a_table_that_is_not_the_runs_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(InputError, match="does not hold iterations 1 to 2"):
        MetricsLog(tmp_path, 2, ONE)


def test_several_modules_have_losses_of_their_own() -> None:
    one, two = ONE, columns([], ["placer", "allocator"])
    assert "losses/entropy" in one
    assert "charts/failed" in one
    assert "losses/placer/entropy" in two
    assert "losses/allocator/entropy" in two
    assert len(set(two)) == len(two)
