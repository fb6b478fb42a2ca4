"""Whole plans as tokens, their rewards, and where problems come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

from envs.graphs.contraction import Fusion
from envs.placement.episodes import ORDER_CLASSES, DrawnProblems, OneProblem, Tokens
from envs.placement.generator import TrainingProblems
from envs.placement.whole import GIVEN, STARTS, PlacementFacts, WholeLayout
from envs.step.fusion import fuse, fused_problem
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from tests.refusal import refusal
from tests.strength import trials

LAYOUT = WholeLayout(groups=40, devices=8, edges=200, classes=16)
DISTRIBUTION = TrainingProblems(
    captured=(), captured_share=0.0, inference=0.12, tabulated=0.15, most_groups=30, most_devices=8
)


def drawn(seed: int, **chosen: Any) -> StepProblem:
    return DISTRIBUTION(default_rng(seed), chosen.get("stage", 0.0))


def source(sweeps: int = 2, unfit: float = 1.0, layout: WholeLayout = LAYOUT) -> DrawnProblems:
    return DrawnProblems(DISTRIBUTION, layout=layout, sweeps=sweeps, unfit=unfit, kept=None)


def test_a_plan_is_what_the_last_sweep_says() -> None:
    tokens = Tokens(sweeps=2, groups=4, devices=3)
    row = np.array([2, 2, 2, 2, 0, 1, 2, 0, 1])
    device, order = tokens.plan(row, 3)
    assert (device.tolist(), order) == ([0, 1, 2], 1)
    assert tokens.row(device, order).tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1]
    assert tokens.space.contains(row)
    assert tokens.space.shape == (9,)


@pytest.mark.parametrize("seed", range(trials(6, 3)))
def test_a_reward_is_the_logarithm_of_the_ratio_and_what_does_not_fit_costs_more(
    seed: int,
) -> None:
    problem = source(unfit=0.7).draw(seed, 0.0)
    fused, groups = problem.fused, problem.fusion.num_groups
    pricer = Pricer(fused)
    random = default_rng(seed)
    for order in range(len(ORDER_CLASSES)):
        device = random.integers(0, fused.topology.num_devices, groups)
        price = pricer.price(problem.fusion.expand_pieces(device), problem.pricer.rules[order])
        judged = problem.judge(problem.tokens.row(device, order))
        ratio = price.seconds / problem.reference_s
        over = price.excess / fused.capacity.sum()
        expected = -np.log(ratio) - (0.7 + over if price.excess > 0.0 else 0.0)
        assert judged.reward == pytest.approx(expected)
        assert judged.outcome == pytest.approx(np.exp(-expected))
        assert judged.ratio == pytest.approx(ratio)
        assert judged.seconds == (np.inf if price.excess > 0.0 else price.seconds)
        assert judged.device is None


@pytest.mark.parametrize("seed", range(trials(6, 3)))
def test_the_reference_is_the_better_of_a_split_and_one_device(seed: int) -> None:
    problem = source().draw(seed, 0.0)
    facts, pricer = problem.facts, problem.pricer
    inside = (facts.begin <= facts.place[:, None]) & (facts.place[:, None] < facts.end)
    split = inside.argmax(axis=1)
    assert inside.sum(axis=1).tolist() == [1] * facts.num_groups
    one = np.full(facts.num_groups, facts.seconds.sum(axis=0).argmin())
    prices = [pricer.price(split), pricer.price(one)]
    fitting = [price.seconds for price in prices if price.excess <= 0.0]
    if fitting:
        assert problem.reference_s == pytest.approx(min(fitting))
    else:
        assert problem.reference_s in [price.seconds for price in prices]


def test_equal_seeds_draw_equal_problems_and_exams_are_others() -> None:
    first, second = source().draw(3, 0.5), source().draw(3, 0.5)
    for name, array in first.observation.items():
        np.testing.assert_array_equal(array, second.observation[name])
    assert first.number == second.number == 3
    assert source().observation_space.contains(first.observation)
    evaluation = source().evaluation(3)
    assert evaluation.number != 3
    assert evaluation.facts.ideal_s == source().evaluation(3).facts.ideal_s != first.facts.ideal_s


def test_a_problem_beyond_the_layout_is_drawn_again() -> None:
    problems = [drawn(seed, stage=0.3) for seed in range(9)]
    sizes = [PlacementFacts.of(p, Fusion.of_fused(p.graph)).num_groups for p in problems]
    most = min(sizes)
    assert max(sizes) > most
    small = source(layout=WholeLayout(groups=most, devices=32, edges=400, classes=64))
    assert all(small.draw(seed, 0.3).facts.num_groups <= most for seed in range(9))
    with refusal(r"the observation has 1"):
        source(layout=WholeLayout(1, 1, 1, 1)).draw(0, 0.0)


def test_a_problem_met_again_may_begin_at_the_best_plan_of_the_last_time() -> None:
    problem = source().draw(1, 0.3)
    first = problem.again(2)
    assert (first.start, first.stands) == (2, None)
    assert problem.again(STARTS + 1).start == 1  # nothing was planned the last time
    second, random = problem.again(3), default_rng(0)
    most, best = problem.facts.num_devices, (np.inf, np.inf)
    for _ in range(10):
        device = random.integers(0, most, problem.facts.num_groups)
        second.judge(problem.tokens.row(device, 0))
        price = problem.pricer.price(device, 0)
        if (price.excess, price.seconds) < best:
            best, expected = (price.excess, price.seconds), device
    third = problem.again(STARTS)
    assert third.start == GIVEN
    seen = third.observation["stands"]
    assert (seen[: len(expected)] == expected).all()
    assert third.judge(problem.tokens.row(expected, 0)).seconds == pytest.approx(best[1])


def test_one_problem_is_kept_by_its_time_on_every_operator() -> None:
    whole = drawn(5, stage=0.3)
    one = OneProblem(whole, max_groups=8, sweeps=1, unfit=1.0)
    assert [one.draw(seed, 0.0).start for seed in (0, 3, 13)] == [0, 3, 3]
    assert one.evaluation(7) is one.only
    fusion = fuse(whole, 8)
    random, pricer, fused = default_rng(0), Pricer(whole), fused_problem(whole, fusion)
    fastest, kept = np.inf, 0
    for _ in range(30):
        device = random.integers(0, whole.topology.num_devices, fusion.num_groups)
        judged = one.only.judge(one.only.tokens.row(device, 2))
        proxy = Pricer(fused).price(fusion.expand_pieces(device), one.only.pricer.rules[2])
        assert judged.outcome == judged.seconds
        if proxy.excess <= 0.0:
            assert judged.seconds == pytest.approx(proxy.seconds)
        price = pricer.price(fusion.expand(device))
        expected = judged.seconds < fastest and price.excess <= 0.0
        assert (judged.device is not None) == expected
        if expected:
            kept += 1
            assert judged.step_time == pytest.approx(price.seconds)
        fastest = min(fastest, judged.seconds)
    assert kept >= 1
