"""Planners at work: one after the other, or side by side in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.base import Agent, Planner, PlannerResult
from envs.errors import InputError
from envs.placement.env import PlacementEnv
from envs.placement.toy import toy_pipeline
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.run.display import ProgressDisplay
from experiments.run.targets import build
from experiments.run.threads import one_thread_each
from experiments.step.problem import placement_env
from experiments.step.tasks import problems_of

Node = Mapping[str, Any]
Observations = dict[str, NDArray[Any]]  # every array stacked: (K, ...)

WARM_UP_S = 0.2
POLL_S = 0.2


def search(node: Node, problem: StepProblem, budget_s: float) -> PlannerResult:
    """What the planner described by `node` finds for `problem` in `budget_s` seconds.

    The planner first solves a toy, so that compilation is not counted as search.
    """
    planner = build(node)
    if not isinstance(planner, Planner):
        raise InputError(f"{node.get('_target_')} does not plan: it cannot search")
    planner.plan(toy_pipeline(), WARM_UP_S)
    return planner.plan(problem, budget_s)


def search_in_turn(
    nodes: Mapping[str, Node], problem: StepProblem, budget_s: float, display: ProgressDisplay
) -> dict[str, PlannerResult]:
    """The planners one after the other, in this process."""
    found = {}
    for name, node in nodes.items():
        task = display.begin(name)
        found[name] = search(node, problem, budget_s)
        display.end(task, describe(found[name]))
    return found


def search_side_by_side(
    nodes: Mapping[str, Node], problem: StepProblem, budget_s: float, display: ProgressDisplay
) -> dict[str, PlannerResult]:
    """The planners all at once, each in a fresh process with one thread."""
    context = multiprocessing.get_context("spawn")
    start = time.perf_counter()
    tasks = {name: display.begin(name, budget_s) for name in nodes}
    with one_thread_each(), ProcessPoolExecutor(max(1, len(nodes)), context) as pool:
        running: dict[Future[PlannerResult], str] = {
            pool.submit(search, dict(node), problem, budget_s): name for name, node in nodes.items()
        }
        found: dict[str, PlannerResult] = {}
        while running:
            for future in wait(running, timeout=POLL_S).done & running.keys():
                name = running.pop(future)
                found[name] = future.result()
                display.end(tasks[name], describe(found[name]))
            for name in running.values():
                display.update(tasks[name], time.perf_counter() - start, "")
    return {name: found[name] for name in nodes}


def describe(found: PlannerResult) -> str:
    """A result in a few words."""
    if found.plan is None:
        return f"no plan: {found.reason}"
    return f"{found.step_time * 1e3:.1f} ms in {found.seconds:.1f} s"


def agent_of(node: Node, env: Node, key: str = "agent") -> Any:
    """The object that `node` under `key` describes; one that acts plans by an episode in `env`."""
    built = build(node, key)
    if isinstance(built, Agent) and not isinstance(built, Planner):
        return DecidingPlanner(built, env)
    return built


def planner_of(node: Node, env: Node) -> Planner:
    """The planner of a step that `agent_of` finds.

    Raises:
        InputError: it plans something else, or neither plans nor acts.
    """
    built = agent_of(node, env)
    if isinstance(built, Planner):
        return built
    problems, told = problems_of(built), f"config key 'agent': {node.get('_target_')}"
    if problems:
        raise InputError(
            f"{told} plans problem={problems}: ask experiments.plan for problem={problems}, and "
            "evaluate the plan file it writes"
        )
    raise InputError(
        f"{told} neither plans nor acts; what schedules jobs needs env=cluster and a trace, what "
        "learns is trained by experiments.train and evaluated as agent=checkpoint"
    )


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
