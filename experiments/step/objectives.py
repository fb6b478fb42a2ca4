"""What an agent is asked for: the objectives of `experiments.plan`, named by `problem=`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from agents.base import PlannerResult
from envs.graphs.storage import graph_hash
from envs.partition.latency import LatencyProblem
from envs.partition.max_load import MaxLoadProblem
from envs.partition.problem import PartitionProblem
from envs.placement.toy import toy_pipeline
from envs.step.communication import Communication
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from experiments.step.evaluation import evaluate_plan, require_fit
from experiments.step.plan_file import write_plan

PARTITION_SCHEMA_VERSION = 1

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
    def of(self, step: StepProblem) -> Task:
        """As `Objective.of`."""

    def inputs(self) -> dict[str, str]:
        """None."""
        return {}

    def rehearsal(self) -> Task:
        """`toy_pipeline`."""
        return self.of(toy_pipeline())


@dataclass(frozen=True)
class Makespan(FromStep):
    """The time of one step, placed and ordered, in the simulator under `single_port`.

    Args:
        memory: whether the capacities of the devices count.
    """

    name: ClassVar[str] = "makespan"
    memory: bool

    def of(self, step: StepProblem) -> Task:
        """The step, with unlimited devices where memory does not count."""
        if not self.memory:
            step = replace(step, capacity=np.full_like(step.capacity, np.inf))
        return StepTask(step)


@dataclass(frozen=True)
class MaxLoad(FromStep):
    """The load of the busiest device: the time per sample of a pipeline.

    Args:
        contiguous: only splits along which the forward pass never returns to a device.
    """

    name: ClassVar[str] = "max_load"
    contiguous: bool

    def of(self, step: StepProblem) -> Task:
        """`MaxLoadProblem` on the step."""
        return PartitionTask(MaxLoadProblem(step, contiguous=self.contiguous), self.name)


@dataclass(frozen=True)
class Latency(FromStep):
    """The time of one sample through accelerators, each called once."""

    name: ClassVar[str] = "latency"

    def of(self, step: StepProblem) -> Task:
        """`LatencyProblem` on the step."""
        return PartitionTask(LatencyProblem(step), self.name)


@dataclass(frozen=True, eq=False)
class StepTask:
    """A placement and an order for `problem`."""

    problem: StepProblem

    def bound(self) -> float:
        """`agents.placement.lower_bound`, which holds under any communication, in seconds.

        Raises:
            InputError: no placement fits; says which bound is violated by how much.
        """
        return require_fit(self.problem).seconds

    def search(self, agent: Any) -> Search | None:
        """`agent.plan` on the problem."""
        if not hasattr(agent, "plan"):
            return None
        return lambda budget_s, limit: agent.plan(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """The plan as `single_port` plays it."""
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
        """Write `plan.json`, a plan file."""
        path = folder / "plan.json"
        write_plan(path, plan, self.problem, provenance)
        return path


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """A placement for `problem`; `name` is that of its objective."""

    problem: PartitionProblem
    name: str

    def bound(self) -> float:
        """0: the planners bring their own."""
        return 0.0

    def search(self, agent: Any) -> Search | None:
        """`agent.partition` on the problem."""
        if not hasattr(agent, "partition"):
            return None
        return lambda budget_s, limit: agent.partition(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """The objective of the placement; the order does not matter."""
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
        """Write `partition.json`.

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
