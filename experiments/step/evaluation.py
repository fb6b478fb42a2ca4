"""The figures of one plan on one problem."""

from __future__ import annotations

import numpy as np

from agents.step.lower_bound import LowerBound
from agents.step.problems import Evaluation
from envs.arrays import FloatArray


def evaluation_values(evaluation: Evaluation, bound: LowerBound) -> dict[str, object]:
    """The figures of an evaluation, for `result.json`."""
    problem = evaluation.problem
    names = [device.name for device in problem.topology.devices]
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
        "peak_memory_bytes_by_device": _by_name(names, peak),
        "capacity_bytes_by_device": _by_name(names, problem.capacity),
        "busy_s_by_device": _by_name(names, busy),
        "transfers": len(evaluation.timeline.transfer_tensor),
        "feasible": evaluation.feasible,
        "violations": list(evaluation.violations),
    }


def _by_name(names: list[str], values: FloatArray) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True)}
