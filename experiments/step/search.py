"""Planners at work: one after the other, or side by side in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from agents.base import Planner, PlannerResult
from envs.errors import InputError
from envs.placement.toy import toy_pipeline
from envs.step.problem import StepProblem
from experiments.run.display import ProgressDisplay
from experiments.run.targets import build

Node = Mapping[str, Any]

WARM_UP_S = 0.2
POLL_S = 0.2
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip


def search(node: Node, problem: StepProblem, budget_s: float) -> PlannerResult:
    """What the planner described by `node` finds for `problem` in `budget_s` seconds.

    The planner first solves a toy, so that compilation is not counted as search.
    """
    planner: Planner = build(node)
    if not hasattr(planner, "plan"):
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


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes started inside use one thread."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
