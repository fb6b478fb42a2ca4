"""What an agent is asked for: the objectives of `experiments.plan`, named by `problem=`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from agents.placement.baselines import ContiguousSplit, EqualShares, SpeedShares
from agents.solver import Budget
from agents.step.problems import Planner, StepPlanning
from envs.bandwidth.env import BandwidthEnv
from envs.bounds import Positive, bounded
from envs.errors import InputError
from envs.partition.problem import LatencyProblem, MaxLoadProblem
from envs.placement.episodes import OneProblem
from envs.placement.generator import toy_pipeline
from envs.step.fair import Fair
from envs.step.order import OneFOneB, OrderRule, checked_orders
from envs.step.plans import Plan
from envs.step.problem import StepProblem, checked_moves
from envs.step.step import Communication
from experiments.config.targets import build, build_as
from experiments.run.provenance import file_hash
from experiments.step.plan_file import read_kept_plan
from experiments.step.tasks import (
    BandwidthTask,
    JointTask,
    LearnedTask,
    PartitionTask,
    SharedTask,
    StepTask,
    Task,
    begun,
)

TOY_SECONDS = 0.1  # of the split that a toy starts from, which needs less


class Objective(ABC):
    """What `problem=` names."""

    name: ClassVar[str]

    @abstractmethod
    def of(self, step: StepProblem) -> Task:
        """The objective on one graph and its devices."""

    def inputs(self) -> dict[str, str]:
        """SHA-256 of the files it takes from, by name."""
        return {}

    def toy(self) -> Task:
        """The objective on a toy, for the first search of a process, which is not counted."""
        return self.of(toy_pipeline())


@dataclass(frozen=True)
class Makespan(Objective):
    """The time of one step, placed and ordered, in the simulator under `single_port`."""

    name: ClassVar[str] = "makespan"
    memory: bool = True  # whether the capacities of the devices count
    # that a plan may have, of `envs.step.order.ORDERS`
    orders: Sequence[str] = (
        "gpipe",
        "one_f_one_b",
        "interleaved",
        "zb_h1",
        "zb_h2",
        "zb_v",
        "dualpipe_v",
        "free",
    )
    memory_moves: Sequence[str] = ()  # of `MEMORY_MOVES`: what plans may do with saved activations

    def __post_init__(self) -> None:
        checked_orders(self.orders)
        checked_moves(self.memory_moves)

    def of(self, step: StepProblem) -> Task:
        if not self.memory:
            step = replace(step, capacity=np.full_like(step.capacity, np.inf))
        moves = tuple(self.memory_moves)
        return StepTask(replace(step, orders=tuple(self.orders), memory_moves=moves))


@dataclass(frozen=True)
class MaxLoad(Objective):
    """The load of the busiest device: the time per sample of a pipeline."""

    name: ClassVar[str] = "max_load"
    contiguous: bool = False  # only splits along which the forward pass never returns to a device

    def of(self, step: StepProblem) -> Task:
        return PartitionTask(MaxLoadProblem(step, contiguous=self.contiguous), self.name)


@dataclass(frozen=True)
class Latency(Objective):
    """The time of one sample through accelerators, each called once."""

    name: ClassVar[str] = "latency"

    def of(self, step: StepProblem) -> Task:
        return PartitionTask(LatencyProblem(step), self.name)


@dataclass(frozen=True)
class Joint(Objective):
    """The time of one step whose placement, order and bandwidth are all decided."""

    name: ClassVar[str] = "joint"

    def of(self, step: StepProblem) -> Task:
        return JointTask(step)

    def toy(self) -> Task:
        return self.of(_two_servers())


@bounded
@dataclass(frozen=True)
class Bandwidth(Objective):
    """The time of one step under an allocation of bandwidth to a placement and order."""

    name: ClassVar[str] = "bandwidth"
    placer: Planner = ContiguousSplit(shares=SpeedShares())  # under `single_port`
    placer_budget_s: Positive = 10.0  # wall time of the placer, for those that use it
    order: OrderRule = OneFOneB()  # of a plan file that gives none
    plan: str | None = None  # a file, whose own bandwidth is decided anew; None: the placer plans

    def of(self, step: StepProblem) -> BandwidthTask:
        if self.plan is not None:
            return BandwidthTask(step, read_kept_plan(self.plan, step, self.order))
        return BandwidthTask(step, _placed(step, self.placer, self.placer_budget_s))

    def inputs(self) -> dict[str, str]:
        return {} if self.plan is None else {"plan": file_hash(self.plan)}

    def toy(self) -> Task:
        step = _two_servers()
        return BandwidthTask(step, _even_split(step))


@dataclass(frozen=True)
class Shared(Objective):
    """The time of one step, placed and ordered, whose transfers share the network as they come."""

    name: ClassVar[str] = "shared"
    plans: Sequence[str]  # files to start from; bandwidth in them does not count
    communication: Communication = Fair()
    order: OrderRule = OneFOneB()  # of a plan file that gives none

    def __post_init__(self) -> None:
        if isinstance(self.plans, str) or not self.plans:
            raise InputError("at least one plan file is needed", field="plans")

    def of(self, step: StepProblem) -> Task:
        plans = tuple(read_kept_plan(path, step, self.order) for path in self.plans)
        return SharedTask(step, plans, communication=self.communication)

    def inputs(self) -> dict[str, str]:
        return {f"plan_{number}": file_hash(path) for number, path in enumerate(self.plans)}

    def toy(self) -> Task:
        step = toy_pipeline()
        return SharedTask(step, (_even_split(step),), communication=self.communication)


def learnable(
    node: Mapping[str, Any],
    problem: StepProblem,
    communication: Communication,
    placer: Mapping[str, Any],
    placer_budget_s: float,
) -> tuple[Objective, LearnedTask]:
    """What is decided in the environment that a config node describes, and its objective.

    Args:
        node: the environment.
        problem: that it is about, unless it brings its own.
        communication: plans of placements are judged under.
        placer: the planner whose plan gets its bandwidth allocated.
        placer_budget_s: its wall time in seconds.

    Raises:
        InputError: nothing can be learned in it, or the placer finds no plan.
    """
    env = build(node, "env")
    bandwidth = Bandwidth(
        build_as(Planner, placer, "placer", "solver of StepPlanning"), placer_budget_s
    )
    if node.get("_partial_") and _class_of(env) is BandwidthEnv:
        env = env(problem, bandwidth.of(problem).plan)
    if isinstance(env, BandwidthEnv):
        return bandwidth, BandwidthTask(problem, begun(env).instance.plan, env=env)
    objective = Makespan(True, problem.orders, problem.memory_moves)
    return objective, placement_task(node, problem, communication)


def placement_task(
    node: Mapping[str, Any], problem: StepProblem, communication: Communication
) -> StepTask:
    """Whole plans for `problem`, to be learned in the environment that a config node describes.

    Raises:
        InputError: it is another.
    """
    env = build(node, "env")
    if not (node.get("_partial_") and _class_of(env) is OneProblem):
        reason = f"config key 'env': {node.get('_target_')} is no environment to learn in"
        raise InputError(f"{reason}: take env=one_problem for placements")
    return StepTask(problem, communication=communication, env=env)


def _class_of(make: partial[Any]) -> object:
    """The class whose constructor, or other class method, `make` completes."""
    return getattr(make.func, "__self__", make.func)


def _placed(step: StepProblem, placer: Planner, budget_s: float) -> Plan:
    found = placer.solve(StepPlanning(step), Budget(budget_s))
    if found.solution is None:
        place = f"graph {step.graph.name!r} on topology {step.topology.name!r}"
        raise InputError(f"{place}: the placer has no plan ({found.reason})")
    return found.solution


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
