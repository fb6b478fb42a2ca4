"""The loop of all training, on a walk whose score is its distance from where it began."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agents.rllib.restore import BEST, UNTRAINED
from envs.files import read_json
from experiments.learning.tracking import TensorBoard
from experiments.learning.trainer import COLUMNS, ITERATION, MetricsLog, Progress, Row, train
from tests.refusal import refusal

INF = float("inf")


@dataclass
class Walk:
    seed: int = 0
    fails: int = 0  # scores at first
    steps: int = 0
    at: float = 3.0
    outcomes: Sequence[float] = ()
    columns: Sequence[str] = ("charts/at",)

    @property
    def identity(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def begin(self) -> None:
        self.at = 2.0

    def step(self) -> Row:
        self.steps += 1
        self.at += float(np.random.default_rng((self.seed, self.steps)).normal())
        return {"charts/at": self.at}

    def score(self) -> float:
        self.outcomes = [INF if self.steps < self.fails else abs(self.at)]
        return self.outcomes[0]

    def weights(self) -> Mapping[str, Tensor]:
        return {"at": torch.tensor([self.at], dtype=torch.float64)}

    def state(self) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
        return {"steps": self.steps}, {"weights": self.weights()}

    def load(self, numbers: dict[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.steps, self.at = numbers["steps"], float(files["weights"]["at"])


@dataclass(frozen=True)
class Plan:
    budget_s: float | None = None
    max_steps: int | None = 20
    min_iterations: int = 0
    checkpoint_every: int = 3
    evaluate_every: int | None = 2


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def iterations(folder: Path) -> list[str]:
    return [row[ITERATION] for row in rows_of(folder)]


def arrays(folder: Path) -> dict[str, float]:
    """What is kept, by its path."""
    kept = folder.rglob("*.safetensors")
    return {str(path.relative_to(folder)): float(load_file(path)["at"]) for path in kept}


@pytest.mark.parametrize("last", range(1, 21))
def test_a_run_that_ends_at_any_row_goes_on_as_if_it_had_not(last: int, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(row: Row) -> None:
        if row[ITERATION] == last:
            raise KilledError

    whole, torn = tmp_path / "whole", tmp_path / "torn"
    expected = train(Walk(), Plan(), whole)
    with pytest.raises(KilledError):
        train(Walk(), Plan(), torn, kill)
    found = train(Walk(), Plan(), torn, resume=True)
    assert replace(found, seconds=0.0, warnings=()) == replace(expected, seconds=0.0)
    rows = [[{**row, "charts/seconds": ""} for row in rows_of(one)] for one in (whole, torn)]
    assert rows[0] == rows[1]
    assert iterations(torn) == [str(k) for k in range(1, 21)]
    assert arrays(whole) == arrays(torn)


@pytest.mark.parametrize("every", [1, 4, None])
@pytest.mark.parametrize("fails", [0, 9, 99])
def test_the_best_and_the_first_are_kept_and_while_all_fail_the_last(
    every: int | None, fails: int, tmp_path: Path
) -> None:
    task = Walk(fails=fails)
    found = train(task, Plan(evaluate_every=every), tmp_path)
    at = {0: 2.0} | {int(row[ITERATION]): float(row["charts/at"]) for row in rows_of(tmp_path)}
    evaluated = [k for k in range(21) if k in (0, 20) or (every and k % every == 0)]
    scores = {k: INF if k < fails else abs(at[k]) for k in evaluated}
    assert found.evaluations == list(scores.items())
    best = min(scores, key=lambda k: (scores[k], -k))
    assert (found.best_score, found.best_iteration) == (scores[best], best)
    for which, iteration in ((BEST, best), (UNTRAINED, 0)):
        assert arrays(tmp_path)[f"{which}/weights.safetensors"] == at[iteration]
        document = read_json(tmp_path / which / "score.json")
        score = scores[iteration]
        for key, value in {
            "score": score, "outcomes": [score], "iteration": iteration, "steps": iteration
        }.items():  # fmt: skip
            assert document[key] == value
    for row in rows_of(tmp_path):
        k = int(row[ITERATION])
        inside = bool(every) and k in scores
        expected = repr(scores[k]) if inside else "nan"
        assert (row["evaluation/score"], row["evaluation/outcome"]) == (expected, expected)


@pytest.mark.usefixtures("ticking")
def test_the_budget_is_kept_and_iterations_that_are_wanted_are_done(tmp_path: Path) -> None:
    limited = Plan(budget_s=2.0, max_steps=None)
    assert 1.8 < train(Walk(), limited, tmp_path / "limited").seconds < 2.2
    wanted = replace(limited, budget_s=1e-9, min_iterations=3, evaluate_every=None)
    found = train(Walk(), wanted, tmp_path / "wanted")
    assert found.iteration == 3
    assert [iteration for iteration, _ in found.evaluations] == [0, 3]


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    def resumed(task: Walk, **changed: Any) -> Progress:
        return train(task, Plan(**changed), tmp_path, resume=True)

    with refusal("no checkpoint"):
        resumed(Walk())
    assert not train(Walk(), Plan(), tmp_path).warnings
    with refusal("holds a run already"):
        train(Walk(), Plan(), tmp_path)
    with refusal("seed"):
        resumed(Walk(seed=1))
    for changed, message in (
        ({}, "20 steps are done"),
        ({"budget_s": 1e-9, "max_steps": None}, "spent"),
    ):
        (warning,) = resumed(Walk(), **changed).warnings
        assert f"{message}: give training.{'max_steps' if not changed else 'budget_s'}=" in warning
    path = tmp_path / "checkpoints/iteration_000020/state.json"
    path.write_text(path.read_text().replace('"best_iteration"', '"other"'))
    with refusal("is not what a run writes"):
        resumed(Walk())


def log_of(folder: Path, last: int = 0) -> MetricsLog:
    return MetricsLog(folder, last, COLUMNS, TensorBoard())


def row(iteration: int) -> Row:
    return {**dict.fromkeys(COLUMNS, float("nan")), ITERATION: iteration}


def test_rows_are_on_the_disk_at_once_and_later_or_broken_ones_taken_away(tmp_path: Path) -> None:
    with log_of(tmp_path) as log:
        for iteration in (1, 2, 3):
            log.write(row(iteration))
            assert len(iterations(tmp_path)) == iteration
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4,1.0")
    with log_of(tmp_path, 2) as log:
        assert iterations(tmp_path) == ["1", "2"]
        log.write(row(3))
    assert iterations(tmp_path) == ["1", "2", "3"]
    with log_of(tmp_path):  # of a fresh run
        assert iterations(tmp_path) == []


@pytest.mark.parametrize("content", ["", "garbage\n1\n", "iteration\n1\n2\n", None])
def test_a_table_that_is_not_the_runs_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.csv").write_text(content)
    with refusal("is missing" if content is None else "does not hold iterations 1 to 2"):
        log_of(tmp_path, 2)
