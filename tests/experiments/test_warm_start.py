"""PPO that goes on from a planner's placement."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layered_step import layered_step

from envs.errors import InputError
from envs.graphs.storage import save_graph
from envs.joint.env import JointEnv
from envs.joint.toy import toy_stages
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import BandwidthAllocation
from envs.step.step import StepSimulator
from experiments.learning.one_problem import WARM_START_FILE, Warmed, WarmStartConfig, warm_start
from experiments.run.provenance import Provenance, file_hash
from experiments.step.plan_file import read_plan
from experiments.step.tasks import JointTask
from experiments.train import main

ENV = {"_target_": "envs.joint.env.JointEnv.of_problem", "_partial_": True, "max_groups": 5}
CONTIGUOUS = {
    "_target_": "agents.placement.baselines.ContiguousSplit",
    "groups": 5,
    "shares": {"_target_": "agents.placement.baselines.EqualShares"},
}
TEAM = (
    "env=joint", "env.max_groups=6", "agent=ppo_joint", "model=joint", "training=step",
    "topology=planes_4x1",
    "graph=graph.npz", "agent.num_envs=2", "agent.minibatch_size=12",
    "agent.num_epochs=1", "training.budget_s=null", "training.exam_episodes=1",
    "training.restarts.draws=4", "training.restarts.share=0.95", "warm_start=planner",
    "agent@warm_start.agent=contiguous_speed", "warm_start.name=contiguous",
    "warm_start.budget_s=1",
)  # fmt: skip


def learned() -> JointTask:
    return JointTask(toy_stages(), env=JointEnv.of_problem(toy_stages(), max_groups=5))


def warmed(folder: Path, agent: Any = CONTIGUOUS, **chosen: Any) -> Warmed:
    arguments = {"env": ENV, "task": learned(), "resume": False, **chosen}
    return warm_start(
        WarmStartConfig("planner", agent, 1.0),
        folder=folder,
        provenance=Provenance(seed=0),
        **arguments,
    )


def test_the_record_is_the_planners_placement_on_every_operator(tmp_path: Path) -> None:
    found = warmed(tmp_path)
    problem = learned().problem
    planned = read_plan(tmp_path / WARM_START_FILE, problem, lambda graph, device: device)
    plan, allocation = found.task.plan_of(found.start)
    assert isinstance(allocation, BandwidthAllocation)
    np.testing.assert_array_equal(plan.placement.device, planned.placement.device)
    assert not found.start.decisions["levels"].any()
    uniform = uniform_allocation(problem.topology.network)
    np.testing.assert_allclose(allocation.rate, uniform.rate)
    simulator = StepSimulator(allocated_problem(problem, uniform))
    assert found.start.objective == pytest.approx(simulator.step_time(plan.placement.device))
    assert found.seconds > 0.0
    assert found.provenance.inputs == {WARM_START_FILE: file_hash(tmp_path / WARM_START_FILE)}


def test_a_resumed_run_takes_the_plan_it_had(tmp_path: Path) -> None:
    first = warmed(tmp_path)
    again = warmed(tmp_path, agent={"_target_": "no.planner"}, resume=True)
    assert again.start.objective == first.start.objective
    for name, decided in first.start.decisions.items():
        np.testing.assert_array_equal(again.start.decisions[name], decided)
    (tmp_path / WARM_START_FILE).unlink()
    with pytest.raises(InputError, match=WARM_START_FILE):
        warmed(tmp_path, resume=True)


def test_the_environments_to_train_in_have_nothing_in_common_but_the_instance(
    tmp_path: Path,
) -> None:
    task = warmed(tmp_path).task
    one, other = task.begun(), task.begun()
    assert one.current is not other.current
    assert one.instance.fusion is other.instance.fusion


def test_what_cannot_be_a_start_is_refused(tmp_path: Path) -> None:
    toy, task = {"_target_": "envs.joint.env.toy_environment"}, learned()
    config = WarmStartConfig("planner", CONTIGUOUS, 1.0)
    with pytest.raises(InputError, match=r"'warm_start': envs\.joint\.env\.toy_environment"):
        config.require(toy, task, None)
    single = {"_target_": "agents.placement.baselines.SingleDevice"}
    with pytest.raises(InputError, match=r"'warm_start\.agent': finds no plan"):
        warmed(tmp_path, agent=single)  # no device holds all layers
    with pytest.raises(InputError, match="max_groups"):
        warmed(tmp_path, env={**ENV, "max_groups": 1})


@pytest.mark.parametrize(
    ("agent", "budget_s"),
    [(None, 3.0), (CONTIGUOUS, None)],
)
def test_a_planner_has_a_budget_and_nobody_else(agent: Any, budget_s: float | None) -> None:
    with pytest.raises(InputError, match=r"'warm_start\.budget_s'"):
        WarmStartConfig("planner", agent, budget_s)


def test_something_is_left_to_learn() -> None:
    config = WarmStartConfig("planner", CONTIGUOUS, 50.0)
    config.require(ENV, learned(), 51.0)
    config.require(ENV, learned(), None)
    WarmStartConfig(None, None, None).require({}, learned(), 1.0)
    with pytest.raises(InputError, match=r"50\.0 leaves nothing of training\.budget_s=50\.0"):
        config.require(ENV, learned(), 50.0)


def test_the_app_says_that_learning_began_with_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    save_graph(layered_step(6, 2), tmp_path / "graph.npz")

    def run(*arguments: str) -> dict[str, Any]:
        assert main([*arguments]) == 0
        document: dict[str, Any] = json.loads((tmp_path / "run" / "result.json").read_text())
        return document

    first = run(*TEAM, "training.max_steps=24", "hydra.run.dir=run")
    (row,) = first["methods"]
    assert row["method"] == "ppo after 1 s of contiguous"
    assert first["warm_start"]["method"] == row["method"]
    assert first["step_time_s"] <= first["warm_start"]["step_time_s"]
    assert row["trajectory"][0][1] == first["warm_start"]["step_time_s"]
    for name in ("result.json", "metrics.csv.provenance.json"):
        document = json.loads((tmp_path / "run" / name).read_text())
        assert WARM_START_FILE in document["provenance"]["inputs_sha256"]
    again = run("resume=run", "training.max_steps=48")
    assert again["resumed"]
    assert again["warm_start"] == first["warm_start"]
    assert again["steps"] > first["steps"]
    assert again["step_time_s"] <= first["step_time_s"]
