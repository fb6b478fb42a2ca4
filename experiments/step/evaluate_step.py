"""A plan of one step, searched or read from a file, in the simulator."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.step.lower_bound import LowerBound
from agents.step.problems import Evaluation, evaluate_plan, require_fit
from envs.bounds import Positive
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.step.objectives import Makespan
from experiments.step.plan_file import plan_communication, read_allocation, read_plan, write_plan
from experiments.step.planning import ask_beside
from experiments.step.problem import ProblemConfig, order_rule_of
from experiments.step.tasks import StepTask


@dataclass(kw_only=True)
class EvaluateConfig(ProblemConfig):
    """`conf/evaluate.yaml`; groups are objects by `_target_`."""

    agent: Any
    communication: Any
    order: Any
    plan: str | None = None  # a plan file to simulate in place of the agent
    budget_s: Positive = 30.0  # wall time of the search, for agents that use it
    seed: int
    json: bool


def evaluate_step(config: EvaluateConfig, run: Run) -> Result:
    """Search (or read) a plan, simulate it, write `plan.json`."""
    loaded = config.load()
    problem = loaded.problem
    provenance = loaded.stamp_on(run.provenance)
    allocation = None
    if config.plan is not None:
        allocation = read_allocation(config.plan, problem.topology)
    communication = plan_communication(config.communication, allocation, run.overrides)
    values: dict[str, object] = {
        "env": run.choice("env", config.env),
        "agent": None if config.plan else run.choice("agent", config.agent),
        "communication": communication.name,
        **loaded.facts(),
    }
    bound = require_fit(problem)
    start = time.perf_counter()
    if config.plan is not None:
        rule = order_rule_of(config.order)
        plan = read_plan(config.plan, problem, rule)
        provenance = provenance.with_inputs(plan=file_hash(config.plan))
        values["plan"] = config.plan
    else:
        found = ask_beside(config.agent, "agent", Makespan(), StepTask(problem), config.budget_s)
        values |= {"status": found.status, "reason": found.reason, "seconds": found.seconds}
        values["evaluations"] = found.evaluations
        if found.solution is None:
            unplaced = {"step_time_s": None, "lower_bound_s": bound.seconds}
            unplaced |= {"peak_memory_bytes": None, "feasible": False}
            return Result({**values, **unplaced}, provenance)
        plan = found.solution
    evaluation = evaluate_plan(problem, plan, communication)
    values.setdefault("seconds", time.perf_counter() - start)
    write_plan(run.folder / "plan.json", plan, problem, provenance, allocation)
    return Result({**values, **evaluation_values(evaluation, bound)}, provenance)


def evaluation_values(evaluation: Evaluation, bound: LowerBound) -> dict[str, object]:
    """The figures of an evaluation, for `result.json`."""
    problem = evaluation.problem
    names = problem.topology.device_names
    peak = evaluation.timeline.peak_memory
    with np.errstate(invalid="ignore"):  # of a step that never ends
        busy = evaluation.timeline.busy_seconds(len(names))
    step_time = evaluation.step_time
    return {
        "step_time_s": step_time,
        "span_s": evaluation.timeline.span,
        "lower_bound_s": bound.seconds,
        "critical_path_bound_s": bound.critical_path,
        "work_bound_s": bound.work,
        "times_lower_bound": step_time / bound.seconds if bound.seconds > 0 else None,
        "peak_memory_bytes": float(evaluation.peak_memory.max()),
        "peak_memory_bytes_by_device": dict(zip(names, peak.tolist(), strict=True)),
        "capacity_bytes_by_device": dict(zip(names, problem.capacity.tolist(), strict=True)),
        "busy_s_by_device": dict(zip(names, busy.tolist(), strict=True)),
        "transfers": len(evaluation.timeline.transfer_tensor),
        "feasible": evaluation.feasible,
        "violations": list(evaluation.violations),
    }
