"""`experiments.train env=allocation`: from a command line to a policy compared with the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_split import one_of_several

from envs.files import read_json
from experiments.train import main

TOY = [
    "env=allocation_parallel", "+split@splits.itp=itp", "problems.jobs=4", "problems.slots=3",
    "problems.gpus=2", "training.budget_s=null", "training.max_steps=40", "agent.num_envs=4",
    "training.evaluation_episodes=2", "training.cloning.iterations=1", "agent.group_size=2",
    "teacher={_target_: agents.cluster.allocation.gadget.Gadget}",
]  # fmt: skip


def small(folder: Path) -> list[str]:
    return [*TOY, *one_of_several(folder)]


@pytest.mark.proof
def test_a_policy_is_trained_and_compared(work: Path) -> None:
    assert main([*small(work), "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["untrained_score"] == pytest.approx(1.0)  # at first it is the rule
    policies = f"policies=[{found['checkpoint']}]"
    assert main([*small(work), policies, "windows=2", "hydra.run.dir=beside"]) == 0
    beside = read_json(work / "beside/result.json")
    assert {"fifo", "gadget", "rule", found["checkpoint"]} <= set(beside["utility"])


SEEK = [
    "model.drawn=1",
    "model.rounds=1",
    "model.near=1",
    "windows=1",
    "evaluation_windows=1",
    "evaluations=2",
]


@pytest.mark.proof
def test_gains_are_learned_and_compared(work: Path) -> None:
    words = ("+split", "~split", "splits", "problems")
    common = [word for word in small(work) if word.startswith(words)]
    common += ["problems.machines=[1,1]"]
    assert main(["model=gains", *common, *SEEK, "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["evaluation"] >= 1.0 or found["origin"]["tried"] == 3
    weights = read_json(work / "run/gains.json")["numbers"]
    assert set(weights) == {"part", "done", "slack", "wait", "partial"}
    beside = ["env=allocation", *common, "policies=[run/gains.json]", "windows=1"]
    assert main([*beside, "hydra.run.dir=beside"]) == 0
    utility = read_json(work / "beside/result.json")["utility"]
    assert {"gadget", "smd", "rule", "run/gains.json"} <= set(utility)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("problems.jobs=100000", "config key 'problems.jobs': no trace has 100000"),
        ("policies=[nowhere]", "nowhere: is not a checkpoint folder"),
        ("policies=[jobs.csv.json]", "jobs.csv.json"),
    ],
)
def test_bad_input_is_one_line(
    word: str, told: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*small(work), word, "hydra.run.dir=run"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
