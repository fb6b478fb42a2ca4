"""What is learned: where a step runs, how its bandwidth is shared, or both together."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from agents.base import BandwidthPlanner, JointPlanner, PlannerResult
from envs.bandwidth.env import BandwidthEnv
from envs.bandwidth.instance import BandwidthInstance
from envs.errors import InputError
from envs.joint.env import JointEnv
from envs.placement.env import PlacementEnv
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.phased import PhasedSimulator
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT, Communication, StepSimulator
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from experiments.run.targets import build
from experiments.step.evaluation import Evaluation, evaluate_plan
from experiments.step.plan_file import write_plan
from experiments.step.problem import LoadedProblem
from experiments.step.search import search

if TYPE_CHECKING:
    from agents.rllib.step.config import TrainingConfig
    from agents.rllib.step.tasks import Task

Node = Mapping[str, Any]
Found = Mapping[str, NDArray[Any]]  # `agents.rllib.step.environment.Found`


class LearningTask(Protocol):
    """An environment about one problem, and how what is found in it is read and judged.

    `prototype` is the environment before its first reset; `goal` completes "learning to ...".
    """

    @property
    def problem(self) -> StepProblem:
        """On every operator."""

    @property
    def prototype(self) -> Any: ...

    @property
    def goal(self) -> str: ...

    def environment(self) -> Any:
        """A copy of the prototype for training, which shares the instance."""

    def task(self, config: TrainingConfig) -> Task:
        """What the learner has to know."""

    def evaluate(self, found: Found) -> Evaluation:
        """The decisions played on every operator."""

    def write(self, folder: Path, found: Found, provenance: Provenance) -> None:
        """Write the decisions into `folder`."""

    def baseline(self, node: Node, budget_s: float) -> tuple[PlannerResult, Evaluation | None]:
        """What the planner that `node` describes finds, and that played on every operator.

        Raises:
            InputError: the planner does not answer to this problem.
        """


@dataclass(frozen=True, eq=False)
class PlacementLearning:
    """`meshwright/Placement-v0`."""

    problem: StepProblem
    prototype: PlacementEnv
    communication: Communication
    goal: ClassVar[str] = "place"

    def environment(self) -> PlacementEnv:
        """A shallow copy."""
        return copy.copy(self.prototype)

    def task(self, config: TrainingConfig) -> Task:
        """Placements, kicked."""
        from agents.rllib.step.tasks import PlacementTask

        return PlacementTask(config.kick)

    def plan(self, found: Found) -> Plan:
        """The placement of every operator, in its 1F1B order."""
        self.prototype.reset(seed=0)
        device = self.prototype.instance.fusion.expand(found["device"])
        return Plan(Placement(device), StepSimulator(self.problem).order(device))

    def evaluate(self, found: Found) -> Evaluation:
        """Under the communication model that was chosen."""
        return evaluate_plan(self.problem, self.plan(found), self.communication)

    def write(self, folder: Path, found: Found, provenance: Provenance) -> None:
        """`plan.json`."""
        write_plan(folder / "plan.json", self.plan(found), self.problem, provenance)

    def baseline(self, node: Node, budget_s: float) -> tuple[PlannerResult, Evaluation | None]:
        """A planner of the same problem."""
        result = search(node, self.problem, budget_s)
        if result.plan is None:
            return result, None
        return result, evaluate_plan(self.problem, result.plan, self.communication)


@dataclass(frozen=True, eq=False)
class BandwidthLearning:
    """`meshwright/Bandwidth-v0` about one placed step, discrete or continuous."""

    problem: StepProblem
    prototype: BandwidthEnv
    goal: ClassVar[str] = "share the network"

    def environment(self) -> BandwidthEnv:
        """A shallow copy."""
        return copy.copy(self.prototype)

    def task(self, config: TrainingConfig) -> Task:
        """Rates, phase by phase.

        Raises:
            InputError: episodes are to start from plans, which these cannot.
        """
        if config.restart_share > 0.0:
            raise InputError(
                f"{config.restart_share} is not 0: every phase gets its bandwidth once",
                field="restart_share",
            )
        from agents.rllib.step.tasks import BandwidthTask

        return BandwidthTask()

    def evaluate(self, found: Found) -> Evaluation:
        """The step with its rates of every phase."""
        instance = self._instance()
        network = self.problem.topology.network
        allocations = [BandwidthAllocation(rate) for rate in found["rate"]]
        timeline = PhasedSimulator(self.problem).run(
            instance.plan.placement.device,
            instance.plan.order,
            instance.begins,
            np.stack([allocation.pipes(network) for allocation in allocations]),
        )
        violations = [fault for one in allocations for fault in one.violations(network)]
        over = timeline.peak_memory - self.problem.capacity
        violations += [
            f"device {self.problem.topology.devices[index].name!r} needs {over[index]:.0f} bytes "
            "too many at its peak"
            for index in np.flatnonzero(over > 0)
        ]
        return Evaluation(instance.plan, timeline, tuple(violations))

    def write(self, folder: Path, found: Found, provenance: Provenance) -> None:
        """`plan.json`, with the bandwidth where it is one for the whole step; `phases.json`."""
        instance, rates = self._instance(), found["rate"]
        whole = BandwidthAllocation(rates[0]) if len(rates) == 1 else None
        write_plan(folder / "plan.json", instance.plan, self.problem, provenance, whole)
        names = self.problem.topology.network.channel_names
        order, operators = instance.plan.order, self.problem.graph.op_names
        document = {
            "phases": [
                {
                    "first_operator": operators[order[first]],
                    "bandwidth_bytes_per_s": dict(zip(names, rate.tolist(), strict=True)),
                }
                for first, rate in zip(instance.begins, rates, strict=True)
            ],
        }
        write_json(folder / "phases.json", stamp(document, provenance, kind="phases"))

    def baseline(self, node: Node, budget_s: float) -> tuple[PlannerResult, Evaluation | None]:
        """A planner of static allocations to the same plan."""
        planner = build(node)
        if not isinstance(planner, BandwidthPlanner):
            raise InputError(f"{node.get('_target_')} allocates no bandwidth to a plan")
        result = planner.allocate(self.problem, self._instance().plan, budget_s)
        return result, _through_pipes(self.problem, result)

    def _instance(self) -> BandwidthInstance:
        self.prototype.reset(seed=0)
        return self.prototype.instance


@dataclass(frozen=True, eq=False)
class JointLearning:
    """`meshwright/Joint-v0` about one problem."""

    problem: StepProblem
    prototype: JointEnv
    goal: ClassVar[str] = "place and to share the network"

    def environment(self) -> JointEnv:
        """A shallow copy."""
        return copy.copy(self.prototype)

    def task(self, config: TrainingConfig) -> Task:
        """Placements and levels of pipes, kicked."""
        from agents.rllib.step.tasks import JointTask

        return JointTask(config.kick, config.draws)

    def evaluate(self, found: Found) -> Evaluation:
        """The plan through pipes of the rates that follow from the levels."""
        plan, allocation = self.decided(found)
        allocated = allocated_problem(self.problem, allocation)
        return evaluate_plan(allocated, plan, SINGLE_PORT)

    def write(self, folder: Path, found: Found, provenance: Provenance) -> None:
        """`plan.json` with its bandwidth."""
        plan, allocation = self.decided(found)
        write_plan(folder / "plan.json", plan, self.problem, provenance, allocation)

    def baseline(self, node: Node, budget_s: float) -> tuple[PlannerResult, Evaluation | None]:
        """A joint planner, or a planner of placements where all links are shared uniformly."""
        planner = build(node)
        if isinstance(planner, JointPlanner):
            result = planner.plan_jointly(self.problem, budget_s)
            return result, _through_pipes(self.problem, result)
        uniform = uniform_allocation(self.problem.topology.network)
        result = search(node, allocated_problem(self.problem, uniform), budget_s)
        return result, _through_pipes(self.problem, replace(result, allocation=uniform))

    def decided(self, found: Found) -> tuple[Plan, BandwidthAllocation]:
        """The placement of every operator in its better order, and the rates of the levels."""
        self.prototype.reset(seed=0, options={"start": found["device"], "levels": found["levels"]})
        return self.prototype.plan(), self.prototype.allocation


def _through_pipes(problem: StepProblem, result: PlannerResult) -> Evaluation | None:
    """A plan with its static allocation played on every operator."""
    if result.plan is None:
        return None
    assert result.allocation is not None
    allocated = allocated_problem(problem, result.allocation)
    return evaluate_plan(allocated, result.plan, SINGLE_PORT)


def learning_task(
    env: Node,
    loaded: LoadedProblem,
    communication: Communication,
    placer: Node,
    placer_budget_s: float,
) -> LearningTask:
    """What `env` describes, about the loaded problem.

    Args:
        env: the environment, as a config node.
        loaded: its problem.
        communication: plans of placements are judged under.
        placer: the planner whose plan gets its bandwidth allocated.
        placer_budget_s: its wall time in seconds.

    Raises:
        InputError: `env` describes no environment that can be learned here, or the placer finds no
            plan.
    """
    problem, make = loaded.problem, build(env)
    if not env.get("_partial_"):
        prototype = make
    elif getattr(_class_of(make), "needs_plan", False):
        found = search(placer, problem, placer_budget_s)
        if found.plan is None:
            raise InputError(f"config key 'placer': has no plan ({found.reason})")
        prototype = make(problem, found.plan)
    else:
        prototype = make(problem)
    if isinstance(prototype, PlacementEnv):
        return PlacementLearning(problem, prototype, communication)
    if isinstance(prototype, BandwidthEnv):
        return BandwidthLearning(problem, prototype)
    if isinstance(prototype, JointEnv):
        return JointLearning(problem, prototype)
    raise InputError(f"config key 'env': {env.get('_target_')} is no environment to learn in")


def _class_of(make: partial[Any]) -> object:
    """The class whose constructor, or other class method, `make` completes."""
    return getattr(make.func, "__self__", make.func)
