"""What is decided for an objective: how planners are asked, what is learned, who judges, the files.

A task is one objective on one problem, for those that plan and those that learn alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from agents.base import (
    BandwidthPlanner,
    HybridPlanner,
    JointPlanner,
    PartitionPlanner,
    Planner,
    PlannerResult,
    SharedPlanner,
)
from envs.arrays import IntArray
from envs.bandwidth.env import BandwidthEnv
from envs.graphs.storage import graph_hash
from envs.partition.problem import PartitionProblem
from envs.step.allocated import Allocated, uniform_allocation
from envs.step.fusion import fuse
from envs.step.phased import PhasedSimulator
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.price import BestOrder
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT, Communication
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from experiments.step.evaluation import Evaluation, evaluate_plan, require_fit
from experiments.step.plan_file import ALLOCATED, write_plan

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.step.bandwidth import BandwidthSubject
    from agents.rllib.step.problems import Problems
    from agents.rllib.subject import Solution

PARTITION_SCHEMA_VERSION = 1
ANSWERS: dict[type, str] = {  # kinds of planners, and the problems they are asked for
    Planner: "makespan, joint", PartitionPlanner: "max_load, latency",
    BandwidthPlanner: "bandwidth", JointPlanner: "joint", SharedPlanner: "shared",
    HybridPlanner: "pipeline",
}  # fmt: skip

Search = Callable[[float, int | None], PlannerResult]  # budget in seconds, deterministic limit


@dataclass(frozen=True, eq=False)
class Phases:
    """An allocation of bandwidth for every phase of a step."""

    begins: IntArray  # (P,) first position of each phase, see `envs.bandwidth.phases`
    allocations: tuple[BandwidthAllocation, ...]


Allocation = BandwidthAllocation | Phases | None  # None: bandwidth is not decided


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


class Task(Protocol):
    """One objective on one graph and its devices."""

    def bound(self) -> float:
        """Seconds no plan can beat, known before any search; 0 where nothing is known.

        Raises:
            InputError: memory alone proves that there is no plan.
        """

    def search(self, agent: Any) -> Search | None:
        """How `agent` is asked, None where it does not answer to this objective."""

    def judge(self, plan: Plan, allocation: Allocation) -> Verdict:
        """The objective of a plan and what is wrong with it.

        `allocation` counts for the objectives in which bandwidth is decided.
        """

    def write(
        self, folder: Path, plan: Plan, allocation: Allocation, provenance: Provenance
    ) -> Path:
        """Write what was decided into `folder`; returns the file."""


@dataclass(frozen=True, eq=False)
class StepTask:
    """A placement and an order for `problem`, under `communication`.

    What learns decides in `env`.
    """

    problem: StepProblem
    communication: Communication = field(default=SINGLE_PORT, kw_only=True)
    env: Any = field(default=None, kw_only=True)

    def bound(self) -> float:
        """`agents.step.lower_bound`, which holds under any communication."""
        return require_fit(self.problem).seconds

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, Planner):
            return None
        return lambda budget_s, limit: agent.plan(self.problem, budget_s, limit)

    def subject(self, training: Training) -> Problems | BandwidthSubject:
        """Whole plans; `env` makes the `OneProblem` of a problem, for so many sweeps.

        Raises:
            InputError: they cannot be learned so.
        """
        from agents.rllib.step.problems import Problems, sweeps_of

        return Problems(self.env(self.problem, sweeps=sweeps_of(training.model)), training)

    def plan_of(self, found: Solution) -> tuple[Plan, Allocation]:
        """What was decided in `env`; here in the best order that the problem allows."""
        fusion = fuse(self.problem, self.env.keywords["max_groups"])
        device = fusion.expand(found.decisions["device"])
        return Plan(Placement(device), BestOrder(self.problem).order(device)), None

    def judge(self, plan: Plan, allocation: Allocation) -> Verdict:
        """The plan as the simulator of `communication` plays it, on all operators."""
        return Verdict.of(evaluate_plan(self.problem, plan, self.communication))

    def write(
        self, folder: Path, plan: Plan, allocation: Allocation, provenance: Provenance
    ) -> Path:
        """`plan.json`."""
        write_plan(folder / "plan.json", plan, self.problem, provenance)
        return folder / "plan.json"


@dataclass(frozen=True, eq=False)
class JointTask(StepTask):
    """A placement, an order and an allocation for `problem`."""

    def search(self, agent: Any) -> Search | None:
        """Who only places does so for uniform static shares of the links."""
        if isinstance(agent, Planner):
            from agents.bandwidth.joint import PlacementAlone

            agent = PlacementAlone(placement=agent, allocation=uniform_allocation)
        if not isinstance(agent, JointPlanner):
            return None
        return lambda budget_s, limit: agent.plan_jointly(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: Allocation) -> Verdict:
        """The plan as the simulator plays it through pipes of the allocated rates."""
        if not isinstance(allocation, BandwidthAllocation):
            return _nothing("no bandwidth is allocated")
        violations = allocation.violations(self.problem.topology.network)
        if violations:
            return _nothing(*violations)
        return Verdict.of(evaluate_plan(self.problem, plan, Allocated(ALLOCATED, allocation)))

    def write(
        self, folder: Path, plan: Plan, allocation: Allocation, provenance: Provenance
    ) -> Path:
        """`plan.json`, with the bandwidth where it is one for the whole step."""
        whole = allocation if isinstance(allocation, BandwidthAllocation) else None
        write_plan(folder / "plan.json", plan, self.problem, provenance, whole)
        return folder / "plan.json"


@dataclass(frozen=True, eq=False)
class BandwidthTask(JointTask):
    """An allocation for `plan` of `problem`, or one for every phase; another plan is a fault.

    What learns decides in copies of `env`, the environment before its first reset.
    """

    plan: Plan

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, BandwidthPlanner):
            return None
        return lambda budget_s, limit: agent.allocate(self.problem, self.plan, budget_s, limit)

    def subject(self, training: Training) -> BandwidthSubject:
        from agents.rllib.step.bandwidth import BandwidthSubject

        return BandwidthSubject(self.env, training)

    def plan_of(self, found: Solution) -> tuple[Plan, Allocation]:
        """The rates of every phase."""
        allocations = tuple(BandwidthAllocation(rate) for rate in found.decisions["rate"])
        return self.plan, Phases(begun(self.env).instance.begins, allocations)

    def judge(self, plan: Plan, allocation: Allocation) -> Verdict:
        if isinstance(allocation, Phases):
            verdict = Verdict.of(_in_phases(self.problem, plan, allocation))
        else:
            verdict = super().judge(plan, allocation)
        same_place = np.array_equal(plan.placement.device, self.plan.placement.device)
        if same_place and np.array_equal(plan.order, self.plan.order):
            return verdict
        fault = "the placement and the order are not those that were given"
        return replace(verdict, violations=(fault, *verdict.violations))

    def write(
        self, folder: Path, plan: Plan, allocation: Allocation, provenance: Provenance
    ) -> Path:
        """`plan.json`; beside it `phases.json`, where every phase has its own rates."""
        if not isinstance(allocation, Phases):
            return super().write(folder, plan, allocation, provenance)
        names = self.problem.topology.network.channel_names
        phases = [
            {
                "first_operator": self.problem.graph.op_names[plan.order[first]],
                "bandwidth_bytes_per_s": dict(zip(names, one.rate.tolist(), strict=True)),
            }
            for first, one in zip(allocation.begins, allocation.allocations, strict=True)
        ]
        write_json(folder / "phases.json", stamp({"phases": phases}, provenance, kind="phases"))
        whole = allocation.allocations[0] if len(phases) == 1 else None
        return super().write(folder, plan, whole, provenance)


@dataclass(frozen=True, eq=False)
class SharedTask(StepTask):
    """A placement and an order for `problem` under `communication`, starting from `plans`."""

    plans: tuple[Plan, ...]

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, SharedPlanner):
            return None
        return lambda budget_s, limit: agent.improve(
            self.problem, self.communication, self.plans, budget_s, limit
        )


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """A placement for `problem`; `name` is that of its objective. The order does not matter."""

    problem: PartitionProblem
    name: str

    def bound(self) -> float:
        """0: the planners bring their own."""
        return 0.0

    def search(self, agent: Any) -> Search | None:
        if not issubclass(type(agent), PartitionPlanner):
            return None
        return lambda budget_s, limit: agent.partition(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: Allocation) -> Verdict:
        device, step = plan.placement.device, self.problem.step
        violations = tuple(self.problem.violations(device))
        state = np.bincount(
            device, weights=step.graph.state_bytes, minlength=step.topology.num_devices
        )
        return Verdict(self.problem.objective(device), violations, float(state.max()))

    def write(
        self, folder: Path, plan: Plan, allocation: Allocation, provenance: Provenance
    ) -> Path:
        """`partition.json`.

        The document: `graph` {name, sha256}, `topology` (its name), `problem` (the objective) and
        `placement` {operator: device}, beside kind, schema version, units and provenance.
        """
        graph, topology = self.problem.step.graph, self.problem.step.topology
        document = {
            "graph": {"name": graph.name, "sha256": graph_hash(graph)},
            "topology": topology.name,
            "problem": self.name,
            "placement": {
                name: topology.devices[device].name
                for name, device in zip(graph.op_names, plan.placement.device, strict=True)
            },
        }
        path = folder / "partition.json"
        version = PARTITION_SCHEMA_VERSION
        write_json(path, stamp(document, provenance, kind="partition", schema_version=version))
        return path


def begun(env: BandwidthEnv) -> BandwidthEnv:
    """A copy of an environment before its first reset, after that."""
    found = copy.copy(env)
    found.reset(seed=0)
    return found


def problems_of(agent: object) -> str:
    """The problems that an agent plans, as `problem=` names them; empty: none."""
    return ", ".join(name for kind, name in ANSWERS.items() if issubclass(type(agent), kind))


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
