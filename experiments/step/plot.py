"""Play a plan again and draw it: a Gantt chart, and a trace for Perfetto.

python -m experiments.report plan=plan.json graph=bert_large topology=mixed_v100_p100
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.step.problems import Evaluation, evaluate_plan
from envs.errors import InputError
from experiments.pictures.step import draw_gantt, trace_document
from experiments.run.artifacts import write_figure, write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash, stamp
from experiments.step.plan_file import plan_communication, read_allocation, read_plan
from experiments.step.problem import ProblemConfig, order_rule_of

GANTT_FILE, TRACE_FILE = "gantt.png", "trace.json"


@dataclass(kw_only=True)
class PlotConfig(ProblemConfig):
    """`conf/plot.yaml`; groups are objects by `_target_`."""

    communication: Any
    order: Any
    plan: str  # the plan file
    seed: int
    json: bool


def plot(config: PlotConfig, run: Run) -> Result:
    """Simulate the plan and write both pictures of it."""
    loaded = config.load()
    problem = loaded.problem
    provenance = loaded.stamp_on(run.provenance).with_inputs(plan=file_hash(config.plan))
    rule = order_rule_of(config.order)
    allocation = read_allocation(config.plan, problem.topology)
    communication = plan_communication(config.communication, allocation, run.overrides)
    plan = read_plan(config.plan, problem, rule)
    evaluation = evaluate_plan(problem, plan, communication)
    if not np.isfinite(evaluation.step_time):
        raise InputError("; ".join(evaluation.violations), file=config.plan)
    title = (
        f"{problem.graph.name} on {problem.topology.name}: one step takes "
        f"{evaluation.step_time * 1e3:.1f} ms"
    )
    write_gantt(run, evaluation, title, provenance)
    return Result(
        {
            "step_time_s": evaluation.step_time,
            "feasible": evaluation.feasible,
            "gantt": str(run.folder / GANTT_FILE),
            "trace": str(run.folder / TRACE_FILE),
        },
        provenance,
    )


def write_gantt(run: Run, evaluation: Evaluation, title: str, provenance: Provenance) -> None:
    """A step as a picture, and as a trace of chrome://tracing."""
    played, timeline = evaluation.problem, evaluation.timeline
    write_figure(run.folder / GANTT_FILE, draw_gantt(played, timeline, title), provenance)
    trace = stamp(trace_document(played, timeline), provenance, kind="trace")
    write_json(run.folder / TRACE_FILE, trace)
