"""What is to be decided of one training step, judged by its simulators and checkers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from agents.solver import Sense, Solver
from agents.step.lower_bound import LowerBound, lower_bound
from envs.arrays import FloatArray
from envs.errors import InputError
from envs.hardware.servers import HOST
from envs.hybrid.plan import HybridPlan
from envs.hybrid.problem import HybridProblem
from envs.partition.problem import PartitionProblem
from envs.step.allocated import Allocated
from envs.step.fair import Fair
from envs.step.phased import PhasedSimulator
from envs.step.plans import BandwidthAllocation, PairWeights, Phases, Plan
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT, Communication, Ports
from envs.step.timeline import Timeline

ALLOCATED = "allocated"  # the communication through pipes of a plan's own rates


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
        names = self.problem.topology.device_names
        return self.timeline.peak_memory[[not name.endswith(HOST) for name in names]]

    @property
    def step_time(self) -> float:
        """Seconds."""
        return self.timeline.step_time


@dataclass(frozen=True, eq=False)
class Verdict:
    """A plan judged by the problem itself, never by its maker."""

    objective: float  # seconds
    violations: tuple[str, ...]  # a sentence each; empty: feasible
    peak_memory: float  # bytes on the fullest device
    evaluation: Evaluation | None = None  # as the simulator played the step, where it did

    @classmethod
    def of(cls, evaluation: Evaluation) -> Verdict:
        """Of a step that was played."""
        peak = float(evaluation.peak_memory.max())
        return cls(evaluation.step_time, evaluation.violations, peak, evaluation)


class _Judged(ABC):
    """An `agents.solver.Problem` whose solutions are plans."""

    objective: ClassVar[str] = "objective_s"
    sense: ClassVar[Sense] = "min"

    @abstractmethod
    def judge(self, plan: Plan) -> Verdict:
        """The objective of a plan and what is wrong with it."""

    def price(self, plan: Plan) -> dict[str, float]:
        """Seconds of the objective, bytes on the fullest device."""
        verdict = self.judge(plan)
        return {self.objective: verdict.objective, "peak_memory_bytes": verdict.peak_memory}

    def violations(self, plan: Plan) -> tuple[str, ...]:
        """What is wrong with a plan, a sentence each."""
        return self.judge(plan).violations

    @abstractmethod
    def bound(self) -> float | None:
        """Seconds no plan can beat, known before any search.

        Raises:
            InputError: memory alone proves that there is no plan.
        """


@dataclass(frozen=True, eq=False)
class _OfStep(_Judged):
    step: StepProblem
    communication: Communication = field(default=SINGLE_PORT, kw_only=True)

    def bound(self) -> float:
        """`agents.step.lower_bound`, which holds under any communication."""
        return require_fit(self.step).seconds

    def judge(self, plan: Plan) -> Verdict:
        """The plan as the simulator of `communication` plays it, on all operators."""
        return Verdict.of(evaluate_plan(self.step, plan, self.communication))


class StepPlanning(_OfStep):
    """The placement and the order of a step.

    Solvers take it for a step under `single_port`; plans are judged under `communication`.

    Knows:
        The whole step: every operator's time on every device, every tensor's bytes, the memory and
        the ports. It decides the placement and the order.
    """


class SharedPlanning(_OfStep):
    """The placement and the order of a step whose transfers share the network as they come.

    Knows:
        The whole step, the physical links, how transfers share them, and plans made elsewhere. It
        decides the placement and the order.
    """


class _WithBandwidth(_OfStep):
    def judge(self, plan: Plan) -> Verdict:
        """The plan as the simulator plays it through pipes of the allocated rates."""
        allocation = plan.allocation
        if isinstance(allocation, Phases):
            return Verdict.of(_in_phases(self.step, plan, allocation))
        if not isinstance(allocation, BandwidthAllocation):
            return _nothing("no bandwidth is allocated")
        violations = allocation.violations(self.step.topology.network)
        if violations:
            return _nothing(*violations)
        return Verdict.of(evaluate_plan(self.step, plan, Allocated(ALLOCATED, allocation)))


class JointPlanning(_WithBandwidth):
    """The placement and the order of a step, and the bandwidth of its channels.

    Knows:
        The whole step and the physical links. It decides the placement, the order and the rate of
        every channel, or by which weights transfers share the links.
    """

    def judge(self, plan: Plan) -> Verdict:
        if not isinstance(plan.allocation, PairWeights):
            return super().judge(plan)
        wrong = plan.allocation.violations(self.step.topology.num_devices)
        if wrong:
            return _nothing(*wrong)
        return Verdict.of(evaluate_plan(self.step, plan, Fair(weights=plan.allocation)))


@dataclass(frozen=True, eq=False)
class BandwidthPlanning(_WithBandwidth):
    """The bandwidth of a step, or of every phase of it, for `plan`; another plan is a fault.

    Knows:
        The whole step, its placement, its order, and the physical links. It decides the rate of
        every channel.
    """

    plan: Plan

    def judge(self, plan: Plan) -> Verdict:
        verdict, own = super().judge(plan), self.plan
        same_place = np.array_equal(plan.placement.device, own.placement.device)
        if same_place and np.array_equal(plan.order, own.order):
            return verdict
        fault = "the placement and the order are not those that were given"
        return replace(verdict, violations=(fault, *verdict.violations))


@dataclass(frozen=True, eq=False)
class Partition(_Judged):
    """A placement for the max-load or the latency objective; the order is the graph's own."""

    problem: PartitionProblem

    @property
    def step(self) -> StepProblem:
        """The step that is divided."""
        return self.problem.step

    def bound(self) -> None:
        """Solvers bring their own."""

    def judge(self, plan: Plan) -> Verdict:
        device, step = plan.placement.device, self.step
        violations = tuple(self.problem.violations(device))
        state = np.bincount(
            device, weights=step.graph.state_bytes, minlength=step.topology.num_devices
        )
        return Verdict(self.problem.objective(device), violations, float(state.max()))


Planner = Solver[StepPlanning, Plan]
PartitionPlanner = Solver[Partition, Plan]
BandwidthPlanner = Solver[BandwidthPlanning, Plan]
HybridPlanner = Solver[HybridProblem, HybridPlan]


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


def _in_phases(problem: StepProblem, plan: Plan, phases: Phases) -> Evaluation:
    """The step with its own rates in every phase."""
    network, devices = problem.topology.network, problem.topology.devices
    rates = np.stack([allocation.pipes(network) for allocation in phases.allocations])
    timeline = PhasedSimulator(problem).run(plan.placement.device, plan.order, phases.begins, rates)
    faults = [fault for one in phases.allocations for fault in one.violations(network)]
    over = timeline.peak_memory - problem.capacity
    for index in np.flatnonzero(over > 0):
        name = devices[index].name
        faults.append(f"device {name!r} needs {over[index]:.0f} bytes too many at its peak")
    return Evaluation(plan, problem, timeline, tuple(faults))


def _nothing(*violations: str) -> Verdict:
    return Verdict(float("inf"), violations, float("nan"))
