"""Agents for the tests of `experiments.plan`: each has one trait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from agents.placement.baselines import SingleDevice
from agents.solver import Budget, Result
from agents.step.problems import Partition, StepPlanning
from envs.step.plans import Placement, Plan


def result(problem: Partition, device: list[int], bound: float) -> Result[Plan]:
    placed = np.array(device, dtype=np.int64)
    plan = Plan(Placement(placed), np.arange(len(placed)))
    value = problem.problem.objective(placed)
    return Result(plan, "feasible", value, 0.1, bound, history=[(0.05, value)])


class Exhaustive:
    """Tries every placement."""

    solves = (Partition,)

    def solve(self, problem: Partition, budget: Budget, start: Sequence[Plan] = ()) -> Result[Plan]:
        asked = problem.problem
        n, d = asked.step.graph.num_operators, asked.step.topology.num_devices
        if d**n > 100_000:
            return result(problem, [0] * n, 0.0)
        fitting = [
            device
            for device in map(list, product(range(d), repeat=n))
            if not asked.violations(np.array(device, dtype=np.int64))
        ]
        if not fitting:
            return Result(None, "infeasible", bound=np.inf, reason="no split fits")
        best = min(fitting, key=lambda x: asked.objective(np.array(x, dtype=np.int64)))
        bound = asked.objective(np.array(best, dtype=np.int64))
        return result(problem, best, bound)


class Boaster(Exhaustive):
    """Claims a bound that its own plan breaks."""

    def solve(self, problem: Partition, budget: Budget, start: Sequence[Plan] = ()) -> Result[Plan]:
        return result(problem, [0] * problem.step.graph.num_operators, 1e9)


class Careless:
    """Puts operators on devices by turns, whatever their co-location groups."""

    solves = (StepPlanning,)

    def solve(
        self, problem: StepPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        n = problem.step.graph.num_operators
        plan = Plan(Placement(np.arange(n) % problem.step.topology.num_devices), np.arange(n))
        return Result(plan, "feasible", 1e-9, 0.1)


class SlowToBegin(SingleDevice):
    """Its first search takes a second longer, like one that compiles; counts its limit."""

    begun = False

    def solve(
        self, problem: StepPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        if not SlowToBegin.begun:
            SlowToBegin.begun = True
            time.sleep(1.0)
        return replace(super().solve(problem, budget), evaluations=budget.evaluations or 0)


class Hungry(Careless):
    """Wants more memory than any machine has."""

    def solve(
        self, problem: StepPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        np.empty(2**50)  # more than can be addressed
        raise AssertionError("the memory was there")
