"""`-m`: every combination once, each in a run folder of its own, one table of them all."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import evaluate
from experiments.config.verbs import JOBS
from experiments.studies import cells
from experiments.studies.frames import OBJECTIVES
from tests.paths import CONF


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The runs that were begun."""
    begun, run = list[object](), cells.run_quietly

    def counted(*arguments: Any) -> None:
        begun.append(arguments)
        run(*arguments)

    monkeypatch.setattr(cells, "run_quietly", counted)
    return begun


TOY = ("-m", "env=placement_toy", "agent=random")


def test_a_sweep_is_one_table_and_what_is_done_is_not_done_again(
    started: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep"
    words = [*TOY, "seed=1,2", f"hydra.sweep.dir={folder}"]
    assert evaluate.main([*words, "json=true"]) == 0
    assert evaluate.main(words) == 0
    assert len(started) == 2
    document = json.loads(capfd.readouterr().out.partition("\n}\n")[0] + "}")
    runs = document["runs"]
    assert [run["overrides"] for run in runs] == [["seed=1"], ["seed=2"]]
    for number, run in enumerate(runs):
        assert run["number"] == number
        result = json.loads((Path(run["run_folder"]) / "result.json").read_text())
        assert run["objective"] == result["step_time_s"]
    assert runs[0]["objective"] != runs[1]["objective"]
    table = (folder / "table.md").read_text()
    assert "| run | seed | step_time_s |" in table
    assert f"| 0 | 1 | {runs[0]['objective']:.6g} |" in table


def test_a_run_that_fails_leaves_the_others_and_is_told(
    started: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*TOY, "seed=1,2", f"hydra.sweep.dir={tmp_path}", "objective=step_tim"]
    with pytest.raises(SystemExit) as ended:
        evaluate.main(words)
    assert (ended.value.code, len(started)) == (1, 2)
    assert "error: 2 of 2 runs failed, run 0: " in (said := capfd.readouterr().err)
    assert "has no 'step_tim' (its numbers: operators, devices, " in said
    assert f"the same command with hydra.sweep.dir={tmp_path} goes on" in said


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["agent=contiguous,contigous"], "unknown value agent=contigous (did you mean contiguous"),
        (["seed=1,-2"], "seed': -2 is not in 0..4294967295"),
        (["seed=1,2", "resume=x"], "hydra.sweep.dir=<folder>"),
        (["seed=1,2", "sed=3"], "unknown config key 'sed' (did you mean seed? known: "),
        (["seed"], "'seed' is not of the form key=value"),
        (["seed=range(0,0)"], "config key 'seed'"),
        (["seed=range(0,9,0)"], "config key 'seed'"),
        (["seed=range(0,inf)"], "config key 'seed'"),
        (["agent=glob(nobody*)"], "config key 'agent'"),
        (["seed=range(0,100000000)"], "100,000,000"),
        (["agent=random,contiguous", "seed=shuffle(range(0,9999))"], "19,998"),
        (["seed=1,2", "hydra.sweeper.n=3"], "hydra.sweeper"),
    ],
)
def test_a_fault_is_told_before_anything_runs(
    started: list[object],
    words: list[str],
    line: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "sweep"
    assert evaluate.main([*TOY, *words, f"hydra.sweep.dir={folder}"]) == 2
    assert not started
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert line in said
    assert not folder.exists()


def test_a_folder_of_somebodys_files_is_no_sweeps(
    started: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "thesis.txt").write_text("years of work")
    assert evaluate.main([*TOY, "seed=1,2", f"hydra.sweep.dir={tmp_path}"]) == 2
    assert not started
    assert f"{tmp_path}: is no run's folder" in capfd.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["0", "thesis.txt"]


@pytest.mark.parametrize(
    "word", ["hydra/launcher=joblib", "hydra/launcher=ray", "+sweep=optuna_ppo"]
)
def test_a_plugin_that_is_not_installed_names_the_extra(
    word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("joblib") is not None:
        return  # the extra is installed, and the command would run
    assert evaluate.main([*TOY, "seed=1,2", word]) == 2
    assert "needs the extra 'sweep': pip install 'meshwright[sweep]'" in capfd.readouterr().err


def test_every_objective_is_of_an_app() -> None:
    assert set(yaml.safe_load((CONF / OBJECTIVES).read_text())) <= set(JOBS)
