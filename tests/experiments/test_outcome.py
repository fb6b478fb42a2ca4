"""What training came to is told as it is: learned or not, beside the untrained twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.learning.one_problem import read_curve
from experiments.learning.outcome import Evaluated, Outcome, by_step_time
from experiments.pictures.learning import read_evaluations
from tests.refusal import refusal


def outcome(best: float, untrained: float, iteration: int = 4) -> Outcome:
    first = Evaluated(0, 0, untrained, (0.7,))
    last = Evaluated(iteration, 40, best, (0.3,)) if iteration else first
    return Outcome(9, last, first, "score")


def test_who_has_learned_names_iterations_and_the_untrained_twin() -> None:
    found = outcome(0.9, 1.25)
    assert found.learned
    assert found.warnings == ()
    for word in ("9 iterations", "after iteration 4", "0.9000", "1.2500"):
        assert word in found.sentence


@pytest.mark.parametrize(("iteration", "imitates"), [(4, True), (6, False)])
def test_that_ppo_did_not_improve_on_the_imitation_is_told(iteration: int, imitates: bool) -> None:
    found = replace(outcome(0.9, 1.25, iteration), cloned=5)
    assert ("PPO did not improve" in found.sentence) == imitates
    assert "PPO" not in replace(found, cloned=9).sentence  # there was none


@pytest.mark.parametrize(
    ("best", "untrained", "iteration", "exported"),
    [
        (1.0, 1.0, 0, "the untrained policy"),
        (1.0, 1.0, 4, "the policy after iteration 4"),
        (np.inf, np.inf, 4, "the policy after iteration 4"),  # nothing ever finished
    ],
)
def test_who_has_not_learned_is_warned(
    best: float, untrained: float, iteration: int, exported: str
) -> None:
    found = outcome(best, untrained, iteration)
    assert found.warnings == (found.sentence,)
    assert "nothing was learned" in found.sentence
    assert found.sentence.endswith(exported)
    assert "nan" not in found.sentence
    assert " inf" not in found.sentence


def test_step_times_are_told_in_milliseconds() -> None:
    assert by_step_time(Evaluated(0, 0, 1.0, (0.25, 0.75))) == "500.0 ms"
    assert "does not fit" in by_step_time(Evaluated(0, 0, 1.0, (np.inf,)))


def test_the_first_and_the_last_exam_are_in_the_curve(tmp_path: Path) -> None:
    rows = ["charts/global_step,evaluation/score,charts/cloning", "64,nan,1", "128,nan,0"]
    (tmp_path / "metrics.csv").write_text("\n".join(rows) + "\n")
    found = read_evaluations(tmp_path, [(0, 1.0), (2, 0.8)])
    assert found.steps.tolist() == [0.0, 128.0]
    assert found.scores.tolist() == [1.0, 0.8]
    file = tmp_path / "metrics.csv"
    file.write_text(
        "charts/seconds,charts/step_time_s_mean,charts/best_objective,evaluation/outcome\n2,2,2,nan\n"
    )
    assert read_curve(file, outcome(0.9, 1.25, 1)).own[1] == (2.0, 0.3)


def test_a_folder_that_examined_nothing_is_refused(tmp_path: Path) -> None:
    with refusal(r"score\.json"):
        Outcome.of(tmp_path, "score")
