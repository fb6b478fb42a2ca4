"""What is learned, read back and judged: every figure comes from a simulation of all operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.bandwidth.env import continuous_toy_environment, toy_environment
from envs.bandwidth.toy import OPTIMUM_S, UNIFORM_S
from envs.errors import InputError
from envs.joint.env import toy_environment as joint_toy_environment
from envs.placement.env import PlacementEnv
from envs.placement.env import toy_environment as placement_toy_environment
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.order import OneFOneB
from envs.step.step import SINGLE_PORT, StepSimulator
from experiments.learning.learning_tasks import (
    BandwidthLearning,
    JointLearning,
    PlacementLearning,
    learning_task,
)
from experiments.run.provenance import Provenance
from experiments.step.plan_file import read_bandwidth, read_plan
from experiments.step.problem import LoadedProblem, load_problem

SINGLE_DEVICE = {"_target_": "agents.placement.baselines.SingleDevice"}
UNIFORM = {"_target_": "agents.bandwidth.rules.UniformShares"}
CONTIGUOUS = {
    "_target_": "agents.placement.baselines.ContiguousSplit",
    "groups": 5,
    "shares": {"_target_": "agents.placement.baselines.EqualShares"},
}


@pytest.fixture
def provenance() -> Provenance:
    return Provenance(seed=0)


def bandwidth() -> BandwidthLearning:
    env = continuous_toy_environment()
    env.reset(seed=0)
    return BandwidthLearning(env.instance.problem, env)


def joint() -> JointLearning:
    env = joint_toy_environment()
    env.reset(seed=0)
    return JointLearning(env.instance.problem, env)


def test_rates_of_two_phases_are_played_and_written(tmp_path: Path, provenance: Provenance) -> None:
    learning = bandwidth()
    network = learning.problem.topology.network
    servers = network.num_servers
    rate = np.zeros((2, network.num_channels))
    for phase, shares in enumerate(([1 / 6, 2 / 6, 3 / 6], [1 / 7, 2 / 7, 4 / 7])):
        for receiver, share in enumerate(shares, start=1):
            (channel,) = network.channels_between(0, receiver)
            rate[phase, channel] = share
    evaluation = learning.evaluate({"rate": rate})
    assert servers == 4
    assert evaluation.step_time == pytest.approx(OPTIMUM_S)
    assert evaluation.feasible
    learning.write(tmp_path, {"rate": rate}, provenance)
    phases = json.loads((tmp_path / "phases.json").read_text())["phases"]
    assert [list(phase["bandwidth_bytes_per_s"].values()) for phase in phases] == rate.tolist()
    assert read_bandwidth(tmp_path / "plan.json", network) is None
    too_much = learning.evaluate({"rate": 2.0 * rate})
    assert not too_much.feasible


def test_baselines_of_bandwidth_share_the_same_plan() -> None:
    found, evaluation = bandwidth().baseline(UNIFORM, 1.0)
    assert evaluation is not None
    assert evaluation.step_time == pytest.approx(UNIFORM_S)
    assert found.step_time == pytest.approx(UNIFORM_S)
    with pytest.raises(InputError, match="allocates no bandwidth"):
        bandwidth().baseline(SINGLE_DEVICE, 1.0)


def test_a_team_decides_a_plan_and_its_bandwidth(tmp_path: Path, provenance: Provenance) -> None:
    learning = joint()
    env = joint_toy_environment()
    observation, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    while env.agents:
        actions = {
            agent: rng.choice(np.flatnonzero(seen["action_mask"]))
            for agent, seen in observation.items()
        }
        observation, *_ = env.step(actions)
    evaluation = learning.evaluate({"device": env.group_device, "levels": env.levels})
    assert evaluation.step_time == pytest.approx(env.plan_outcome()[0])
    learning.write(tmp_path, {"device": env.group_device, "levels": env.levels}, provenance)
    network = learning.problem.topology.network
    allocation = read_bandwidth(tmp_path / "plan.json", network)
    assert allocation is not None
    np.testing.assert_allclose(allocation.rate, env.allocation.rate)
    plan = read_plan(tmp_path / "plan.json", learning.problem, OneFOneB())
    again = StepSimulator(allocated_problem(learning.problem, allocation))
    assert again.step_time(plan.placement.device, plan.order) == evaluation.step_time


def test_planners_of_placements_run_on_uniform_shares() -> None:
    learning = joint()
    found, evaluation = learning.baseline(CONTIGUOUS, 1.0)
    assert evaluation is not None
    assert found.plan is not None
    network = learning.problem.topology.network
    uniform = allocated_problem(learning.problem, uniform_allocation(network))
    expected = StepSimulator(uniform).step_time(found.plan.placement.device, found.plan.order)
    assert evaluation.step_time == pytest.approx(expected)


def test_a_config_becomes_its_subject() -> None:
    def learning(target: str, **arguments: Any) -> Any:
        node = {"_target_": target, **arguments}
        loaded = load_problem(node, {}, {}, {})
        return learning_task(node, loaded, SINGLE_PORT, SINGLE_DEVICE, 1.0)

    assert isinstance(learning("envs.placement.env.toy_environment"), PlacementLearning)
    assert isinstance(learning("envs.bandwidth.env.toy_environment"), BandwidthLearning)
    assert isinstance(learning("envs.joint.env.toy_environment"), JointLearning)


def test_bandwidth_is_allocated_to_the_plan_of_the_placer() -> None:
    env = toy_environment()
    env.reset(seed=0)
    joint_problem = joint().problem
    node = {
        "_target_": "envs.bandwidth.env.BandwidthEnv.of_plan",
        "_partial_": True,
        "phases": {"_target_": "envs.bandwidth.phases.WholeStep"},
    }
    loaded = LoadedProblem(joint_problem, {}, None)  # type: ignore[arg-type]
    learning = learning_task(node, loaded, SINGLE_PORT, CONTIGUOUS, 1.0)
    assert isinstance(learning, BandwidthLearning)
    _, evaluation = learning.baseline(UNIFORM, 1.0)
    assert evaluation is not None
    rate = uniform_allocation(joint_problem.topology.network).rate
    same = learning.evaluate({"rate": rate[None]})
    assert same.step_time == pytest.approx(evaluation.step_time)


def test_something_else_is_refused() -> None:
    env = placement_toy_environment()
    assert isinstance(env, PlacementEnv)
    env.reset(seed=0)
    loaded = LoadedProblem(env.instance.problem, {}, None)  # type: ignore[arg-type]
    node = {"_target_": "fractions.Fraction"}
    with pytest.raises(InputError, match="no environment to learn in"):
        learning_task(node, loaded, SINGLE_PORT, SINGLE_DEVICE, 1.0)
