from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.placement.baselines import ContiguousSplit, EqualShares, SpeedShares, _split
from agents.step.fitting import shapes
from agents.step.grouping import GroupedProblem
from tests.agents.placement.random_problems import cluster, pipeline
from tests.asking import planned
from tests.strength import examples

loads = st.sampled_from([0.0, 1.0, 2.5, 4.0, np.inf])


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
    equal = planned(ContiguousSplit(groups=9, shares=EqualShares()), problem, 1.0)
    fair = planned(ContiguousSplit(groups=9, shares=SpeedShares()), problem, 1.0)
    assert equal.solution is not None
    assert fair.solution is not None

    def layers(device: np.ndarray) -> list[int]:
        return np.bincount(device[problem.graph.micro_batch == 0], minlength=2).tolist()

    assert sorted(layers(equal.solution.placement.device)) == [8, 10]
    assert layers(fair.solution.placement.device) == [12, 6]


def test_devices_are_filled_server_by_server_fastest_first() -> None:
    problem = pipeline([1.0] * 4, 1, cluster([0, 0, 1, 1]), [1, 2, 1, 4])
    assert GroupedProblem.of(problem, 4).device_order().tolist() == [3, 2, 1, 0]


def test_activations_that_overflow_make_the_split_give_way() -> None:
    # each layer: 4 bytes of state and activations of 1 byte; three layers peak at 15 bytes
    ample = pipeline([1.0] * 6, 4, cluster([0, 0]))
    tight = pipeline([1.0] * 6, 4, cluster([0, 0], [14.0, 100.0]))
    ample, tight = (replace(problem, orders=("one_f_one_b",)) for problem in (ample, tight))
    split = ContiguousSplit(groups=6, shares=SpeedShares())
    held = []
    for problem in (ample, tight):
        plan = planned(split, problem, 1.0).solution
        assert plan is not None
        assert plan.violations(problem) == []
        state = problem.graph.state_bytes
        held.append(np.bincount(plan.placement.device, weights=state).tolist())
    assert held[0] == [12.0, 12.0]
    assert held[1][0] < 12.0


def test_segments_go_round_and_back_where_an_order_is_made_for_it() -> None:
    problem = pipeline([1.0] * 8, 4, cluster([0, 0]))
    line = np.arange(2)
    for orders, expected in (
        (("one_f_one_b",), [[0, 1]]),
        (("interleaved",), [[0, 1], [0, 1, 0, 1]]),
        (("zb_v", "gpipe"), [[0, 1], [0, 1, 1, 0]]),
    ):
        found = shapes(replace(problem, orders=orders), line)
        assert [devices.tolist() for devices in found] == expected
    split = ContiguousSplit(groups=8, shares=EqualShares())
    seconds = [
        planned(split, replace(problem, orders=orders), 1.0).value
        for orders in (("one_f_one_b",), ("one_f_one_b", "interleaved"))
    ]
    assert seconds[1] < seconds[0]
