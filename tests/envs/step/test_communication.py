"""The communication models of the group `communication`: each makes a simulator of its own kind."""

from __future__ import annotations

import numpy as np
import pytest
from sends import sends

from agents.step.problems import evaluate_plan
from envs.hardware.topology import Topology
from envs.step.allocated import Allocated, allocated_problem, uniform_allocation
from envs.step.fair import FairSimulator
from envs.step.order import TopologicalOrder
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, Communication, StepSimulator
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import build
from tests.envs.topologies import topology_named

MODELS = ("none", "single_port", "fair", "allocated")


def model(name: str) -> Communication:
    """A communication model of the group `communication`."""
    built = build(SHIPPED_CONFIGS.node(f"communication/{name}"))
    assert isinstance(built, Communication)
    return built


@pytest.fixture(scope="module")
def problem() -> StepProblem:
    """Two tensors from the first server, one to each of two others, as long as each other."""
    chosen: Topology = topology_named("planes_4x1")
    return sends([(0, 1), (0, 2)], chosen, 25e9 / 8, latency=False)  # a plane's bytes in a second


PLAN = Plan(Placement(np.array([0, 0, 1, 2])), np.arange(4))


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("none", 0.0), ("single_port", 2.0), ("fair", 1.0), ("allocated", 1.5)],
)
def test_every_model_of_conf_judges_a_plan(problem, name, seconds):
    """One port; two planes; two planes to three servers: a third of a plane each, twice."""
    assert model(name).name == name
    evaluation = evaluate_plan(problem, PLAN, model(name))
    assert evaluation.feasible
    assert evaluation.step_time == pytest.approx(seconds)


@pytest.mark.parametrize("name", MODELS)
def test_every_simulator_takes_an_order_rule_and_batches(problem, name):
    simulator = model(name).simulator(problem, TopologicalOrder())
    devices = np.array([[0, 0, 1, 2], [0, 0, 0, 0]])
    assert simulator.order(devices[0]).tolist() == [0, 1, 2, 3]
    expected = [simulator.step_time(device) for device in devices]
    assert simulator.step_times(devices).tolist() == expected
    assert simulator.run(devices[0]).step_time == expected[0]


def test_the_models_make_the_simulators_they_stand_for(problem):
    assert isinstance(model("fair").simulator(problem), FairSimulator)
    assert model("single_port") == SINGLE_PORT
    assert model("none") == NO_COMMUNICATION
    given = BandwidthAllocation(uniform_allocation(problem.topology.network).rate / 2)
    half = Allocated("allocated", given).simulator(problem)
    expected = StepSimulator(allocated_problem(problem, given))
    device = PLAN.placement.device
    assert half.step_time(device) == expected.step_time(device) == pytest.approx(3.0)


def test_violations_are_judged_by_the_simulator_that_is_given(problem):
    """Device 0 holds two tensors of a byte while they travel; without communication neither."""
    tight = StepProblem(
        problem.graph,
        problem.topology,
        problem.op_seconds,
        problem.transfer_seconds,
        np.array([1.5, 10.0, 10.0, 10.0]),
    )
    both_at_once = PLAN.violations(tight, model("fair").simulator(tight))
    assert len(both_at_once) == 1
    assert "needs 2 bytes" in both_at_once[0]
    assert PLAN.violations(tight, model("none").simulator(tight)) == []
