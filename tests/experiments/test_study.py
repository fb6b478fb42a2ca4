"""`experiments.study`: every stage in a process of its own, and the whole on a small split."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from small_split import overrides

from experiments.run import stages
from experiments.run.stages import Stage, quoted, run_stages
from experiments.study import main

FEW = [
    *(f"~agents.{name}" for name in (
        "fifo", "las_2d", "gittins", "qssf", "las_gavel", "max_min", "max_min_20min", "optimus",
        "sjf", "easy", "srsf", "finish_time_fairness", "gandiva_20min",
    )),
    *(f"~placements.{name}" for name in (
        "first_fit", "helios_consolidate", "least_interference", "random", "spread", "yarn",
    )),
    "~rules", "+rules={}", "tuned=[]", "samples=50",
]  # fmt: skip
DURATIONS = [
    "model=durations", "model.history=1", "model.hidden=4", "model.readout=8", "model.epochs=1",
    "~split@splits.philly", "sampling.windows=3", "sampling.exam_windows=2", "sampling.jobs=[8,20]",
    "sampling.least_jobs=5", "sampling.nodes_per_type=[2,3]", "sampling.instants=8",
    "evaluation.samples=20",
]  # fmt: skip
PRIORITY = [
    "model=priority", "model.rounds=1", "model.pairs=2", "~split@splits.philly",
    "parts.jobs=[8,20]", "parts.least_jobs=5", "parts.nodes_per_type=[2,3]", "exam_parts=1",
    "samples=20", "workers=1",
]  # fmt: skip
TRAINING = [
    "clusters=[]", "env.windows.jobs_per_gpu=[0.5,0.5]", "env.windows.stages.first_gpus=16",
    "env.windows.stages.gpus=16", "env.windows.max_share=0.5", "env.observation.window=6",
    "env.observation.running=16", "env.observation.shares=32", "env.observation.history=1",
    "model.hidden=8", "model.rounds=1", "model.heads=2", "agent.num_envs=2", "agent.fragment=16",
    "training.exam_windows=1", "training.exam_every=1", "training.max_decisions=64",
]  # fmt: skip
RECIPE = [
    "+experiment=cluster_itp", "adviser.priority.path=$DURATIONS",
    "adviser.priority.weights=$PRIORITY",
]  # fmt: skip


def listed(words: list[str]) -> str:
    """Words as a list in Hydra's grammar."""
    return f"[{','.join(quoted(word) for word in words)}]"


def small(folder: Path) -> list[str]:
    """The command line of a study of one recipe with two seeds on one split."""
    given = overrides(folder)
    split = [text for text in given if not text.startswith("cache=")]
    own = [text.replace("split.", "splits.itp.", 1) for text in split]
    return [
        "~recipes",
        f"+recipes={{small: {{information: unknown, overrides: {listed(RECIPE)}}}}}",
        "~splits",
        f"+splits={{made: {listed(given)}}}",
        f"durations={listed([*DURATIONS, *own])}",
        f"weights={listed([*PRIORITY, *own])}",
        f"training={listed([*TRAINING, *own])}",
        f"generalise={listed(FEW)}",
        "seeds=[0,3]",
        "budget_s=600",
    ]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    return tmp_path


def document(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def in_this_process(command: Sequence[str]) -> int:
    """The exit code of an app; its imports are most of the time of a small stage."""
    _, _, app, *arguments = command
    code: int = importlib.import_module(app).main(arguments)
    return code


def test_a_study_from_nothing_to_its_table(
    work: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole; then a stage is taken back, made to fail, and done again on resuming."""
    monkeypatch.setattr(stages, "_run", in_this_process)
    assert main([*small(work), "hydra.run.dir=study"]) == 0
    study = work / "study"
    result = document(study / "result.json")
    recipe = result["recipes"]["small"]
    assert [one["seed"] for one in recipe["trainings"]] == [0, 3]
    assert all(one["decisions"] == 64 for one in recipe["trainings"])
    ratios = document(study / "small" / "test_made" / "result.json")["ratios"]
    assert recipe["tests"]["made"]["ratios"] == ratios
    assert len(document(study / "small" / "test_made" / "result.json")["checkpoints"]) == 2
    assert len(recipe["curves"]["interquartile_mean"]) == len(recipe["curves"]["decisions"]) > 0
    assert set(result["provenance"]["inputs_sha256"]) == {
        "durations/seed_0", "durations/seed_3", "priority/seed_0", "priority/seed_3",
        "small/seed_0", "small/seed_3", "small/curves", "small/test_made",
    }  # fmt: skip
    for seed in (0, 3):
        spec = document(study / "small" / f"seed_{seed}" / "checkpoint" / "spec.json")
        sought = document(study / "priority" / f"seed_{seed}" / "priority.json")
        assert spec["adviser"]["priority"]["weights"] == sought["weights"]
    assert Image.open(recipe["curves"]["picture"]).width > 500
    table = (study / "table.md").read_text()
    best = recipe["tests"]["made"]["best_overall"]
    mean = ratios[best]["mean"]
    interval = f"{mean['mean']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"
    assert interval in table
    assert recipe["curves"]["picture"] in table
    assert "[8/8] small, test windows of made: done" in capfd.readouterr().out

    (study / "small" / "curves" / "result.json").unlink()
    metrics = study / "small" / "seed_3" / "metrics.csv"
    kept = metrics.read_text()
    metrics.write_text("iteration\n1\n")
    with pytest.raises(SystemExit) as failed:
        main(["resume=study"])
    assert failed.value.code == 2
    said = capfd.readouterr()
    assert "7 of 8 stages were done before" in said.out
    assert "holds no exams" in said.err
    assert f"resume={study} goes on" in said.err
    metrics.write_text(kept)
    assert main(["resume=study"]) == 0
    assert document(study / "result.json")["recipes"] == result["recipes"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["seeds=[1]"], "config key 'seeds'"),
        (["seeds=[1,1]"], "config key 'seeds'"),
        (["budget_s=0"], "config key 'budget_s'"),
        (["~recipes", "+recipes={}"], "config key 'recipes'"),
        (["recipes.cluster_known.information=all"], "'all' is unknown"),
        (["training=['seed=3']"], "the study sets it itself"),
        (["training=['model.hiden=8']"], "model.hiden"),
        (["recipes.cluster_known.overrides=['+experiment=nowhere']"], "nowhere"),
        (
            ["recipes.cluster_known.overrides=['env=cluster_mixed','env=bandwidth']"],
            "stage 'cluster_known, seed 0'",
        ),
        (["durations=[]"], "trains no posterior"),
        (["weights=[]"], "give model=durations, or model=priority"),
        (["generalise=['samples=0']"], "samples"),
        (["resume=nowhere"], "is no run folder"),
    ],
)
def test_a_fault_is_told_before_anything_runs(
    work: Path,
    changes: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATA", str(work))
    recipes = [] if changes[0].lstrip("~").startswith("recipes") else ["~recipes.cluster_unknown"]
    if changes[0] in ("durations=[]", "weights=[]"):
        recipes = ["~recipes.cluster_known"]
    assert main([*recipes, "~splits.philly", *changes, "hydra.run.dir=study"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (work / "study").exists()


def test_a_killed_stage_begins_again_or_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "it's one"
    rest = folder / "metrics.csv"
    folder.mkdir()
    rest.write_text("")
    whole = Stage("whole", "compare", ("a=b",), folder)
    assert whole.command()[1:] == [
        "-m", "experiments.compare", "a=b", f"hydra.run.dir={quoted(folder)}",
    ]  # fmt: skip
    assert not rest.exists()
    assert "\\'" in quoted(folder)
    (folder / "checkpoints" / "iteration_000010").mkdir(parents=True)
    (folder / "checkpoints" / "iteration_000010" / "state.json").write_text("{}")
    going = Stage("going on", "train", ("a=b",), folder, resumable=True)
    assert going.command()[3:] == [f"resume={quoted(folder)}"]
    assert folder.exists()


def test_a_stage_that_fails_is_the_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    two = [
        Stage(name, "cluster_curves", ("runs=[only_one]",), tmp_path / name)
        for name in ("first", "second")
    ]
    console = Console(width=200)
    assert run_stages(two, console) == 2
    said = capfd.readouterr()
    assert "[1/2] first: failed with code 2" in said.out
    assert "second" not in said.out
    assert "give two run folders or more" in said.err
