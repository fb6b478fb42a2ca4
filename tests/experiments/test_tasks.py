"""What is learned, read back and judged: every figure comes from a simulation of all operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.rllib.task import Solution
from agents.step.problems import Verdict
from envs.bandwidth.generator import OPTIMUM_S, UNIFORM_S
from envs.files import read_json
from envs.joint.generator import toy_stages
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.step import SINGLE_PORT, StepSimulator
from experiments.run.provenance import Provenance
from experiments.step.objectives import Bandwidth, Joint, learnable
from experiments.step.plan_file import read_bandwidth
from experiments.step.planning import ask_beside
from experiments.step.problem import load_problem
from experiments.step.tasks import BandwidthTask, JointTask, StepTask, begun
from tests.refusal import refusal

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


def learned(env: Mapping[str, Any]) -> tuple[Any, Any]:
    problem = load_problem(env, {}, {}, {}).problem
    return learnable(env, problem, SINGLE_PORT, CONTIGUOUS, 1.0)


def bandwidth() -> tuple[Any, BandwidthTask]:
    return learned({"_target_": "envs.bandwidth.env.continuous_toy_environment"})


def joint() -> tuple[Any, JointTask]:
    return Joint(), JointTask(toy_stages())


def beside(node: Mapping[str, Any], objective: Any, task: StepTask) -> tuple[Any, Verdict]:
    """What a planner finds, judged."""
    found = ask_beside(node, "baselines.one", objective, task, 1.0)
    assert found.solution is not None
    return found, task.judge(found.solution)


def test_rates_of_two_phases_are_played_and_written(tmp_path: Path, provenance: Provenance) -> None:
    _, task = bandwidth()
    network = task.step.topology.network
    rate = np.zeros((2, network.num_channels))
    for phase, shares in enumerate(([1 / 6, 2 / 6, 3 / 6], [1 / 7, 2 / 7, 4 / 7])):
        for receiver, share in enumerate(shares, start=1):
            (channel,) = network.channels_between(0, receiver)
            rate[phase, channel] = share
    decided = task.plan_of(Solution(0.0, {"rate": rate}))
    verdict = task.judge(decided)
    assert network.num_servers == 4
    assert verdict.objective == pytest.approx(OPTIMUM_S)
    assert not verdict.violations
    task.write(tmp_path, decided, provenance)
    phases = read_json(tmp_path / "phases.json")["phases"]
    assert [list(phase["bandwidth_bytes_per_s"].values()) for phase in phases] == rate.tolist()
    assert read_bandwidth(tmp_path / "plan.json", network) is None
    assert task.judge(task.plan_of(Solution(0.0, {"rate": 2.0 * rate}))).violations


def test_baselines_of_bandwidth_share_the_same_plan() -> None:
    found, verdict = beside(UNIFORM, *bandwidth())
    assert verdict.objective == pytest.approx(UNIFORM_S)
    assert found.value == pytest.approx(UNIFORM_S)
    with refusal(r"'baselines\.one': .*SingleDevice does not plan"):
        beside(SINGLE_DEVICE, *bandwidth())


def test_planners_of_placements_run_on_uniform_shares() -> None:
    objective, task = joint()
    found, verdict = beside(CONTIGUOUS, objective, task)
    uniform = allocated_problem(task.step, uniform_allocation(task.step.topology.network))
    expected = StepSimulator(uniform).step_time(
        found.solution.placement.device, found.solution.order
    )
    assert verdict.objective == pytest.approx(expected)


def test_what_learns_meets_no_environment_that_was_played() -> None:
    objective, task = bandwidth()
    assert (type(objective), type(task)) == (Bandwidth, BandwidthTask)
    begun(task.env)
    assert task.env._step is None


def test_bandwidth_is_allocated_to_the_plan_of_the_placer() -> None:
    problem = joint()[1].step
    node = {
        "_target_": "envs.bandwidth.env.BandwidthEnv.of_plan",
        "_partial_": True,
        "phases": {"_target_": "envs.bandwidth.generator.FixedCut", "begins": [0]},
    }
    objective, task = learnable(node, problem, SINGLE_PORT, CONTIGUOUS, 1.0)
    assert isinstance(task, BandwidthTask)
    _, verdict = beside(UNIFORM, objective, task)
    rate = uniform_allocation(problem.topology.network).rate
    same = task.judge(task.plan_of(Solution(0.0, {"rate": rate[None]})))
    assert same.objective == pytest.approx(verdict.objective)


def test_something_else_is_refused() -> None:
    problem = joint()[1].step
    for target in ("fractions.Fraction", "envs.joint.env.toy_environment"):
        with refusal("no environment to learn in"):
            learnable({"_target_": target}, problem, SINGLE_PORT, CONTIGUOUS, 1.0)
