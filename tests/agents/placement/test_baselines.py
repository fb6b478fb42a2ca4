"""Single devices, random placements and contiguous splits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.placement.baselines import (
    ContiguousSplit,
    EqualShares,
    RandomPlacement,
    SingleDevice,
    SpeedShares,
    _split,
)
from agents.step.fitting import shapes
from agents.step.grouping import GroupedProblem
from tests.agents.placement.random_problems import cluster, pipeline
from tests.asking import planned
from tests.strength import examples

loads = st.sampled_from([0.0, 1.0, 2.5, 4.0, np.inf])


def test_the_single_device_is_the_fastest_that_fits() -> None:
    for capacity, seconds in (([5.0, 100.0], 12.2), ([100.0, 100.0], 12.2 / 4)):
        problem = pipeline([1.0, 1.0], 2, cluster([0, 0], capacity), [4, 1])
        assert planned(SingleDevice(), problem, 1.0).value == pytest.approx(seconds)


def test_a_step_too_large_for_every_single_device_says_by_how_much() -> None:
    problem = pipeline([1.0, 1.0], 2, cluster([0, 0], [6.0, 5.0]))
    result = planned(SingleDevice(), problem, 1.0)
    assert (result.solution, result.status) == (None, "infeasible")
    assert "does not fit: 'd0' has" in result.reason


def test_random_placements_differ_by_seed_and_more_samples_are_never_worse() -> None:
    problem = pipeline([1.0] * 6, 2, cluster([0, 0, 1]))
    few, many, other = (
        planned(RandomPlacement(groups=6, samples=samples, seed=seed), problem, 10.0)
        for samples, seed in ((1, 0), (50, 0), (1, 1))
    )
    assert many.value <= few.value
    assert (few.solution.placement.device != other.solution.placement.device).any()


@examples(200)
@given(
    weight=st.lists(st.tuples(loads, loads, loads), min_size=1, max_size=6),
    state=st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=6, max_size=6),
    room=st.tuples(*[st.sampled_from([0.0, 2.0, 10.0])] * 3),
)
def test_the_split_has_the_smallest_largest_load_that_memory_allows(
    weight: list[tuple[float, ...]], state: list[float], room: tuple[float, ...]
) -> None:
    table, sizes = np.array(weight), np.array(state[: len(weight)])
    groups = len(table)

    def value(segment: np.ndarray) -> float:
        held = np.bincount(segment, weights=sizes, minlength=3)
        if (held > np.array(room)).any():
            return np.inf
        return max(
            float(table[segment == d, d].sum()) if (segment == d).any() else 0.0 for d in range(3)
        )

    cuts = combinations_with_replacement(range(groups + 1), 2)
    best = min(value(np.repeat([0, 1, 2], [a, b - a, groups - b])) for a, b in cuts)
    segment = _split(table, sizes, np.array(room))
    assert (segment is None) == np.isinf(best)
    if segment is not None:
        assert (np.diff(segment) >= 0).all()
        assert value(segment) == pytest.approx(best)


def test_equal_shares_ignore_speed_and_speed_shares_follow_it() -> None:
    problem = pipeline([1.0] * 9, 2, cluster([0, 0]), [2, 1])
    problem = replace(problem, orders=("one_f_one_b",))
    for shares, layers in ((EqualShares(), ([8, 10], [10, 8])), (SpeedShares(), ([12, 6],))):
        plan = planned(ContiguousSplit(groups=9, shares=shares), problem, 1.0).solution
        device = plan.placement.device[problem.graph.micro_batch == 0]
        assert np.bincount(device, minlength=2).tolist() in layers


def test_devices_are_filled_server_by_server_fastest_first() -> None:
    problem = pipeline([1.0] * 4, 1, cluster([0, 0, 1, 1]), [1, 2, 1, 4])
    assert GroupedProblem.of(problem, 4).device_order().tolist() == [3, 2, 1, 0]


def test_segments_go_round_and_back_where_an_order_is_made_for_it() -> None:
    problem, line = pipeline([1.0] * 8, 4, cluster([0, 0])), np.arange(2)
    for orders, expected in (
        (("one_f_one_b",), [[0, 1]]),
        (("interleaved",), [[0, 1], [0, 1, 0, 1]]),
        (("zb_v", "gpipe"), [[0, 1], [0, 1, 1, 0]]),
    ):
        found = shapes(replace(problem, orders=orders), line)
        assert [devices.tolist() for devices in found] == expected
    straight, round_twice = (
        planned(ContiguousSplit(groups=8), replace(problem, orders=orders), 1.0).value
        for orders in (("one_f_one_b",), ("one_f_one_b", "interleaved"))
    )
    assert round_twice < straight
