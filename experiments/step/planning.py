"""Agents asked for plans: warmed up on a toy, timed, judged by the objective itself.

One after the other, or side by side in processes of one thread each.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import TaskID

from agents.solver import Budget, Result, Solver
from agents.step.problems import Verdict
from envs.compilation import clock, telling
from envs.errors import InputError
from envs.step.order import OneFOneB
from envs.step.plans import Plan
from envs.step.price import name_of_order
from envs.step.problem import StepProblem
from experiments.config.targets import build
from experiments.run.display import ProgressDisplay
from experiments.run.provenance import Provenance
from experiments.run.threads import one_thread_each
from experiments.step.objectives import Makespan, Objective
from experiments.step.plan_file import read_plan
from experiments.step.problem import LoadedProblem, Node, TimeUnit
from experiments.step.tasks import StepTask, Task, solver_of

WARM_UP_S = 0.2
POLL_S = 0.2
JUDGED = ("objective", "objective_s", "span", "span_s", "order", "gap", "peak_memory_bytes")
ROUNDING = 1e-6  # relative; a claimed bound may exceed the objective by as much


@dataclass(frozen=True, eq=False)
class Planned:
    """What an agent answered to `task`, and what the objective says of it."""

    task: Task
    found: Result[Plan]
    verdict: Verdict | None  # None: there is no plan
    bound: float  # seconds; the agent's own or that of the objective, whichever is higher
    seconds: float  # wall time of the search
    unit: TimeUnit  # of the times in `document`

    def document(self) -> dict[str, object]:
        """The figures, for `result.json`."""
        found, unit, bound, verdict = self.found, self.unit, self.bound, self.verdict
        values: dict[str, object] = {
            "seconds": self.seconds,
            "status": found.status,
            "reason": found.reason,
            "evaluations": found.evaluations,
            "unit": unit.name,
            "unit_s": unit.seconds,
            "lower_bound": unit.of(bound),
            "lower_bound_s": bound,
            "trajectory": [[at, unit.of(best)] for at, best in found.history],
            **found.figures,
        }
        if verdict is None:
            return {**values, **dict.fromkeys(JUDGED), "feasible": False, "violations": []}
        return {
            **values,
            "objective": unit.of(verdict.objective),
            "objective_s": verdict.objective,
            **self._schedule(verdict),
            "gap": verdict.objective / bound - 1.0 if bound > 0 else None,
            "peak_memory_bytes": verdict.peak_memory,
            "feasible": not verdict.violations,
            "violations": list(verdict.violations),
        }

    def _schedule(self, verdict: Verdict) -> dict[str, object]:
        """The period of the schedule and the name of its order, of a step that ran."""
        plan, played = self.found.solution, verdict.evaluation
        if plan is None or played is None:
            return dict.fromkeys(JUDGED[2:5])
        order = name_of_order(self.task.step, plan.placement.device, plan.order)
        span = played.timeline.span
        return {"span": self.unit.of(span), "span_s": span, "order": order}

    def write(self, folder: Path, provenance: Provenance) -> Path | None:
        """Write the plan into `folder`, where there is one; returns the file.

        Raises:
            AssertionError: the plan in the file is judged to be another.
        """
        if self.found.solution is None:
            return None
        path = self.task.write(folder, self.found.solution, provenance)
        if isinstance(self.task, StepTask) and self.verdict is not None:
            again = self.task.judge(read_plan(path, self.task.step, OneFOneB()))
            if not math.isclose(again.objective, self.verdict.objective):
                raise AssertionError(f"{path}: {again.objective} s on a second look")
        return path


def warm_up(
    agent: Any, objective: Objective, target: object, key: str = "agent"
) -> Solver[Task, Plan]:
    """Search on a toy, so that compilation is not counted as search; returns who searched.

    Raises:
        InputError: the agent that the config calls `target`, under `key`, does not solve what
            `objective` asks for.
    """
    toy = objective.toy()
    solver = solver_of(agent, type(toy), objective.name, target, key)
    solver.solve(toy, Budget(WARM_UP_S), toy.start)
    return solver


def planner_of(node: Node, key: str, objective: Objective) -> Solver[Task, Plan]:
    """The planner that the config node under `key` describes, warmed up.

    Raises:
        InputError: it does not answer to `objective`.
    """
    return warm_up(build(node, key), objective, node.get("_target_"), key)


def ask_beside(
    node: Node, key: str, objective: Objective, task: Task, budget_s: float
) -> Result[Plan]:
    """What the planner that a config node describes finds for a task of `objective`."""
    return planner_of(node, key, objective).solve(task, Budget(budget_s), task.start)


def ask_in_turn(
    nodes: Mapping[str, Node],
    key: str,
    objective: Objective,
    task: Task,
    budget_s: float,
    display: ProgressDisplay,
) -> dict[str, Result[Plan]]:
    """The planners of the config group under `key` one after the other, in this process."""
    found = {}
    for name, node in nodes.items():
        shown = display.begin(name, budget_s)
        found[name] = ask_beside(node, f"{key}.{name}", objective, task, budget_s)
        display.end(shown, describe(found[name]))
    return found


def compile_beside(nodes: Mapping[str, Node], key: str) -> BaseProcess:
    """A process that compiles what planners of a step need; it ends with this one."""
    asked = [(dict(node), f"{key}.{name}") for name, node in nodes.items()]
    with one_thread_each():
        process = multiprocessing.get_context("spawn").Process(
            target=_compile, args=(asked,), daemon=True
        )
        process.start()
    return process


def _compile(asked: Sequence[tuple[Node, str]]) -> None:
    """In silence; what is wrong with a planner is said by whoever asks it."""
    with telling(lambda _: None), suppress(InputError):
        for node, place in asked:
            planner_of(node, place, Makespan())


def ask_side_by_side(
    nodes: Mapping[str, Node],
    key: str,
    problem: StepProblem,
    budget_s: float,
    display: ProgressDisplay,
) -> dict[str, Result[Plan]]:
    """Planners of a step, as many at once as there are cores, each in a process of one thread."""
    cores = min(os.cpu_count() or 1, len(nodes))
    objective, task = Makespan(), StepTask(problem)
    asked = [(name, dict(node), f"{key}.{name}") for name, node in nodes.items()]
    found: dict[str, Result[Plan]] = {}
    with (
        one_thread_each(),
        ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool,
    ):
        toy = objective.toy()  # loads a process, so that it is not counted as search
        warm = [(node, place, objective, toy, WARM_UP_S) for _, node, place in asked[:cores]]
        wait([pool.submit(ask_beside, *one) for one in warm])
        running: dict[Future[Result[Plan]], tuple[str, TaskID, float]] = {}
        while asked or running:
            while asked and len(running) < cores:
                name, node, place = asked.pop(0)
                future = pool.submit(ask_beside, node, place, objective, task, budget_s)
                running[future] = name, display.begin(name, budget_s), time.perf_counter()
            for future in wait(running, timeout=POLL_S).done & running.keys():
                name, shown, _ = running.pop(future)
                found[name] = future.result()
                display.end(shown, describe(found[name]))
            for _, shown, start in running.values():
                display.update(shown, time.perf_counter() - start, "")
    return {name: found[name] for name in nodes}


def describe(found: Result[Plan]) -> str:
    """A result in a few words."""
    if found.solution is None:
        return f"no plan: {found.reason}"
    return f"{found.value * 1e3:.1f} ms in {found.seconds:.1f} s"


def ask(
    solver: Solver[Task, Plan],
    objective: Objective,
    loaded: LoadedProblem,
    budget: Budget,
    target: object,
) -> Planned:
    """What `solver`, which the config calls `target`, finds for `objective` on a problem.

    Raises:
        InputError: no plan can exist, or the agent claims a bound that its plan beats.
    """
    step = loaded.problem
    task = objective.of(step)
    known = task.bound() or 0.0
    start = clock()
    found = solver.solve(task, budget, task.start)
    seconds = clock() - start
    if found.solution is None and np.isinf(found.bound):
        place = f"graph {step.graph.name!r} on topology {step.topology.name!r}"
        raise InputError(f"{place}: {found.reason}")
    bound = max(known, found.bound)
    verdict = None if found.solution is None else task.judge(found.solution)
    if verdict is not None and verdict.objective < bound * (1.0 - ROUNDING):
        raise InputError(
            f"config key 'agent': {target} claims a lower bound of {bound} s for a plan that takes "
            f"{verdict.objective} s"
        )
    return Planned(task, found, verdict, bound, seconds, loaded.time_unit)
