"""The shipped placement policy as a planner: its best plan, made to fit, searched on from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.placement.baselines import SingleDevice
from agents.placement.list_planners import Heft
from agents.placement.policy import Answer, LearnedPlanner
from agents.solver import Budget
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from envs.placement.episodes import GroupPricer
from envs.step.fusion import fuse, fused_problem
from envs.step.order import Rule
from envs.step.price import BestOrder, Price
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.asking import planned
from tests.conformance.test_planners import make
from tests.envs.placement.test_episodes import DISTRIBUTION
from tests.refusal import refusal
from tests.strength import trials

GROUPS = 24


def problem(seed: int) -> StepProblem:
    found: StepProblem = DISTRIBUTION(np.random.default_rng(seed), 0.3)
    return found


def roomy(seed: int) -> StepProblem:
    step = problem(seed)
    return replace(step, capacity=np.full_like(step.capacity, np.inf))


def planner(**changes: Any) -> LearnedPlanner:
    settings = {
        "groups": GROUPS, "samples": 4, "starts": (0, 4), "rounds": 2, "moves": 8,
        "temperature": 1.0, "search": None,
    }  # fmt: skip
    return LearnedPlanner(**{**settings, **changes})


@pytest.mark.parametrize("seed", range(trials(6, 3)))
def test_of_its_plans_the_fastest_that_fits_is_taken(seed: int) -> None:
    loose = roomy(seed)
    few, many = (planned(planner(samples=samples), loose, 1.0) for samples in (1, 8))
    assert many.value <= few.value * 1.05  # the first of many is the only one of few
    device = many.solution.placement.device
    assert many.solution.violations(loose) == []
    fusion = fuse(loose, GROUPS)
    of_groups = device[np.unique(fusion.group, return_index=True)[1]]
    assert (device == fusion.expand(of_groups)).all()
    priced = GroupPricer(fused_problem(loose, fusion), fusion)
    assert priced.price(of_groups).excess == 0.0
    assert many.value == StepSimulator(loose).step_time(device, many.solution.order)
    # the last moves keep the order: without them it is the best one
    still = planned(planner(samples=8, moves=0), loose, 1.0)
    best = BestOrder(loose).step_time(still.solution.placement.device)
    assert still.value == pytest.approx(best)
    assert many.value / BestOrder(loose).step_time(device) == pytest.approx(1.005, abs=0.0051)


def test_a_plan_that_takes_longer_on_operators_is_played_in_all_orders() -> None:
    step = problem(0)
    answer, incumbent = Answer(planner(), GroupedProblem.of(step, GROUPS)), StepIncumbent(step)
    best = answer.best_first()[0][0]
    answer.priced[best.tobytes()] = Price(0.0, 0.0, Rule.WINDOW_ONE, best)
    answer.fit(incumbent, [best], Budget(1.0, 1))
    assert incumbent.step_time == BestOrder(step).step_time(answer.grouped.fusion.expand(best))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(trials(6, 3)))
def test_where_memory_is_short_it_makes_room(seed: int) -> None:
    step = problem(seed)
    state = step.graph.state_bytes.sum()
    tight = replace(step, capacity=np.minimum(step.capacity, max(state, 1.0) * 0.8))
    known = planned(make("local_search"), tight, 0.5)
    found = planned(planner(), tight, 2.0)
    assert (found.solution is not None) >= (known.solution is not None)
    if found.solution is not None:
        assert found.solution.violations(tight) == []
    answer = Answer(planner(), GroupedProblem.of(tight, GROUPS))
    answer.best_first()
    if answer.cramped(found.value):
        assert found.value <= planned(Heft(), tight, 2.0).value


def test_search_goes_on_from_its_plans() -> None:
    step = problem(1)
    searching = make("learned")
    found = planned(searching, step, 20.0, 2000)
    searching = replace(searching, search=None)
    alone = planned(searching, step, 1.0)
    assert found.value <= alone.value
    assert found.value <= planned(SingleDevice(), step, 1.0).value


@pytest.mark.slow
def test_before_the_search_plans_descend_unless_memory_binds() -> None:
    gained = 0
    for seed in range(4):
        step = problem(seed)
        tight, loose = (replace(step, capacity=step.capacity * room) for room in (1.0, np.inf))
        searching = make("learned")
        with_descents = [planned(searching, each, 20.0, 1) for each in (tight, loose)]
        answer = Answer(searching, GroupedProblem.of(tight, searching.groups))
        answer.best_first()
        searching = replace(searching, levels=())
        without = [planned(searching, each, 20.0, 1) for each in (tight, loose)]
        gained += with_descents[1].value < without[1].value
        assert with_descents[1].value <= without[1].value
        if answer.binds:
            assert with_descents[0].value == without[0].value
    assert gained


@pytest.mark.parametrize("seed", range(3))
def test_further_rounds_lose_nothing(seed: int) -> None:
    loose = roomy(seed)
    first, third = (planned(planner(rounds=rounds), loose, 1.0) for rounds in (1, 3))
    assert third.value <= first.value * 1.02  # on groups never; operators may differ


def test_without_a_policy_moves_of_one_group_lead_away_from_the_best_split() -> None:
    gained = 0
    for seed in range(4):
        loose = roomy(seed)
        answer = Answer(planner(checkpoint=None, moves=10_000), GroupedProblem.of(loose, GROUPS))
        best, judged = answer.best_first()
        split = np.ascontiguousarray(answer.facts.starts[4])
        moves = int(answer.facts.able.sum()) - answer.facts.num_groups
        assert judged == 1 + moves  # the split and everything that is one move away from a plan
        found = answer.priced[best[0].tobytes()].seconds
        assert found <= answer.pricer.price(split).seconds
        gained += (best[0] != split).any() and found < answer.pricer.price(split).seconds
    assert gained


def test_no_policy_of_that_name_is_an_error() -> None:
    with refusal("from nothing"):
        planner(checkpoint=None, starts=(0,))
    with refusal("neither a folder nor shipped"):
        planner(checkpoint="no_such_policy")
