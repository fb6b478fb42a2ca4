"""Moirai `example-1`: an exact model proves 30.0 with memory limits and 28.0 without."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.placement.annealing import Annealing
from agents.placement.heft import Heft
from envs.cost.tabulated import TabulatedCost
from envs.graphs.readers import read_moirai
from envs.plans import Placement, Plan
from envs.simulation.problem import StepProblem
from envs.simulation.step import StepSimulator

ROOT = Path(__file__).parents[2]
BEST_1F1B = 31.0  # of the 20,124 placements that fit, by trying them all; 30.0 needs another order


def problem_of(data: Path, name: str) -> StepProblem:
    file = read_moirai(data / "graphs" / "moirai" / f"{name}.xls")
    assert file.topology is not None
    return StepProblem.build(file.graph, file.topology, TabulatedCost())


def solve(data: Path, limits: str) -> tuple[float, Plan]:
    """The least step time of any plan under `single_port`, and a plan that has it."""
    path = data / "graphs" / "moirai" / "example-1.xls"
    command = [sys.executable, "-m", "tests.golden.exact_makespan", str(path), limits]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    placement = Placement(np.array(found["device"], dtype=np.int64))
    return found["makespan"], Plan(placement, np.array(found["order"], dtype=np.int64))


def test_example_1_has_makespan_30_with_memory_limits(data: Path) -> None:
    problem = problem_of(data, "example-1")
    published = json.loads((data / "oracles" / "placement.json").read_text())["moirai"]
    optimum, plan = solve(data, "limits")
    assert optimum == 30.0 == published["example-1"]["optimal_makespan"]
    assert plan.violations(problem) == []
    assert StepSimulator(problem).step_time(plan.placement.device, plan.order) == 30.0


def test_example_1_has_makespan_28_without_memory_limits(data: Path) -> None:
    problem = problem_of(data, "example-1")
    problem = replace(problem, capacity=np.full_like(problem.capacity, np.inf))
    optimum, plan = solve(data, "unlimited")
    assert optimum == 28.0
    assert StepSimulator(problem).step_time(plan.placement.device, plan.order) == 28.0


def test_example_1_is_placed_by_heft_and_annealed_to_the_best_1f1b_step(data: Path) -> None:
    problem = problem_of(data, "example-1")
    heft = Heft(groups=32).plan(problem, 5.0)
    assert heft.plan is not None  # the state fills the devices to the last byte
    assert heft.plan.violations(problem) == []
    search = Annealing(groups=32, cycles=2, hot=0.03, cold=0.0003, seed=0)
    annealed = search.plan(problem, 30.0, 400_000)
    assert annealed.plan is not None
    assert annealed.plan.violations(problem) == []
    assert annealed.step_time == BEST_1F1B


def test_the_best_single_device_of_googlenet_is_as_published(data: Path) -> None:
    problem = problem_of(data, "GoogLeNet")
    published = json.loads((data / "oracles" / "placement.json").read_text())["moirai"]
    n, d = problem.op_seconds.shape
    alone = np.repeat(np.arange(d)[:, None], n, axis=1)
    best = StepSimulator(problem).step_times(alone).min()
    assert best == pytest.approx(published["GoogLeNet"]["best_single_device"], abs=5e-4)
