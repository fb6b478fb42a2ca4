"""`suite=study`: its stages, what it refuses before they run, its table, the whole when small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_this_process import cells_in_this_process
from PIL import Image
from small_split import one_of_several, overrides

from experiments.learning.study import Study
from experiments.run.app import run_job
from experiments.study.grid import quoted
from experiments.study.suite import checked_cells
from tests.paths import CONF
from tests.refusal import refusal

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
    "model.hidden=8", "model.rounds=1", "model.heads=2", "agent.num_envs=2", "agent.steps=16",
    "training.exam_episodes=1", "training.exam_every=1", "training.max_steps=32",
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
    own = one_of_several(folder)
    return [
        "suite=study",
        "~suite.recipes",
        f"+suite.recipes={{small: {{information: unknown, overrides: {listed(RECIPE)}}}}}",
        "~suite.splits",
        f"+suite.splits={{made: {listed(given)}}}",
        f"suite.durations={listed([*DURATIONS, *own])}",
        f"suite.weights={listed([*PRIORITY, *own])}",
        f"suite.training={listed([*TRAINING, *own])}",
        f"suite.generalise={listed(FEW)}",
        "suite.seeds=[0,3]",
        "suite.budget_s=600",
    ]


def document(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of data with all traces, of no jobs."""
    monkeypatch.setenv("MESHWRIGHT_DATA", str(folder))
    for name in ("itp", "philly"):
        for file in yaml.safe_load((CONF / f"split/{name}.yaml").read_text())["inputs"]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()


def study(**changes: Any) -> Study:
    """One recipe with two seeds on one split."""
    recipe = {"information": "unknown", "overrides": RECIPE}
    arguments: dict[str, Any] = {
        "title": "small", "recipes": {"small": recipe}, "seeds": [0, 3], "budget_s": 600.0,
        "splits": {"made": ["split=synthetic"]}, "durations": ["model=durations"],
        "weights": ["model=priority"], "training": [], "curves": [], "generalise": [],
    }  # fmt: skip
    return Study(**{**arguments, **changes})


KNOWN = {"small": {"information": "known", "overrides": ["+experiment=cluster_known"]}}


def test_every_stage_needs_those_before_it(tmp_path: Path) -> None:
    cells = study().grid(tmp_path, 7)
    needs = {
        str(cell.folder.relative_to(tmp_path)): [need.name for need in cell.needs] for cell in cells
    }
    posterior, weights = "posterior of durations, seed 3", "weights of the priority, seed 3"
    both = ["small, seed 0", "small, seed 3"]
    assert list(needs) == [
        "durations/seed_0", "durations/seed_3", "priority/seed_0", "priority/seed_3",
        "small/seed_0", "small/seed_3", "small/curves", "small/test_made",
    ]  # fmt: skip
    assert needs["priority/seed_3"] == [posterior]
    assert needs["small/seed_3"] == [posterior, weights]
    assert needs["small/curves"] == needs["small/test_made"] == both
    trained = next(cell for cell in cells if cell.name == "small, seed 3").overrides
    sought = quoted(tmp_path / "priority" / "seed_3" / "priority.json")
    assert f"adviser.priority.weights={sought}" in trained
    assert {"training.budget_s=600.0", "seed=3"} <= set(trained)
    assert "seed=7" in cells[-1].overrides
    assert [cell.app for cell in study(recipes=KNOWN).grid(tmp_path, 0)] == [
        "train", "train", "plot", "generalise",
    ]  # fmt: skip


def test_the_table_says_what_the_stages_found(tmp_path: Path) -> None:
    one = study(recipes=KNOWN)
    cells = one.grid(tmp_path, 0)
    training = {
        "iterations": 3, "steps": 6400, "untrained_score": None, "best_score": 0.91234,
        "best_iteration": 2, "seconds": 61.2, "checkpoint": "c",
    }  # fmt: skip
    ratios = {"mean": 0.9, "low": 0.8, "high": 1.1}
    tested = {
        "best_overall": "las/best_fit", "best_published": "fifo", "mean_gap_to_bound": 0.3,
        "ratios": {"las/best_fit": dict.fromkeys(("mean", "p50", "p99"), ratios)},
        "windows": [{}, {}], "table": "t", "picture": "p.png",
    }  # fmt: skip
    curves = {"steps": [1], "interquartile_mean": [0.9], "picture": "curves.png"}
    told = {"train": training, "plot": curves, "generalise": tested}
    report = one.summary({cell: told[cell.app] for cell in cells})
    tests, trainings, files = (table.rows for table in report.tables)
    interval = "0.900 [0.800, 1.100]"
    assert tests == [
        ("small", "made", "2", "las/best_fit (best overall)", interval, interval, interval)
    ]
    assert trainings[1] == ("small", "3", "3", "6,400", "given up", "0.912", "2", "61")
    assert ("small: learning curves", "curves.png") in files
    checkpoint = str(tmp_path / "small" / "seed_0" / "checkpoint")
    assert ("small, seed 0: checkpoint", checkpoint) in files


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seeds": [1]}, "two or more"),
        ({"seeds": [1, 1]}, "two or more"),
        ({"seeds": [-1, 1]}, "-1 is not in"),
        ({"budget_s": 0.0}, "budget_s"),
        ({"recipes": {}}, "recipes"),
        ({"recipes": {"a/b": KNOWN["small"]}}, "name of a folder"),
        ({"recipes": {"small": {"information": "known"}}}, "recipes.small"),
        ({"recipes": {"small": {"information": "all", "overrides": []}}}, "'all' is none of"),
        ({"splits": {"durations": []}}, "name of a folder"),
        ({"recipes": {1: {}}}, "key 1 is no text"),
        ({"recipes": "small"}, "'small' is not a mapping"),
        (
            {"recipes": {"small": {"information": "known", "overrides": "a=b"}}},
            "recipes.small.overrides': 'a=b' is not a list",
        ),
        ({"recipes": {"small": {"information": [], "overrides": []}}}, "is none of"),
        ({"splits": {"made": "split=itp"}}, "'split=itp' is not a list"),
        ({"splits": {"made": [1]}}, "splits.made.0': 1 is not a string"),
        ({"splits": {2: []}}, "key 2 is no text"),
        ({"training": "env=cluster_mixed"}, "training': 'env=cluster_mixed' is not a list"),
        ({"weights": [], "durations": []}, "give model=durations"),
        ({"recipes": KNOWN, "training": ["seed=3"]}, "sets it itself"),
        ({"recipes": KNOWN, "training": ["model.hiden=8"]}, "model.hiden"),
        ({"recipes": KNOWN, "training": ["env=cluster_mixed", "env=bandwidth"]}, "'small'"),
        ({"recipes": KNOWN, "generalise": ["samples=0"]}, "samples"),
    ],
)
def test_a_fault_is_told_before_anything_runs(
    tmp_path: Path, changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(tmp_path, monkeypatch)
    with refusal() as error:
        checked_cells(study(**changes), tmp_path, 0)
    assert told in str(error.value)


def test_published_data_is_asked_for_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    with refusal(r"posterior of durations.*set MESHWRIGHT_DATA"):
        checked_cells(study(), tmp_path, 0)
    monkeypatch.setenv("MESHWRIGHT_DATA", str(tmp_path))
    with refusal(r"traces/itp/cluster01\.csv\.gz: cannot be read"):
        checked_cells(study(), tmp_path, 0)


@pytest.mark.parametrize("short", [pytest.param(False, marks=pytest.mark.proof), True])
def test_the_shipped_studies_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    published(tmp_path, monkeypatch)
    node = yaml.safe_load((CONF / "suite" / "study.yaml").read_text())
    if short:
        changes = yaml.safe_load((CONF / "suite" / "study_short.yaml").read_text())
        assert changes.pop("defaults") == ["study", "_self_"]
        node |= changes
    assert node.pop("_target_") == "experiments.learning.study.Study"
    assert len(checked_cells(Study(**node), tmp_path, 0)) == 26


@pytest.mark.proof
def test_a_study_from_nothing_to_its_table(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The whole; then a stage is taken back, made to fail, and done again on resuming."""

    def main(*arguments: str) -> int:
        with cells_in_this_process():
            return run_job("benchmark", list(arguments))

    assert main(*small(work), "hydra.run.dir=study") == 0
    cells, result = work / "study" / "cells", document(work / "study" / "result.json")
    recipe = result["report"]["recipes"]["small"]
    assert [one["seed"] for one in recipe["trainings"]] == [0, 3]
    assert all(one["steps"] == 32 for one in recipe["trainings"])
    ratios = document(cells / "small" / "test_made" / "result.json")["ratios"]
    assert recipe["tests"]["made"]["ratios"] == ratios
    assert len(document(cells / "small" / "test_made" / "result.json")["checkpoints"]) == 2
    assert len(recipe["curves"]["interquartile_mean"]) == len(recipe["curves"]["steps"]) > 0
    assert set(result["provenance"]["inputs_sha256"]) == {
        "durations/seed_0", "durations/seed_3", "priority/seed_0", "priority/seed_3",
        "small/seed_0", "small/seed_3", "small/curves", "small/test_made",
    }  # fmt: skip
    for seed in (0, 3):
        spec = document(cells / "small" / f"seed_{seed}" / "checkpoint" / "spec.json")
        sought = document(cells / "priority" / f"seed_{seed}" / "priority.json")
        assert spec["adviser"]["priority"]["weights"] == sought["weights"]
    assert Image.open(recipe["curves"]["picture"]).width > 500
    table = (work / "study" / "table.md").read_text()
    mean = ratios[recipe["tests"]["made"]["best_overall"]]["mean"]
    assert f"{mean['mean']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]" in table
    assert recipe["curves"]["picture"] in table
    assert "[8/8]" in capfd.readouterr().out

    (cells / "small" / "curves" / "result.json").unlink()
    metrics = cells / "small" / "seed_3" / "metrics.csv"
    kept = metrics.read_text()
    metrics.write_text("iteration\n1\n")
    with pytest.raises(SystemExit) as failed:
        main("resume=study")
    assert failed.value.code == 2
    said = capfd.readouterr()
    assert "7 of 8 cells were done before" in said.out
    assert "holds no exams" in said.err
    assert "study goes on with it" in said.err
    metrics.write_text(kept)
    assert main("resume=study") == 0
    again = document(work / "study" / "result.json")
    assert again["report"]["recipes"] == result["report"]["recipes"]
