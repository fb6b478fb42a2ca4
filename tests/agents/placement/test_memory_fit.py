"""Groups that only just fit: the packing itself, and the planners that need one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agents.partition.dp import ContiguousDP
from agents.placement.baselines import ContiguousSplit, RandomPlacement, SpeedShares
from agents.placement.fusion_milp import FusionMilp
from agents.placement.local_search import LocalSearch
from agents.step.fitting import MemoryFit
from agents.step.grouping import GroupedProblem
from agents.step.problems import Planner
from envs.graphs.builder import GraphBuilder
from envs.step.plans import Placement
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import cluster, on, optimum
from tests.agents.placement.test_list_planner import PLANNERS as LISTS
from tests.asking import planned
from tests.strength import examples

SIZES = (5, 2, 4, 5, 3, 4, 2, 1, 4, 6, 5, 3)  # 44 bytes of state
ROOM = (14.0, 14.0, 16.0)  # 44 bytes


def chain(sizes: tuple[int, ...], room: tuple[float, ...], activation: float = 0.0) -> StepProblem:
    """Operators one after the other, each with state; every device prefers other ones."""
    builder = GraphBuilder("chain")
    tensor = None
    for number, size in enumerate(sizes):
        op = builder.add_operator(f"op{number}")
        if tensor is not None:
            builder.add_use(tensor, op)
        tensor = builder.add_tensor(op, activation)
        builder.add_parameter(f"w{number}", op, parameter=size, gradient=0.0, optimizer=0.0)
    turn = np.arange(len(sizes))[:, None] + np.arange(len(room))
    topology = cluster([0] * len(room), list(room))
    return on(topology, builder.build(), 1.0 + turn % 3, [0.0, 0.5, 1.0])


def fits(problem: StepProblem, device: np.ndarray[Any, Any]) -> bool:
    return not Placement(device).violations(problem)


PLANNERS: dict[str, Callable[[int], Planner]] = {
    **LISTS,
    "contiguous": lambda groups: ContiguousSplit(groups=groups, shares=SpeedShares()),
    "dp": lambda groups: ContiguousDP(ideals=1000, groups=groups),
    "random": lambda groups: RandomPlacement(groups=groups, samples=2),
    "local_search": lambda groups: LocalSearch(groups=(groups,), operators=64, starts=()),
    "fusion_milp": lambda groups: FusionMilp(
        coarse=(groups,), levels=(groups,), starts=None, polish=None
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_a_plan_is_found_where_not_a_byte_is_left_over(name: str) -> None:
    problem = chain(SIZES, ROOM)
    result = planned(PLANNERS[name](32), problem, 2.0)
    assert result.solution.violations(problem) == []
    assert result.value >= result.bound


def test_local_search_crosses_overfull_placements_to_the_best_one() -> None:
    problem = chain(SIZES[:8], (9.0, 9.0, 8.0))
    result = planned(PLANNERS["local_search"](8), problem, 30.0, 100_000)
    assert result.value <= optimum(problem)


@examples(40)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    room=st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
def test_a_packing_is_found_exactly_where_there_is_one(sizes: list[int], room: list[int]) -> None:
    grouped = GroupedProblem.of(chain(tuple(sizes), tuple(map(float, room))), len(sizes))
    every = product(range(len(room)), repeat=grouped.num_groups)
    exists = any(fits(grouped.problem, np.array(device)) for device in every)
    packing = MemoryFit(grouped, grouped.problem.capacity)
    assert (packing.device is not None) == exists
    assume(exists)
    for group in range(grouped.num_groups):
        pinned = [packing.pin(group, d) for d in range(len(room)) if not packing.pinned[group]]
        assert pinned[-1]  # some device is always left
    assert fits(grouped.problem, packing.device)


@pytest.mark.parametrize(
    ("name", "size", "room", "activation"),
    [(name, 1, (12.0, 100.0), 8.0) for name in sorted(PLANNERS) if name != "fusion_milp"]
    + [pytest.param("fusion_milp", 4, (20.0, 30.0), 5.0, marks=pytest.mark.slow)],
)
def test_plans_give_way_when_activations_do_not_fit(
    name: str, size: int, room: tuple[float, ...], activation: float
) -> None:
    problem = chain((size,) * 6, room, activation)
    assert planned(PLANNERS[name](6), problem, 2.0).solution.violations(problem) == []


def test_a_first_choice_that_leads_nowhere_is_undone() -> None:
    # best fit puts a 4 on the 6 bytes, which must be for two of the 3s
    problem = chain((4, 4, 3, 3, 3), (11.0, 6.0))
    packing = MemoryFit(GroupedProblem.of(problem, 5), problem.capacity)
    assert fits(problem, packing.device)


def test_thousands_of_groups_are_packed_at_once() -> None:
    random = np.random.default_rng(0)
    sizes = tuple(random.integers(1, 100, 3000).tolist())
    problem = chain(sizes, (float(sum(sizes) // 8 + 40),) * 8)
    grouped = GroupedProblem.of(problem, len(sizes))
    packing = MemoryFit(grouped, grouped.problem.capacity)
    assert fits(grouped.problem, packing.device)


@pytest.mark.slow
def test_the_milp_has_a_plan_of_its_own_on_many_devices() -> None:
    problem = chain((1,) * 24, (8.0,) * 32)
    search = PLANNERS["fusion_milp"](16)
    assert planned(search, problem, 1e-3).solution is not None  # without a single round
    result = planned(search, problem, 1.0)
    assert len(np.unique(result.solution.placement.device)) >= 3


def test_groups_on_fewer_devices_take_as_long_as_on_those_of_all() -> None:
    grouped = GroupedProblem.of(chain((1,) * 6, (8.0,) * 4), 6)
    few = grouped.on_devices(np.array([3, 1]))
    device = np.array([0, 1, 1, 0, 0, 1])
    on_few = StepSimulator(few.problem).step_time(few.fusion.expand_pieces(device))
    on_all = StepSimulator(grouped.problem).step_time(
        grouped.fusion.expand_pieces(np.array([3, 1])[device])
    )
    assert on_few == on_all
