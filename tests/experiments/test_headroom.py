"""`experiments.headroom` and `experiments.train model=rule`: from a command line to their files."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_this_process import cells_in_this_process
from PIL import Image
from small_split import one_of_several

from agents.cluster.joint_choice import JointChoice
from experiments.cluster.problem import built_policy
from experiments.config.composing import check_command_line
from experiments.learning.train_rule import TrainRuleConfig, train_rule
from experiments.run.app import run_job
from experiments.run.one_run import Run, RunConsole
from experiments.run.provenance import Provenance
from tests.refusal import refusal

TOY = [
    "~split@splits.philly", "usual.splits=[itp]", "usual.jobs=[5,8]", "usual.nodes_per_type=[2,2]",
    "usual.load=[1.2,1.2]", "usual.gpu_types=[V100,P100]", "model.drawn=3", "model.rounds=1",
    "model.near=2", "samples=50",
    "+known.toy={gpu_milli: 500, schedulers: 2, nodes_per_rack: 1, max_gpus: 2}",
    "+known.stops={preemption: true, gpu_types: [V100]}",
]  # fmt: skip
FEW = [
    "windows=2", "training_windows=2", "usual.rollouts=1", "rollout.futures=2", "rollout.first=1",
    "hindsight.replays=5",
]  # fmt: skip


def headroom(arguments: list[str]) -> int:
    return run_job("headroom", arguments)


def small(folder: Path) -> list[str]:
    return [*TOY, *one_of_several(folder)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `run`, of two regimes."""
    folder = tmp_path_factory.mktemp("headroom")
    with pytest.MonkeyPatch.context() as patch, cells_in_this_process():
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["app"])
        asked = [*small(folder), *FEW, "regimes=[toy,stops]", "hydra.run.dir=run"]
        assert headroom(asked) == 0
    return folder


@pytest.fixture
def work(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "argv", ["app"])
    return made


@pytest.fixture(scope="module")
def composed(made: Path) -> TrainRuleConfig:
    asked = ["model=rule", *small(made), "regime=toy", "windows=2", "exam_windows=2", "exams=3"]
    return check_command_line(asked, "train_rule", TrainRuleConfig).config


@pytest.fixture
def config(composed: TrainRuleConfig) -> TrainRuleConfig:
    return copy.deepcopy(composed)


def document(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def test_every_column_is_held_against_one_baseline_and_above_the_bound(made: Path) -> None:
    regimes = document(made / "run" / "result.json")["regimes"]
    assert list(regimes) == ["toy", "stops"]
    names = {"white_box", "tuned", "posterior", "rollout", "true_future", "hindsight", "bound"}
    for name, found in regimes.items():
        moves = {"tuned", "rollout", "true_future"} if name == "stops" else set()
        rows = found["by_window"]
        assert set(found["ratios"]) == set(rows) == names - moves
        assert found["baselines"][found["baseline"]] == 1.0
        for column, row in rows.items():
            assert len(row) == (1 if column in ("rollout", "true_future") else 2)
            assert (np.array(row) >= np.array(rows["bound"])[: len(row)] * (1 - 1e-9)).all()
            assert found["ratios"][column]["mean"] == pytest.approx(np.mean(row))
        gain = np.array(rows["posterior"]) / rows["white_box"]
        assert found["posterior_over_white_box"]["mean_jct_s"]["mean"] == pytest.approx(gain.mean())
    of_several = {"packing", "tetris", "tolerant", "fast_enough"}
    assert set(regimes["toy"]["baselines"]) == of_several
    assert {"las_2d", "gittins", "max_min_20min"} < set(regimes["stops"]["baselines"])


def test_a_regime_is_the_same_alone_and_nothing_is_replayed_twice(work: Path) -> None:
    kept = set((work / "outputs" / "headroom").iterdir())
    assert headroom([*small(work), *FEW, "regimes=[toy]", "hydra.run.dir=alone"]) == 0
    alone, among = (document(work / x / "result.json")["regimes"]["toy"] for x in ("alone", "run"))
    assert alone == among
    assert set((work / "outputs" / "headroom").iterdir()) == kept


def test_the_table_and_the_picture(made: Path) -> None:
    table = (made / "run" / "table.md").read_text()
    assert "| regime | best baseline | its mean JCT, s | white box | tuned |" in table
    assert "| stops |" in table
    with Image.open(made / "run" / "headroom.png") as picture:
        assert picture.size[1] > 300


def test_numbers_that_were_sought_are_taken(config: TrainRuleConfig, tmp_path: Path) -> None:
    run = Run(tmp_path, RunConsole(quiet=True), Provenance(seed=0, command="train"), {}, [])
    result = train_rule(config, run).values
    found = document(tmp_path / "rule.json")
    assert found["numbers"] == result["numbers"]
    assert found["origin"]["exam"]["mean"] == result["exam"]
    assert found["origin"]["tried"] == 6
    assert found["origin"]["ratio"] <= 1.0
    policies = [{**config.agent, "numbers": result["file"]}, {**config.agent, **found["numbers"]}]
    taken, given = (built_policy(node, "agent") for node in policies)
    assert isinstance(taken, JointChoice)
    assert isinstance(given, JointChoice)
    assert taken.rule == given.rule
    config.model["numbers"]["luck"] = [1]
    with refusal(r"config key 'model\.numbers\.luck'"):
        train_rule(config, run)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"gpu_milli": 2000}, "known.toy.gpu_milli"),
        ({"luck": 1}, "known.toy.luck"),
        ({"load": "high"}, "known.toy.load"),
        ({"load": [2.0, 1.0]}, "known.load"),
        ({"interference": "loud"}, "known.toy.interference"),
        ({"splits": []}, "known.toy.splits"),
        ({"jobs": [900, 1000]}, "known.least_jobs"),
    ],
)
def test_a_regime_says_what_is_wrong_with_it(
    config: TrainRuleConfig, words: dict[str, Any], told: str
) -> None:
    config.known["toy"] = words
    with refusal(rf"config key '{told}'"):
        config.problems(config.named("toy", "regime"), "train", 0, 1)


def test_bad_input_is_told_in_one_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headroom([*small(work), "regimes=[nowhere]", "hydra.run.dir=bad"]) == 2
    error = capsys.readouterr().err
    assert "config key 'regimes': 'nowhere' is none of " in error
    assert error.count("\n") == 1
