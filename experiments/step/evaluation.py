"""One plan on one problem: simulated, checked, bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.step.lower_bound import LowerBound, lower_bound
from envs.arrays import FloatArray
from envs.errors import InputError
from envs.hardware.hosts import HOST
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import Communication, Ports
from envs.step.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the simulator says of a plan, never what its maker says."""

    plan: Plan
    problem: StepProblem  # that was played: with what the plan's memory moves add
    timeline: Timeline
    violations: tuple[str, ...]  # a sentence each; empty: feasible

    @property
    def feasible(self) -> bool:
        """Whether the plan breaks no rule and its peak memory fits every device."""
        return not self.violations

    @property
    def peak_memory(self) -> FloatArray:
        """(D,) bytes on each device; what hosts hold stands in the timeline, after them."""
        names = [device.name for device in self.problem.topology.devices]
        return self.timeline.peak_memory[[not name.endswith(HOST) for name in names]]

    @property
    def step_time(self) -> float:
        """Seconds."""
        return self.timeline.step_time


def evaluate_plan(problem: StepProblem, plan: Plan, communication: Communication) -> Evaluation:
    """Simulate `plan` and check it: placement, order, resident and peak memory.

    Raises:
        InputError: the plan moves tensors to hosts, which `communication` does not know.
    """
    step, device, order = plan.played(problem)
    if step.topology is not problem.topology and not isinstance(communication, Ports):
        raise InputError(
            f"config key 'communication': the plan offloads to host memory, which "
            f"{communication.name!r} does not know; single_port does"
        )
    simulator = communication.simulator(step)
    timeline = simulator.run(device, order)
    violations = plan.violations(problem, simulator)
    if not violations and not np.isfinite(timeline.step_time):
        violations = [_endless(step, timeline)]
    return Evaluation(plan, simulator.problem, timeline, tuple(violations))


def _endless(problem: StepProblem, timeline: Timeline) -> str:
    """Why a step of a feasible placement and order never ends: a transfer has no bandwidth."""
    topology = problem.topology
    first = int(np.flatnonzero(~np.isfinite(timeline.transfer_finish))[0])
    tensor = int(timeline.transfer_tensor[first])
    ends = (timeline.transfer_source[first], timeline.transfer_destination[first])
    source, destination = (topology.devices[int(end)].name for end in ends)
    return (
        f"the step never ends: no bandwidth from {source!r} to {destination!r} for the output of "
        f"{problem.graph.op_names[problem.graph.producer[tensor]]!r}"
    )


def require_fit(problem: StepProblem) -> LowerBound:
    """The proved lower bound of a problem that has a plan, as far as memory alone can tell.

    Raises:
        InputError: no placement fits; says which bound is violated by how much.
    """
    bound = lower_bound(problem)
    if not bound.memory_ok:
        raise InputError(
            f"graph {problem.graph.name!r} on topology {problem.topology.name!r}: {bound.reason}"
        )
    return bound


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
