"""Problems of one step as they are asked for: who solves them, what is learned, the files.

A task is one objective on one problem, for those that plan and those that learn alike.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agents.solver import Problem, Solver
from agents.step.problems import (
    BandwidthPlanning,
    JointPlanning,
    Partition,
    SharedPlanning,
    StepPlanning,
    Verdict,
)
from envs.bandwidth.env import BandwidthEnv
from envs.errors import InputError
from envs.hybrid.problem import HybridProblem
from envs.step.allocated import uniform_allocation
from envs.step.fusion import fuse
from envs.step.plans import BandwidthAllocation, Phases, Placement, Plan
from envs.step.price import BestOrder
from envs.step.problem import StepProblem
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from experiments.step.plan_file import write_plan

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.step.bandwidth import BandwidthRLTask
    from agents.rllib.step.plans import PlanRLTask
    from agents.rllib.task import Solution

PARTITION_SCHEMA_VERSION = 1
NAMES: dict[type, str] = {  # of problems, as `problem=` names them
    StepPlanning: "makespan, joint", Partition: "max_load, latency", JointPlanning: "joint",
    BandwidthPlanning: "bandwidth", SharedPlanning: "shared", HybridProblem: "pipeline",
}  # fmt: skip


class Task(Problem, Protocol):
    """One objective on one graph and its devices, whose solutions are plans."""

    @property
    def start(self) -> Sequence[Plan]:
        """What a search begins with."""

    @property
    def step(self) -> StepProblem:
        """The step that is planned."""

    def judge(self, plan: Plan) -> Verdict:
        """The objective of a plan and what is wrong with it."""

    def write(self, folder: Path, plan: Plan, provenance: Provenance) -> Path:
        """Write what was decided into `folder`; returns the file."""


class _PlanFile:
    start: Sequence[Plan] = ()
    step: StepProblem

    def write(self, folder: Path, plan: Plan, provenance: Provenance) -> Path:
        """`plan.json`, with the bandwidth where it is one for the whole step, or the weights."""
        allocation = plan.allocation
        whole = None if isinstance(allocation, Phases) else allocation
        write_plan(folder / "plan.json", plan, self.step, provenance, whole)
        return folder / "plan.json"


class LearnedTask(Task, Protocol):
    """A task that can be learned."""

    @property
    def env(self) -> Any:
        """What is learned in."""

    def rl_task(self, training: Training) -> PlanRLTask | BandwidthRLTask:
        """What is trained.

        Raises:
            InputError: it cannot be learned so.
        """

    def plan_of(self, found: Solution) -> Plan:
        """What was decided in `env`."""


@dataclass(frozen=True, eq=False)
class StepTask(_PlanFile, StepPlanning):
    """A placement and an order; what learns decides in `env`."""

    env: Any = field(default=None, kw_only=True)

    def rl_task(self, training: Training) -> PlanRLTask:
        """Whole plans; `env` makes the `OneProblem` of a problem, for so many sweeps."""
        from agents.rllib.step.plans import PlanRLTask, sweeps_of

        return PlanRLTask(self.env(self.step, sweeps=sweeps_of(training.model)), training)

    def plan_of(self, found: Solution) -> Plan:
        """What was decided in `env`; here in the best order that the problem allows."""
        fusion = fuse(self.step, self.env.keywords["max_groups"])
        device = fusion.expand(found.decisions["device"])
        return Plan(Placement(device), BestOrder(self.step).order(device))


class JointTask(_PlanFile, JointPlanning):
    """A placement, an order and an allocation."""


@dataclass(frozen=True, eq=False)
class BandwidthTask(_PlanFile, BandwidthPlanning):
    """An allocation for a plan; what learns decides in copies of `env`, as it was made."""

    env: Any = field(default=None, kw_only=True)

    def rl_task(self, training: Training) -> BandwidthRLTask:
        from agents.rllib.step.bandwidth import BandwidthRLTask

        return BandwidthRLTask(self.env, training)

    def plan_of(self, found: Solution) -> Plan:
        """The rates of every phase."""
        allocations = tuple(BandwidthAllocation(rate) for rate in found.decisions["rate"])
        phases = Phases(begun(self.env).instance.begins, allocations)
        return replace(self.plan, allocation=phases)

    def write(self, folder: Path, plan: Plan, provenance: Provenance) -> Path:
        """`plan.json`; beside it `phases.json`, where every phase has its own rates."""
        allocation = plan.allocation
        if isinstance(allocation, Phases):
            names = self.step.topology.network.channel_names
            phases = [
                {
                    "first_operator": self.step.graph.op_names[plan.order[first]],
                    "bandwidth_bytes_per_s": dict(zip(names, one.rate.tolist(), strict=True)),
                }
                for first, one in zip(allocation.begins, allocation.allocations, strict=True)
            ]
            write_json(folder / "phases.json", stamp({"phases": phases}, provenance, kind="phases"))
            if len(phases) == 1:
                plan = replace(plan, allocation=allocation.allocations[0])
        return super().write(folder, plan, provenance)


@dataclass(frozen=True, eq=False)
class SharedTask(_PlanFile, SharedPlanning):
    """A placement and an order under `communication`, starting from `start`."""

    start: Sequence[Plan] = ()


@dataclass(frozen=True, eq=False)
class PartitionTask(Partition):
    """A placement; `name` is that of its objective. The order does not matter."""

    name: str
    start: Sequence[Plan] = ()

    def write(self, folder: Path, plan: Plan, provenance: Provenance) -> Path:
        """`partition.json`.

        The document: `graph` {name, sha256}, `topology` (its name), `problem` (the objective) and
        `placement` {operator: device}, beside kind, schema version, units and provenance.
        """
        document = {**plan.document(self.step), "problem": self.name}
        del document["order"]
        path = folder / "partition.json"
        version = PARTITION_SCHEMA_VERSION
        write_json(path, stamp(document, provenance, kind="partition", schema_version=version))
        return path


def begun(env: BandwidthEnv) -> BandwidthEnv:
    """A copy of an environment before its first reset, after that."""
    found = copy.copy(env)
    found.reset(seed=0)
    return found


def solver_of(
    agent: Any, problem: type, name: str, target: object, key: str = "agent"
) -> Solver[Any, Any]:
    """`agent`, which the config calls `target` under `key`, if it solves a kind of problem.

    Who only places does so for uniform static shares of the links, where bandwidth is asked for,
    too.

    Args:
        name: of the problem, as in `problem=<name>`.

    Raises:
        InputError: the agent does not solve such a problem.
    """
    solves: tuple[type, ...] = getattr(agent, "solves", ())
    if issubclass(problem, solves):
        solver: Solver[Any, Any] = agent
        return solver
    if issubclass(problem, JointPlanning) and StepPlanning in solves:
        from agents.bandwidth.joint import PlacementAlone

        return PlacementAlone(placement=agent, allocation=uniform_allocation)
    reason = f"config key '{key}': {target} does not plan problem={name}"
    if names := ", ".join(NAMES[kind] for kind in solves if kind in NAMES):
        raise InputError(f"{reason}; it plans problem={names}: ask experiments.plan for that")
    raise InputError(
        f"{reason}; what schedules jobs needs env=cluster and a trace, what learns is trained by "
        "experiments.train, and its folder planned with by agent=learned"
    )
