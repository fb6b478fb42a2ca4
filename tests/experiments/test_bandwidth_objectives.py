"""`problem=bandwidth` and `problem=joint`: searched, judged, written and evaluated again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran
from layered_step import layered_step
from numpy.testing import assert_array_equal
from refusals import Refuses, option_of, refused

from agents.placement.baselines import ContiguousSplit, EqualShares
from agents.solver import Budget, Result
from agents.step.problems import (
    BandwidthPlanning,
    JointPlanning,
    StepPlanning,
)
from envs.cost import RooflineCost
from envs.files import read_json
from envs.graphs.storage import save_graph
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.order import OneFOneB
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.step.objectives import Makespan
from experiments.step.plan_file import read_bandwidth, read_plan
from experiments.step.planning import planner_of
from tests.envs.topologies import topology_named

ON = ["graph=graph.npz", "topology=planes_4x1"]


class UniformJoint:
    """Places in two halves and shares the links equally."""

    solves = (JointPlanning,)

    def solve(self, problem: JointPlanning, budget: Budget, start: object = ()) -> Result[Plan]:
        split = ContiguousSplit(groups=6, shares=EqualShares())
        found = split.solve(StepPlanning(problem.step), budget)
        assert found.solution is not None
        shares = uniform_allocation(problem.step.topology.network)
        return Result(replace(found.solution, allocation=shares), "feasible", 1.0, 0.1)


class Greedy:
    """Gives every channel all there is."""

    solves = (BandwidthPlanning,)

    def solve(self, problem: BandwidthPlanning, budget: Budget, start: object = ()) -> Result[Plan]:
        rates = np.full(problem.step.topology.network.num_channels, 1e12)
        plan = replace(problem.plan, allocation=BandwidthAllocation(rates))
        return Result(plan, "optimal", 1e-9, 0.1)


class Forgetful(Greedy):
    """Gives nothing."""

    def solve(self, problem: BandwidthPlanning, budget: Budget, start: object = ()) -> Result[Plan]:
        return Result(problem.plan, "feasible", 1e-9, 0.1)


class Meddler(Greedy):
    """Puts everything on one device."""

    def solve(self, problem: BandwidthPlanning, budget: Budget, start: object = ()) -> Result[Plan]:
        placement = Placement(np.zeros_like(problem.plan.placement.device))
        shares = uniform_allocation(problem.step.topology.network)
        other = Plan(placement, problem.plan.order, allocation=shares)
        return Result(other, "feasible", 1e-9, 0.1)


@pytest.fixture
def work(work: Path) -> Path:
    """The working directory, with a graph."""
    save_graph(layered_step(6, 2), work / "graph.npz")
    return work


@pytest.fixture
def problem() -> StepProblem:
    return StepProblem.build(layered_step(6, 2), topology_named("planes_4x1"), RooflineCost())


def ask(app: str, *arguments: str, run: str = "run") -> dict[str, Any]:
    return ran(app, *arguments, *ON, run=run)


def test_bandwidth_is_judged_in_the_simulator_and_written_with_the_plan(
    work: Path, problem: StepProblem
) -> None:
    found = ask("plan", "agent=convex", "problem=bandwidth")
    file = work / "run" / "plan.json"
    written = read_plan(file, problem, OneFOneB())
    rates = read_bandwidth(file, problem.topology.network)
    assert rates is not None
    simulator = StepSimulator(allocated_problem(problem, rates))
    simulated = simulator.step_time(written.placement.device, written.order)
    assert found["objective"] == simulated
    assert (found["problem"], found["agent"], found["status"]) == ("bandwidth", "convex", "optimal")
    assert 0 <= found["gap"] <= 1e-7
    assert found["feasible"] is True
    document = read_json(file)
    assert document["schema_version"] == 2
    assert document["units"]["bandwidth"] == "byte/s"


def test_a_plan_whose_pipes_get_nothing_is_not_feasible_and_not_drawn(
    work: Path, refuses: Refuses
) -> None:
    ask("plan", "agent=convex", "problem=bandwidth")
    document = read_json(work / "run/plan.json")
    document["bandwidth"] = {}
    (work / "none.json").write_text(json.dumps(document))
    found = ask("evaluate", "plan=none.json", run="again")
    assert (found["feasible"], found["step_time_s"]) == (False, None)
    assert "no bandwidth from 'server" in found["violations"][0]
    refuses("plot", ["plan=none.json", *ON], "none.json", "never ends")


def test_a_person_sees_objective_bound_and_gap(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask("plan", "agent=convex", "problem=bandwidth")
    rows = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert {"objective", "lower_bound", "gap", "status", "plan"} <= rows


def test_the_plan_of_a_file_is_kept_and_its_bandwidth_decided_anew(
    work: Path, problem: StepProblem
) -> None:
    first = ask("plan", "agent=uniform", "problem=bandwidth", run="first")
    second = ask("plan", "agent=convex", "problem=bandwidth", "problem.plan=first/plan.json")
    assert second["objective"] < first["objective"]
    plans = [read_plan(name, problem, OneFOneB()) for name in
             ("first/plan.json", "run/plan.json")]  # fmt: skip
    assert_array_equal(plans[0].placement.device, plans[1].placement.device)
    assert_array_equal(plans[0].order, plans[1].order)
    assert "plan" in second["provenance"]["inputs_sha256"]


def test_the_placer_can_be_chosen(work: Path) -> None:
    found = ask("plan", "agent=convex", "problem=bandwidth", "agent@problem.placer=single_device")
    assert found["gap"] == pytest.approx(0.0, abs=1e-9)  # one device sends nothing


def test_a_joint_plan_is_judged_with_its_bandwidth(work: Path, problem: StepProblem) -> None:
    name = f"{__name__}.UniformJoint"
    found = ask("plan", f"agent={name}", "problem=joint")
    rates = read_bandwidth("run/plan.json", problem.topology.network)
    assert rates is not None
    assert_array_equal(rates.rate, uniform_allocation(problem.topology.network).rate)
    written = read_plan("run/plan.json", problem, OneFOneB())
    simulator = StepSimulator(allocated_problem(problem, rates))
    assert found["objective"] == simulator.step_time(written.placement.device, written.order)
    assert found["lower_bound"] > 0


@pytest.mark.parametrize(("agent", "words"), [
    ("Greedy", "too many"),
    ("Forgetful", "no bandwidth is allocated"),
    ("Meddler", "not those that were given"),
])  # fmt: skip
def test_what_breaks_a_rule_is_not_feasible(work: Path, agent: str, words: str) -> None:
    found = ask("plan", f"agent={__name__}.{agent}", "problem=bandwidth")
    assert found["feasible"] is False
    assert any(words in violation for violation in found["violations"])


def test_a_plan_with_bandwidth_is_evaluated_under_it(work: Path) -> None:
    planned = ask("plan", "agent=square_root", "problem=bandwidth")
    for number, more in enumerate(([], ["communication=allocated"])):
        found = ask("evaluate", "plan=run/plan.json", *more, run=f"evaluated{number}")
        assert found["step_time_s"] == planned["objective"]
        assert found["communication"] == "allocated"
        again = read_json(f"evaluated{number}/plan.json")
        assert again["bandwidth"] == read_json("run/plan.json")["bandwidth"]


def test_the_picture_of_a_plan_with_bandwidth_is_that_of_its_rates(work: Path) -> None:
    planned = ask("plan", "agent=square_root", "problem=bandwidth")
    assert ask("plot", "plan=run/plan.json", run="drawn")["step_time_s"] == planned["objective"]


def test_a_model_without_allocation_is_refused_for_a_plan_with_bandwidth(
    work: Path, refuses: Refuses
) -> None:
    ask("plan", "agent=uniform", "problem=bandwidth")
    for app, model in (("evaluate", "none"), ("evaluate", "fair"), ("plot", "single_port")):
        words = ["plan=run/plan.json", f"communication={model}", *ON]
        refuses(app, words, "'communication'", repr(model), "bandwidth")


def test_a_plan_without_bandwidth_gets_uniform_shares_when_asked(work: Path) -> None:
    ask("plan", "agent=heft", "agent.groups=[6]", run="placed")
    shared = ask("plan", "agent=uniform", "problem=bandwidth", "problem.plan=placed/plan.json")
    found = ask(
        "evaluate", "plan=placed/plan.json", "communication=allocated", run="evaluated"
    )  # fmt: skip
    assert found["step_time_s"] == shared["objective"]
    assert "bandwidth" not in read_json("evaluated/plan.json")


def test_what_plans_bandwidth_is_no_planner_of_a_step() -> None:
    convex = option_of("agent=convex")["agent"]
    refused(
        lambda: planner_of(convex, "agent", Makespan()),
        ["'agent'", "ConvexRates", "problem=bandwidth"],
    )
    joint = {"_target_": f"{__name__}.UniformJoint"}
    refused(lambda: planner_of(joint, "agent", Makespan()), ["'agent'", "problem=joint"])


def test_links_without_bandwidth_are_refused(work: Path, refuses: Refuses) -> None:
    arguments = ["env=placement_toy", "agent=convex", "problem=bandwidth",
                 "agent@problem.placer=contiguous", "problem.placer.groups=18"]  # fmt: skip
    refuses("plan", [*arguments, *ON], "topology toy", "has no bandwidth to allocate")
