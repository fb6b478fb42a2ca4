"""Agents for the tests of `experiments.plan`: each has one trait."""

from __future__ import annotations

import time
from itertools import product

import numpy as np

from agents.base import PlannerResult
from agents.placement.baselines import SingleDevice
from envs.partition.problem import PartitionProblem
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem


def result(problem: PartitionProblem, device: list[int], bound: float) -> PlannerResult:
    placed = np.array(device, dtype=np.int64)
    plan = Plan(Placement(placed), np.arange(len(placed)))
    value = problem.objective(placed)
    return PlannerResult(
        plan, "feasible", value, 0.1, lower_bound=bound, trajectory=[(0.05, value)]
    )


class Exhaustive:
    """Tries every placement."""

    def partition(
        self, problem: PartitionProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        n, d = problem.step.graph.num_operators, problem.step.topology.num_devices
        if d**n > 100_000:
            return result(problem, [0] * n, 0.0)
        fitting = [
            device
            for device in map(list, product(range(d), repeat=n))
            if not problem.violations(np.array(device, dtype=np.int64))
        ]
        if not fitting:
            return PlannerResult(None, "infeasible", np.inf, 0.1, np.inf, reason="no split fits")
        best = min(fitting, key=lambda x: problem.objective(np.array(x, dtype=np.int64)))
        bound = problem.objective(np.array(best, dtype=np.int64))
        return result(problem, best, bound)


class Boaster(Exhaustive):
    """Claims a bound that its own plan breaks."""

    def partition(
        self, problem: PartitionProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        return result(problem, [0] * problem.step.graph.num_operators, 1e9)


class Careless:
    """Puts operators on devices by turns, whatever their co-location groups."""

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        n = problem.graph.num_operators
        plan = Plan(Placement(np.arange(n) % problem.topology.num_devices), np.arange(n))
        return PlannerResult(plan, "feasible", 1e-9, 0.1)


class SlowToBegin(SingleDevice):
    """Its first search takes a second longer, like one that compiles; counts its limit."""

    begun = False

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        if not SlowToBegin.begun:
            SlowToBegin.begun = True
            time.sleep(1.0)
        found = super().plan(problem, budget_s, deterministic_limit)
        return PlannerResult(
            found.plan, found.status, found.step_time, found.seconds, found.lower_bound,
            evaluations=deterministic_limit or 0,
        )  # fmt: skip


class Hungry:
    """Wants more memory than any machine has."""

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        np.empty(2**50)  # more than can be addressed
        raise AssertionError("the memory was there")
