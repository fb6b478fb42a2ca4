"""One face for every decision maker: heuristic, solver, learned and exported alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol, runtime_checkable

from envs.cluster.allocation.problem import AllocationPlan, AllocationProblem
from envs.hybrid.plan import HybridPlan
from envs.hybrid.problem import HybridProblem
from envs.partition.problem import PartitionProblem
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import Communication
from envs.synchronisation.plan import SynchronisationPlan
from envs.synchronisation.problem import SynchronisationProblem

Status = Literal["optimal", "feasible", "infeasible", "limit"]


@dataclass(frozen=True)
class PlannerResult:
    """What a planner found.

    `step_time` is the planner's plan re-simulated on the problem, never the planner's own
    estimate. `lower_bound` is proved for every plan of the problem, in any order, so that
    `step_time >= lower_bound`: the planners of `agents.placement` fill in
    `agents.step.lower_bound`, whatever their search (inf: proved that no plan exists); 0
    claims nothing. `trajectory` is the anytime curve: (seconds since the start, best step time so
    far).

    For a `PartitionProblem` the step time is the problem's objective, and the order of the plan is
    the graph's own. Where bandwidth was decided too, the step time is that of
    `envs.step.allocated.allocated_problem(problem, allocation)`.
    """

    plan: Plan | None
    status: Status
    step_time: float  # seconds, inf without a plan
    seconds: float  # wall time of the search
    lower_bound: float = 0.0  # seconds
    evaluations: int = 0  # simulations made
    reason: str = ""  # why, when infeasible or stopped by a limit
    trajectory: list[tuple[float, float]] = field(default_factory=list)
    allocation: BandwidthAllocation | None = None  # of bandwidth, where that was decided


@runtime_checkable
class Planner(Protocol):
    """Decides a whole step at once.

    Knows:
        The whole step: every operator's time on every device, every tensor's bytes, the memory and
        the ports. It decides the placement and the order.
    """

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """The best plan found within `budget_s` seconds of wall time.

        `deterministic_limit` caps the work in the planner's own units (evaluations, nodes), so
        that two runs agree whatever the machine's speed.
        """


@runtime_checkable
class PartitionPlanner(Protocol):
    """Divides a graph between accelerators and the host CPU for a max-load or latency objective."""

    def partition(
        self, problem: PartitionProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; `step_time` and `lower_bound` are those of the objective."""


@runtime_checkable
class BandwidthPlanner(Protocol):
    """Allocates bandwidth to a step whose placement and order are given.

    Knows:
        The whole step, its placement, its order, and the physical links. It decides the rate of
        every channel.
    """

    def allocate(
        self,
        problem: StepProblem,
        plan: Plan,
        budget_s: float,
        deterministic_limit: int | None = None,
    ) -> PlannerResult:
        """As `Planner.plan`, with `plan` itself; the bound is for every allocation to `plan`."""


@runtime_checkable
class JointPlanner(Protocol):
    """Decides placement, order and bandwidth together.

    Knows:
        The whole step and the physical links. It decides the placement, the order and the rate of
        every channel.
    """

    def plan_jointly(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; the bound is for every plan with every allocation."""


@runtime_checkable
class SharedPlanner(Protocol):
    """Improves plans whose transfers share the network as they come.

    Knows:
        The whole step, the physical links, how transfers share them, and plans made elsewhere. It
        decides the placement and the order.
    """

    def improve(
        self,
        problem: StepProblem,
        communication: Communication,
        plans: Sequence[Plan],
        budget_s: float,
        deterministic_limit: int | None = None,
    ) -> PlannerResult:
        """As `Planner.plan`, under `communication` and starting from `plans`."""


@dataclass(frozen=True)
class HybridResult:
    """What a planner of hybrid plans found.

    `predicted` is what the planner's own formula says of its plan, in seconds of a step; `formula`
    holds further figures of that formula by name. `lower_bound` is proved for the step time of
    every plan (0 claims nothing).
    """

    plan: HybridPlan | None
    status: Status
    predicted: float
    seconds: float  # wall time of the search
    lower_bound: float = 0.0
    evaluations: int = 0
    reason: str = ""
    formula: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class HybridPlanner(Protocol):
    """Divides layers in a row into stages on groups of devices, replicated and sharded.

    Knows:
        Every layer's seconds on every device, what passes between layers, what replicas sum, the
        memory, and the links between devices. It decides stages, devices, shares and the order.
    """

    def plan_hybrid(
        self, problem: HybridProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> HybridResult:
        """The best plan found within `budget_s` seconds of wall time."""


@dataclass(frozen=True)
class SynchronisationResult:
    """What a planner of gradient synchronisation found.

    `lower_bound` is proved for every plan of the problem without sums inside the network, whatever
    its latencies (0 claims nothing); `figures` holds what the planner says of its plan by name.
    """

    plan: SynchronisationPlan | None
    status: Status
    seconds: float  # wall time of the search
    lower_bound: float = 0.0  # seconds
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class SynchronisationPlanner(Protocol):
    """Chooses trees over which the vectors of all participants are summed.

    Knows:
        Every link's capacity and latency, who takes part, who forwards, and who can add. It decides
        the trees, what share of the vector each carries, and the size of chunks.
    """

    def synchronise(self, problem: SynchronisationProblem) -> SynchronisationResult:
        """A plan; without one, why there is none."""


@dataclass(frozen=True)
class AllocationResult:
    """What a planner of malleable jobs found.

    `utility` is the plan's by `envs.cluster.allocation.problem.play`, not the planner's estimate;
    no plan of the problem is worth more than `upper_bound` (inf claims nothing). `figures` holds
    what the planner says of its plan by name.
    """

    plan: AllocationPlan | None
    status: Status
    utility: float
    seconds: float  # wall time of the search
    upper_bound: float = inf
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class AllocationPlanner(Protocol):
    """Gives workers and parameter servers on machines to malleable jobs, slot by slot.

    Knows:
        Its class says it: planners with `online = True` decide a slot by the jobs that have arrived
        until then, the others know all jobs from the start.
    """

    online: bool

    def give(self, problem: AllocationProblem, seed: int = 0) -> AllocationResult:
        """A plan; the seed is for planners that draw."""
