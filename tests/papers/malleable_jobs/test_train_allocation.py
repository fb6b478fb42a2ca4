"""`experiments.train env=allocation`: from a command line to a policy compared with the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.rllib.environments import EnvironmentTask
from agents.rllib.vector import Evaluation
from envs import PARALLEL
from envs.files import read_json
from experiments.config.papers import register_environments
from experiments.config.verbs import JOBS
from experiments.learning.hand_rules import rule_scores
from experiments.papers.malleable_jobs.baselines import BASELINES
from experiments.run.app import job_of, main_of
from tests.experiments.small_split import one_of_several

main = main_of("train")
pytestmark = pytest.mark.slow

TOY = [
    "env=allocation_parallel", "+split@splits.itp=itp", "problems.jobs=4", "problems.slots=3",
    "problems.gpus=2", "training.budget_s=null", "training.max_steps=40", "agent.num_envs=4",
    "training.evaluation_episodes=2", "training.cloning.iterations=1", "agent.group_size=2",
    "teacher={_target_: experiments.papers.malleable_jobs.gadget.Gadget}",
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


@pytest.mark.parametrize(
    ("words", "job"),
    [("task=allocation", "train_allocation"), ("env=allocation_parallel", "train_allocation"),
     ("model=gains", "train_gains"), ("model=rule task=gains", "train_gains")],
)  # fmt: skip
def test_a_task_is_named_or_meant_by_what_only_it_takes(words: str, job: str) -> None:
    assert job_of("train", words.split()) is JOBS[job]


def test_usual_rules_stand_beside_what_is_learned_in_the_environment() -> None:
    register_environments()
    assert "meshwright/AllocationParallel-v0" in PARALLEL
    task = EnvironmentTask("meshwright/Allocation-v0", objective="worth")
    played = Evaluation(task, 2).of(None, expert=task.reference)
    found = rule_scores(task, [one.objective for one in played])
    assert set(found) == set(BASELINES)
    assert list(found.values()) == sorted(found.values())
    assert next(iter(found.values())) < 0.95
