"""Planners at work: one after the other, or side by side in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from typing import Any

from agents.solver import Budget, Result
from agents.step.problems import Planner, StepPlanning
from envs.placement.generator import toy_pipeline
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from experiments.config.targets import build
from experiments.run.threads import one_thread_each
from experiments.step.tasks import solver_of
from experiments.study.display import ProgressDisplay

Node = Mapping[str, Any]

WARM_UP_S = 0.2
POLL_S = 0.2


def search(node: Node, problem: StepProblem, budget_s: float) -> Result[Plan]:
    """What the planner described by `node` finds for `problem` in `budget_s` seconds.

    The planner first solves a toy, so that compilation is not counted as search.
    """
    rehearse(node)
    return planner_of(node).solve(StepPlanning(problem), Budget(budget_s))


def rehearse(node: Node) -> None:
    """Search on a toy, which loads and compiles what a search needs."""
    planner_of(node).solve(StepPlanning(toy_pipeline()), Budget(WARM_UP_S))


def search_in_turn(
    nodes: Mapping[str, Node], problem: StepProblem, budget_s: float, display: ProgressDisplay
) -> dict[str, Result[Plan]]:
    """The planners one after the other, in this process."""
    found = {}
    for name, node in nodes.items():
        task = display.begin(name)
        found[name] = search(node, problem, budget_s)
        display.end(task, describe(found[name]))
    return found


def search_side_by_side(
    nodes: Mapping[str, Node], problem: StepProblem, budget_s: float, display: ProgressDisplay
) -> dict[str, Result[Plan]]:
    """The planners, as many at once as there are cores, each in a process of one thread."""
    names, cores = list(nodes), os.cpu_count() or 1
    if len(names) > cores:
        first, rest = (
            {name: nodes[name] for name in some} for some in (names[:cores], names[cores:])
        )
        found = search_side_by_side(first, problem, budget_s, display)
        return found | search_side_by_side(rest, problem, budget_s, display)
    context = multiprocessing.get_context("spawn")
    with one_thread_each(), ProcessPoolExecutor(max(1, len(nodes)), context) as pool:
        for node in nodes.values():  # one process compiles, and tells of it
            rehearse(node)
        wait([pool.submit(rehearse, dict(node)) for node in nodes.values()])
        start = time.perf_counter()
        tasks = {name: display.begin(name, budget_s) for name in nodes}
        running: dict[Future[Result[Plan]], str] = {
            pool.submit(search, dict(node), problem, budget_s): name for name, node in nodes.items()
        }
        found = {}
        while running:
            for future in wait(running, timeout=POLL_S).done & running.keys():
                name = running.pop(future)
                found[name] = future.result()
                display.end(tasks[name], describe(found[name]))
            for name in running.values():
                display.update(tasks[name], time.perf_counter() - start, "")
    return {name: found[name] for name in nodes}


def describe(found: Result[Plan]) -> str:
    """A result in a few words."""
    if found.solution is None:
        return f"no plan: {found.reason}"
    return f"{found.value * 1e3:.1f} ms in {found.seconds:.1f} s"


def planner_of(node: Node) -> Planner:
    """The planner of a step that `node` describes.

    Raises:
        InputError: it plans something else, or nothing.
    """
    return solver_of(build(node, "agent"), StepPlanning, "makespan", node.get("_target_"))
