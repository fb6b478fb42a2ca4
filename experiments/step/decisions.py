"""Agents that decide step by step, at work in the environment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.base import Agent, PlannerResult
from envs.placement.env import PlacementEnv
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.step.problem import placement_env

Node = Mapping[str, Any]
Observations = dict[str, NDArray[Any]]  # every array stacked: (K, ...)


@dataclass(frozen=True)
class DecidingPlanner:
    """An agent as a planner: one episode in the environment, no search.

    Args:
        agent: decides.
        env: the environment, as a config node.
    """

    agent: Agent
    env: Node

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; needs neither budget nor limit."""
        start = time.perf_counter()
        env = placement_env(self.env, problem)
        observations, _ = episode(env, self.agent)
        device = env.placement.device
        simulator = StepSimulator(problem)
        order = simulator.order(device)
        return PlannerResult(
            plan=Plan(Placement(device), order),
            status="feasible",
            step_time=simulator.step_time(device, order),
            seconds=time.perf_counter() - start,
            evaluations=len(observations["current"]),
        )


def episode(env: PlacementEnv, agent: Agent) -> tuple[Observations, NDArray[np.int64]]:
    """One episode: all observations, stacked, and the (K,) decisions on them."""
    seen: list[Mapping[str, NDArray[Any]]] = []
    decisions: list[int] = []
    observation, _ = env.reset(seed=0)
    ended = False
    while not ended:
        seen.append({name: np.array(array) for name, array in observation.items()})
        decisions.append(int(agent.act(observation)))
        observation, _, ended, _, _ = env.step(decisions[-1])
    stacked = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    return stacked, np.array(decisions, dtype=np.int64)
