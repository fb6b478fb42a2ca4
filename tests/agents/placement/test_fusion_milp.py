from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.placement.baselines import SingleDevice
from agents.placement.fusion_milp import FusionMilp
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.integer_program.refinement import Refinement
from agents.placement.list_planners import Heft
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from agents.step.problems import Planner
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import cluster, on, pipeline, problems
from tests.agents.placement.test_milp_model import least
from tests.asking import planned
from tests.strength import examples

pytestmark = pytest.mark.slow

LAYERS = st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=4)
FORMULATION = OrderFormulation(gap=0.02, at_once=8)


def best_placement(problem: StepProblem, grouped: GroupedProblem) -> float:
    """The least 1F1B step time over all placements of the groups."""
    devices = product(range(problem.topology.num_devices), repeat=grouped.num_groups)
    pieces = np.array([grouped.fusion.expand_pieces(np.array(device)) for device in devices])
    return float(StepSimulator(grouped.problem).step_times(pieces).min())


def planner(
    coarse: tuple[int, ...] = (2, 4), starts: dict[str, Planner] | None = None
) -> FusionMilp:
    return FusionMilp(coarse=coarse, levels=(3, 6), starts=starts, polish=None)


@examples(25)
@given(layers=LAYERS, micro_batches=st.integers(1, 3), slow=st.sampled_from([1.0, 2.0]))
def test_the_model_never_says_more_than_the_best_placement_needs(
    layers: list[float], micro_batches: int, slow: float
) -> None:
    problem = pipeline(layers, micro_batches, cluster([0, 0, 1]), [slow, slow, 1])
    grouped = GroupedProblem.of(problem, len(layers))
    assert least(FORMULATION(grouped)) <= best_placement(problem, grouped) * (1 + 1e-6)


def test_a_small_pipeline_is_solved_to_its_best_placement() -> None:
    problem = pipeline([1.0, 2.0, 2.0, 1.0], 4, cluster([0, 0]))
    grouped = GroupedProblem.of(problem, 4)
    result = planned(planner(), problem, 60.0, 60)
    assert result.value <= best_placement(problem, grouped) * (1 + 1e-9)
    assert "bound of the model of 4 groups" in result.reason


def test_groups_too_coarse_for_the_memory_are_made_finer() -> None:
    """Eight layers of 4 bytes: any two fit one device of 9 bytes, the half of them does not."""
    problem = pipeline([1.0] * 8, 1, cluster([0] * 4, 14.0))
    assert GroupedProblem.of(problem, 2).too_large
    result = planned(planner((1, 2)), problem, 60.0, 20)
    assert result.solution.violations(problem) == []


@examples(20)
@given(problem=problems())
def test_no_plan_is_slower_than_those_it_starts_from(problem: StepProblem) -> None:
    starts: dict[str, Planner] = {"heft": Heft(groups=(16,)), "single_device": SingleDevice()}
    for budget_s in (1e-9, 60.0):
        known = [planned(start, problem, budget_s).value for start in starts.values()]
        result = planned(planner((2, 4), starts), problem, budget_s, 3)
        assert result.value <= min(known)
        if np.isfinite(known[0]):
            assert result.history[0][1] == known[0]


def test_it_is_said_when_what_must_be_fused_fits_no_device() -> None:
    """An update is fused with what it reads, which is supported on another device only."""
    builder = GraphBuilder("apart")
    gradient = builder.add_tensor(builder.add_operator("gradient", phase=Phase.BACKWARD), 1.0)
    builder.add_use(gradient, builder.add_operator("update", phase=Phase.OPTIMIZER))
    problem = on(cluster([0, 0]), builder.build(), [[1.0, np.inf], [np.inf, 1.0]])
    result = planned(planner(), problem, 60.0, 6)
    assert (result.solution, result.status) == (None, "limit")
    assert result.reason == "group 0 of 1 fits no device: use more groups"


def test_interchangeable_devices_are_told_apart_by_their_first_group() -> None:
    problem = pipeline([1.0] * 3, 1, cluster([0, 0, 1]))
    assert np.isinf(least(FORMULATION(GroupedProblem.of(problem, 3)), [1]))


def test_a_neighbourhood_is_found_whatever_equal_devices_are_called() -> None:
    """Of equal devices a model fills the first one first; the best plan may call them otherwise."""
    layers = 24
    problem = pipeline([1.0] * layers, 2, cluster([0, 1, 2], 1000.0))
    group = GroupedProblem.of(problem, layers).fusion.group
    for names in permutations(range(3)):
        incumbent = StepIncumbent(problem)
        incumbent.offer(np.array(names)[group * 3 // layers])
        refinement = Refinement(
            incumbent, levels=(), kick_groups=layers, formulation=FORMULATION, seed=0
        )
        refinement.kick(60.0, 100)
        assert incumbent.evaluations > 1
