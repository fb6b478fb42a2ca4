"""The plan of a training run: equal stages, replicas and shards, device by device."""

from __future__ import annotations

from agents.pipeline.published import gpipe, interleaved, one_f_one_b
from envs.hybrid.plan import HybridPlan, Stage, ordered, peak_memory
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import simulate
from envs.hybrid.transformer_row import TransformerRow

ORDERS = {"1f1b": one_f_one_b, "gpipe": gpipe, "interleaved": interleaved}


def uniform_plan(row: TransformerRow) -> HybridPlan:
    """Shards next to each other, then replicas, then stages; chunks take turns on a rank."""
    run = row.run
    group = run.tensor * run.data
    stages, first = [], 0
    for number, layers in enumerate(row.stages):
        rank = number % run.pipeline
        devices = tuple(range(rank * group, (rank + 1) * group))
        stages.append(Stage(first, first + layers, devices, run.tensor))
        first += layers
    return ordered(stages, run.micro_batches, ORDERS[run.schedule])


def step_of(row: TransformerRow) -> tuple[float, float]:
    """Seconds of a step, and bytes of the fullest device; whether they fit is not asked."""
    return planned_step(row, row.problem(), uniform_plan(row))


def planned_step(
    row: TransformerRow, problem: HybridProblem, plan: HybridPlan
) -> tuple[float, float]:
    """As `step_of`, of the row's own problem and plan."""
    peak = float(peak_memory(problem, plan).max())
    extra = row.working_bytes() + row.constants.framework_bytes
    return simulate(problem, plan).step_time, peak + extra
