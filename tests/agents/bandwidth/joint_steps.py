"""Small steps to be placed and given bandwidth, and all that can be decided about them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from hypothesis import strategies as st

from agents.placement.fusion_milp import FusionMilp
from agents.placement.integer_program.order import OrderFormulation
from agents.solver import Result
from agents.step.lower_bound import lower_bound
from agents.step.problems import JointPlanning
from envs.graphs.builder import GraphBuilder
from envs.step.allocated import Allocated, allocated_problem
from envs.step.fair import Fair
from envs.step.plans import BandwidthAllocation, PairWeights, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.placed_steps import AMPLE, cluster, problem_of, with_capacities
from tests.agents.placement.random_problems import orders

AMPLE_S = 120.0  # seconds; the deterministic limits end the searches


@st.composite
def unplaced_steps(
    draw: Callable[..., object],
    operators: tuple[int, int] = (2, 8),
    servers: tuple[int, int] = (1, 3),
    devices: int = 2,
    memory: float = AMPLE,
) -> StepProblem:
    """A random DAG of operators with parameters, on servers with unequal links in two planes."""
    topology = with_capacities(
        cluster(
            draw(st.integers(*servers)),
            draw(st.integers(1, devices)),
            2,
            latency=draw(st.sampled_from([0.0, 0.25])),
            memory=memory,
        ),
        draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=5)),
    )
    builder = GraphBuilder("random")
    n = draw(st.integers(*operators))
    for op in range(n):
        builder.add_operator(f"op{op}")
        builder.add_parameter(f"w{op}", op, parameter=1.0)
    for op in range(n - 1):
        tensor = builder.add_tensor(op, draw(st.sampled_from([0.1, 0.5, 1.0, 3.0])))
        for consumer in draw(st.sets(st.integers(op + 1, n - 1), max_size=2)):
            builder.add_use(tensor, consumer)
    seconds = draw(st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=n, max_size=n))
    return problem_of(builder, seconds, topology)


def best_of_all(problem: StepProblem, allocations: list[BandwidthAllocation]) -> float:
    """The least step time over all placements, in all orders, with any of the allocations.

    Placements whose state does not fit do not count; activations do not count at all.
    """
    devices = range(problem.topology.num_devices)
    state = problem.graph.state_bytes
    every = [np.array(where) for where in product(devices, repeat=len(state))]
    placements = np.array(
        [x for x in every if (np.bincount(x, state, len(devices)) <= problem.capacity).all()]
    )
    best = np.inf
    for allocation in allocations:
        simulator = StepSimulator(allocated_problem(problem, allocation))
        for order in orders(problem.graph):
            best = min(best, float(simulator.step_times(placements, np.array(order)).min()))
    return best


def diamond_step(memory: float) -> StepProblem:
    """Four operators: the first sends to two, whose results the last one needs."""
    builder = GraphBuilder("diamond")
    for op in range(4):
        builder.add_operator(f"op{op}")
        builder.add_parameter(f"w{op}", op, parameter=4.0)
    for op, size in ((1, 2.0), (2, 1.0)):
        builder.add_use(builder.add_tensor(0, size), op)
        builder.add_use(builder.add_tensor(op, size), 3)
    return problem_of(builder, [0.5, 2.0, 3.0, 0.5], cluster(3, 1, 2, memory=memory))


def placer() -> FusionMilp:
    formulation = OrderFormulation(gap=0.0, at_once=8)
    return FusionMilp(
        coarse=(4,), levels=(4, 8), formulation=formulation, starts=None, polish=None,
        polish_share=0.0, hybrid=None, seed=0,
    )  # fmt: skip


def check_promises(problem: StepProblem, result: Result[Plan]) -> None:
    """What a plan with rates or weights promises."""
    plan = result.solution
    assert plan is not None
    if isinstance(plan.allocation, PairWeights):
        simulator = Fair(weights=plan.allocation).simulator(problem)
    else:
        assert plan.allocation is not None
        simulator = Allocated(allocation=plan.allocation).simulator(problem)
    assert plan.violations(simulator.problem, simulator) == []
    played = simulator.step_time(plan.placement.device, plan.order)
    assert result.value == played >= result.bound == lower_bound(problem).seconds
    verdict = JointPlanning(problem).judge(plan)
    assert (verdict.objective, verdict.violations) == (played, ())
    assert (result.status == "optimal") == (played <= result.bound * (1 + 1e-9))
    steps = [seconds for _, seconds in result.history]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == played
