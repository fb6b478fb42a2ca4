"""Rules beside what is learned: their objectives are those that the environment itself counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
import yaml
from commands import is_drawn, ran
from numpy.testing import assert_allclose
from refusals import Refuses

from agents.placement.list_planners import Heft
from agents.rllib.environments import EnvironmentTask
from agents.rllib.task import RLTask
from agents.rllib.vector import Evaluation
from agents.solver import UNLIMITED
from agents.step.problems import StepPlanning
from envs.cluster.environment.generator import OPTIMUM_S
from experiments.command_line import main_of
from experiments.learning.hand_rules import rule_scores
from experiments.report import main as report
from experiments.studies.running import PAGE_FILE

IDS = {
    "PlacementToy": "step_time_s", "JointToy": "step_time_s", "BandwidthToy": "step_time_s",
    "BandwidthToyContinuous": "step_time_s", "ClusterToy": "cost", "ClusterParallelToy": "cost",
}  # fmt: skip


def of(name: str, objective: str | None) -> tuple[EnvironmentTask, list[float]]:
    task = EnvironmentTask(f"meshwright/{name}-v0", objective=objective)
    played = Evaluation(task, 2).of(None, expert=task.reference)
    return task, [one.objective for one in played]


@pytest.mark.parametrize(("name", "objective"), IDS.items())
def test_the_best_rule_is_better_than_chance(name: str, objective: str) -> None:
    found = rule_scores(*of(name, objective))
    assert len(found) >= 2
    assert list(found.values()) == sorted(found.values())
    assert next(iter(found.values())) < 0.95


def test_a_plan_counts_as_in_an_episode_that_places_it() -> None:
    task, reference = of("PlacementToy", "step_time_s")
    env: Any = gymnasium.make("meshwright/PlacementToy-v0").unwrapped
    env.reset(seed=0)
    plan = Heft().solve(StepPlanning(env.instance.problem), UNLIMITED).solution
    assert plan is not None
    group, over = env.instance.fusion.group, False
    while not over:
        device = plan.placement.device[np.flatnonzero(group == env.groups.current)[0]]
        *_, over, _, info = env.step(int(device))
    scores = [info["step_time_s"] / by for by in reference]
    assert_allclose(rule_scores(task, reference)["heft"], np.sqrt(np.prod(scores)), rtol=1e-12)


def test_no_schedule_of_the_toy_is_better_than_the_optimum() -> None:
    task, _ = of("ClusterToy", "cost")
    found = rule_scores(task, [OPTIMUM_S])
    assert found["first_fit"] > found["shortest_fit"] >= 1.0


def test_other_environments_and_objectives_have_no_rules() -> None:
    assert rule_scores(*of("PlacementToy", None)) == {}
    task = EnvironmentTask("CartPole-v1", objective="worth")
    assert rule_scores(task, [1.0]) == rule_scores(RLTask(), [1.0]) == {}


def test_a_study_is_drawn_with_a_panel_for_each(work: Path, refuses: Refuses) -> None:
    document = {
        "title": "Two", "verb": "train", "metrics": ["best_score"], "solvers": {"ppo": []},
        "words": [
            "task=environment", "training.max_steps=8", "training.budget_s=null",
            "training.evaluation_episodes=1", "agent.num_envs=2", "agent.episodes=1",
        ],
        "problems": {"environment": {
            "toy": ["task.id=meshwright/PlacementToy-v0", "task.objective=step_time_s"],
            "pole": ["task.id=CartPole-v1", "task.objective=worth"],
        }},
    }  # fmt: skip
    Path("two.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    ran(main_of("study"), "study=two.yaml")
    assert (work / "run" / PAGE_FILE).exists()
    values = pl.read_parquet("run/values.parquet")
    assert "rules.heft" in values["metric"].to_list()
    found = ran(report, "curves=[run]", run="drawn")
    assert is_drawn("drawn/learning_curves.png")
    assert sorted(found["scores"]) == ["pole", "toy"]
    assert len(found["provenance"]["inputs_sha256"]) == 2
    refuses(report, ["curves=[drawn]"], "drawn: field 'cells.parquet': is no study")
