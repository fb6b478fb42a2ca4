"""What an agent is asked for: the objectives of `experiments.plan`, named by `problem=`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from agents.base import (
    BandwidthPlanner,
    JointPlanner,
    PartitionPlanner,
    Planner,
    PlannerResult,
    SharedPlanner,
)
from agents.placement.baselines import ContiguousSplit, EqualShares
from envs.bounds import Positive, bounded
from envs.errors import InputError
from envs.graphs.storage import graph_hash
from envs.partition.latency import LatencyProblem
from envs.partition.max_load import MaxLoadProblem
from envs.partition.problem import PartitionProblem
from envs.placement.toy import toy_pipeline
from envs.step.allocated import Allocated
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT, Communication
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, file_hash, stamp
from experiments.step.evaluation import evaluate_plan, require_fit
from experiments.step.plan_file import ALLOCATED, read_plan, write_plan

PARTITION_SCHEMA_VERSION = 1
TOY_SECONDS = 0.1  # of the split that a rehearsal starts from, which needs less
ANSWERS: dict[type, str] = {  # kinds of planners, and the problems they are asked for
    Planner: "makespan", PartitionPlanner: "max_load, latency", BandwidthPlanner: "bandwidth",
    JointPlanner: "joint", SharedPlanner: "shared",
}  # fmt: skip

Search = Callable[[float, int | None], PlannerResult]  # budget in seconds, deterministic limit


@dataclass(frozen=True, eq=False)
class Verdict:
    """A plan judged by the problem itself, never by its maker."""

    objective: float  # seconds
    violations: tuple[str, ...]  # a sentence each; empty: feasible
    peak_memory: float  # bytes on the fullest device


class Task(Protocol):
    """One objective on one graph and its devices."""

    def bound(self) -> float:
        """Seconds no plan can beat, known before any search; 0 where nothing is known.

        Raises:
            InputError: memory alone proves that there is no plan.
        """

    def search(self, agent: Any) -> Search | None:
        """How `agent` is asked, None where it does not answer to this objective."""

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """The objective of a plan and what is wrong with it.

        `allocation` counts for the objectives in which bandwidth is decided.
        """

    def write(
        self,
        folder: Path,
        plan: Plan,
        allocation: BandwidthAllocation | None,
        provenance: Provenance,
    ) -> Path:
        """Write what was decided into `folder`; returns the file."""


@runtime_checkable
class Objective(Protocol):
    """What `problem=` names."""

    @property
    def name(self) -> str:
        """As in `problem=<name>`."""

    def of(self, step: StepProblem) -> Task:
        """The objective on one graph and its devices."""

    def inputs(self) -> dict[str, str]:
        """SHA-256 of the files it takes from, by name."""

    def rehearsal(self) -> Task:
        """The objective on a toy, for the first search of a process, which is not counted."""


class FromStep(ABC):
    """An objective on a step alone, without files."""

    @abstractmethod
    def of(self, step: StepProblem) -> Task: ...

    def inputs(self) -> dict[str, str]:
        return {}

    def rehearsal(self) -> Task:
        return self.of(toy_pipeline())


@dataclass(frozen=True)
class Makespan(FromStep):
    """The time of one step, placed and ordered, in the simulator under `single_port`."""

    name: ClassVar[str] = "makespan"
    memory: bool  # whether the capacities of the devices count

    def of(self, step: StepProblem) -> Task:
        if not self.memory:
            step = replace(step, capacity=np.full_like(step.capacity, np.inf))
        return StepTask(step)


@dataclass(frozen=True)
class MaxLoad(FromStep):
    """The load of the busiest device: the time per sample of a pipeline."""

    name: ClassVar[str] = "max_load"
    contiguous: bool  # only splits along which the forward pass never returns to a device

    def of(self, step: StepProblem) -> Task:
        return PartitionTask(MaxLoadProblem(step, contiguous=self.contiguous), self.name)


@dataclass(frozen=True)
class Latency(FromStep):
    """The time of one sample through accelerators, each called once."""

    name: ClassVar[str] = "latency"

    def of(self, step: StepProblem) -> Task:
        return PartitionTask(LatencyProblem(step), self.name)


@dataclass(frozen=True)
class Joint(FromStep):
    """The time of one step whose placement, order and bandwidth are all decided."""

    name: ClassVar[str] = "joint"

    def of(self, step: StepProblem) -> Task:
        return JointTask(step)

    def rehearsal(self) -> Task:
        return self.of(_two_servers())


@bounded
@dataclass(frozen=True)
class Bandwidth:
    """The time of one step under an allocation of bandwidth to a placement and order."""

    name: ClassVar[str] = "bandwidth"
    plan: str | None  # a file, whose own bandwidth is decided anew; None: the placer plans
    placer: Planner  # under `single_port`
    placer_budget_s: Positive
    order: OrderRule  # of a plan file that gives none

    def of(self, step: StepProblem) -> Task:
        if self.plan is not None:
            return BandwidthTask(step, read_plan(self.plan, step, self.order))
        return BandwidthTask(step, _placed(step, self.placer, self.placer_budget_s))

    def inputs(self) -> dict[str, str]:
        return {} if self.plan is None else {"plan": file_hash(self.plan)}

    def rehearsal(self) -> Task:
        step = _two_servers()
        return BandwidthTask(step, _even_split(step))


@dataclass(frozen=True)
class Shared:
    """The time of one step, placed and ordered, whose transfers share the network as they come."""

    name: ClassVar[str] = "shared"
    plans: Sequence[str]  # files to start from; bandwidth in them does not count
    communication: Communication
    order: OrderRule  # of a plan file that gives none

    def __post_init__(self) -> None:
        if isinstance(self.plans, str) or not self.plans:
            raise InputError("at least one plan file is needed", field="plans")

    def of(self, step: StepProblem) -> Task:
        plans = tuple(read_plan(path, step, self.order) for path in self.plans)
        return SharedTask(step, self.communication, plans)

    def inputs(self) -> dict[str, str]:
        return {f"plan_{number}": file_hash(path) for number, path in enumerate(self.plans)}

    def rehearsal(self) -> Task:
        step = toy_pipeline()
        return SharedTask(step, self.communication, (_even_split(step),))


@dataclass(frozen=True, eq=False)
class StepTask:
    """A placement and an order for `problem`, under `single_port`."""

    allocates: ClassVar[bool] = False  # whether bandwidth is decided
    problem: StepProblem

    def bound(self) -> float:
        """`agents.step.lower_bound`, which holds under any communication."""
        return require_fit(self.problem).seconds

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, Planner):
            return None
        return lambda budget_s, limit: agent.plan(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        return self.played(plan, SINGLE_PORT)

    def played(self, plan: Plan, communication: Communication) -> Verdict:
        """The plan as the simulator of `communication` plays it, on all operators."""
        evaluation = evaluate_plan(self.problem, plan, communication)
        peak = float(evaluation.timeline.peak_memory.max())
        return Verdict(evaluation.step_time, evaluation.violations, peak)

    def write(
        self,
        folder: Path,
        plan: Plan,
        allocation: BandwidthAllocation | None,
        provenance: Provenance,
    ) -> Path:
        """`plan.json`, with the bandwidth where that was decided."""
        path = folder / "plan.json"
        write_plan(path, plan, self.problem, provenance, allocation if self.allocates else None)
        return path


@dataclass(frozen=True, eq=False)
class JointTask(StepTask):
    """A placement, an order and an allocation for `problem`."""

    allocates: ClassVar[bool] = True

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, JointPlanner):
            return None
        return lambda budget_s, limit: agent.plan_jointly(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """The plan as the simulator plays it through pipes of the allocated rates."""
        if allocation is None:
            return _nothing("no bandwidth is allocated")
        violations = allocation.violations(self.problem.topology.network)
        if violations:
            return _nothing(*violations)
        return self.played(plan, Allocated(ALLOCATED, allocation))


@dataclass(frozen=True, eq=False)
class BandwidthTask(JointTask):
    """An allocation for `plan` of `problem`; another plan is a violation."""

    plan: Plan

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, BandwidthPlanner):
            return None
        return lambda budget_s, limit: agent.allocate(self.problem, self.plan, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        verdict = super().judge(plan, allocation)
        same_place = np.array_equal(plan.placement.device, self.plan.placement.device)
        if same_place and np.array_equal(plan.order, self.plan.order):
            return verdict
        fault = "the placement and the order are not those that were given"
        return replace(verdict, violations=(fault, *verdict.violations))


@dataclass(frozen=True, eq=False)
class SharedTask(StepTask):
    """A placement and an order for `problem` under `communication`, starting from `plans`."""

    communication: Communication
    plans: tuple[Plan, ...]

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, SharedPlanner):
            return None
        return lambda budget_s, limit: agent.improve(
            self.problem, self.communication, self.plans, budget_s, limit
        )

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        return self.played(plan, self.communication)


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """A placement for `problem`; `name` is that of its objective. The order does not matter."""

    problem: PartitionProblem
    name: str

    def bound(self) -> float:
        """0: the planners bring their own."""
        return 0.0

    def search(self, agent: Any) -> Search | None:
        if not isinstance(agent, PartitionPlanner):
            return None
        return lambda budget_s, limit: agent.partition(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        device, step = plan.placement.device, self.problem.step
        violations = tuple(self.problem.violations(device))
        state = np.bincount(
            device, weights=step.graph.state_bytes, minlength=step.topology.num_devices
        )
        return Verdict(self.problem.objective(device), violations, float(state.max()))

    def write(
        self,
        folder: Path,
        plan: Plan,
        allocation: BandwidthAllocation | None,
        provenance: Provenance,
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


def problems_of(agent: object) -> str:
    """The problems that an agent plans, as `problem=` names them; empty: none."""
    return ", ".join(name for kind, name in ANSWERS.items() if isinstance(agent, kind))


def _nothing(*violations: str) -> Verdict:
    return Verdict(float("inf"), violations, float("nan"))


def _placed(step: StepProblem, placer: Planner, budget_s: float) -> Plan:
    found = placer.plan(step, budget_s)
    if found.plan is None:
        place = f"graph {step.graph.name!r} on topology {step.topology.name!r}"
        raise InputError(f"{place}: the placer has no plan ({found.reason})")
    return found.plan


def _even_split(toy: StepProblem) -> Plan:
    split = ContiguousSplit(groups=toy.graph.num_operators, shares=EqualShares())
    return _placed(toy, split, TOY_SECONDS)


def _two_servers() -> StepProblem:
    """`toy_pipeline` with links of one byte/s, whose messages have no latency but bytes."""
    toy = toy_pipeline()
    topology = replace(
        toy.topology,
        class_latency=np.zeros(len(toy.topology.class_names)),
        class_bandwidth=np.array([np.inf, 1.0, 1.0]),
    )
    return replace(toy, topology=topology)
