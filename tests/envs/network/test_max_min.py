"""Weighted max-min rates: against exact arithmetic, their certificate, and bad input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from certificate import unjustified_flows
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference_max_min import reference_max_min

from envs.network.max_min import max_min_rates
from envs.step.allocated import weighted_allocation
from tests.envs.topologies import topology_named
from tests.refusal import refusal
from tests.strength import examples


class Case(NamedTuple):
    capacity: list[float]
    routes: list[list[int]]
    weight: list[float]
    limit: list[float]
    priority: list[int]


CAPACITIES = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.0, 10.0, 1e10 / 8]), st.floats(1e-3, 1e12))
WEIGHTS = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, 2.0, 1e-12, 1e12]), st.floats(1e-6, 1e6)
)  # fmt: skip
LIMITS = st.one_of(st.just(np.inf), CAPACITIES)


@st.composite
def cases(draw) -> Case:
    """Flows over random subsets of a few links: ties, zeros, weights of every size."""
    links = draw(st.integers(1, 6))
    flows = draw(st.integers(0, 9))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
    many = {"min_size": flows, "max_size": flows}
    return Case(
        draw(st.lists(CAPACITIES, min_size=links, max_size=links)),
        draw(st.lists(route, **many)),
        draw(st.lists(WEIGHTS, **many)),
        draw(st.lists(LIMITS, **many)),
        draw(st.lists(st.integers(0, 2), **many)),
    )


def rows(routes: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.cumsum([0, *map(len, routes)])
    return ptr, np.array([link for route in routes for link in route], dtype=np.int64)


def rates(case: Case) -> np.ndarray:
    ptr, links = rows(case.routes)
    return max_min_rates(
        np.array(case.capacity), ptr, links, weight=np.array(case.weight),
        limit=np.array(case.limit), priority=np.array(case.priority, dtype=np.int64),
    )  # fmt: skip


@examples(250)
@given(cases())
def test_rates_are_those_of_exact_arithmetic(case: Case) -> None:
    expected = reference_max_min(*case)
    scale = max(case.capacity)
    assert_allclose(rates(case), expected, rtol=1e-9, atol=1e-10 * scale)


@examples(300)
@given(cases())
def test_every_flow_has_a_bottleneck_and_no_link_is_overloaded(case: Case) -> None:
    rate = rates(case)
    ptr, links = rows(case.routes)
    capacity = np.array(case.capacity)
    load = np.bincount(links, np.repeat(rate, np.diff(ptr)), minlength=len(capacity))
    assert np.all(load <= capacity * (1 + 1e-12))
    options = {
        "weight": np.array(case.weight),
        "limit": np.array(case.limit),
        "priority": np.array(case.priority, dtype=np.int64),
    }
    assert not len(unjustified_flows(capacity, ptr, links, rate, **options))
    for flow in np.flatnonzero(rate > 1e-6 * capacity.max()):
        less = rate.copy()
        less[flow] *= 0.99
        assert flow in unjustified_flows(capacity, ptr, links, less, **options)


def test_the_textbook_network() -> None:
    """Parking lot: the long flow and one short flow per link share every link in two."""
    ptr, links = rows([[0, 1, 2], [0], [1], [2], [2]])
    found = max_min_rates(np.array([1.0, 1.0, 3.0]), ptr, links)
    assert_array_equal(found, [0.5, 0.5, 0.5, 1.25, 1.25])


def test_heavy_weights_do_not_blur_light_ones() -> None:
    """The heavy flow stops at half of link 0; subtracting its weight leaves no digit of theirs."""
    ptr, links = rows([[0, 1], [0], [0], [0]])
    weight = np.array([1e12, 1e-12, 1e-12, 2e-12])
    found = max_min_rates(np.array([1.0, 0.5]), ptr, links, weight=weight)
    assert_allclose(found, [0.5, 0.125, 0.125, 0.25], rtol=1e-15)


def test_weighted_allocation_fills_the_network_in_proportion() -> None:
    """Every channel from server 0 shares its two planes; a channel of weight 0 gets nothing."""
    network = topology_named("planes_4x1").network
    weight = np.random.default_rng(0).exponential(size=network.num_channels)
    weight[3] = 0.0
    allocation = weighted_allocation(network, weight)
    assert allocation.violations(network) == []
    assert allocation.rate[3] == 0.0
    ptr, links = network.channel_ptr, network.channel_links
    arguments = (network.link_capacity, ptr, links, allocation.rate)
    assert not len(unjustified_flows(*arguments, weight=weight))
    again = weighted_allocation(network, 1e6 * weight)
    assert_allclose(again.rate, allocation.rate, rtol=1e-12)
    with refusal("there are 24 channels"):
        weighted_allocation(network, weight[:-1])


def test_flows_that_nothing_separates_get_bit_equal_rates() -> None:
    ptr, links = rows([[0]] * 7)
    assert len(set(max_min_rates(np.array([1e10 / 8]), ptr, links))) == 1


@pytest.mark.parametrize("flows", range(2, 40))
def test_a_class_that_fills_a_link_leaves_exactly_nothing(flows: int) -> None:
    """Each urgent flow has a link of its own and all have one, filled by the sum of the others."""
    own = np.arange(1, flows + 1) / 10.0
    ptr, links = rows([*([f, flows] for f in range(flows)), [flows]])
    found = max_min_rates(
        np.append(own, own.sum()), ptr, links, priority=np.append(np.zeros(flows, np.int64), 1)
    )
    assert found[-1] == 0.0
    assert_allclose(found[:-1], own, rtol=1e-12)


BAD = {
    "no link": ({"flow_ptr": [0, 0], "flow_links": []}, "flow 0: has no link"),
    "free link": ({"capacity": [np.inf]}, "flow 0: has no link of finite capacity"),
    "weight": ({"weight": [-1.0]}, "flow 0: field 'weight': -1.0"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    change, words = BAD[fault]
    arguments = {"capacity": [1.0], "flow_ptr": [0, 1], "flow_links": [0], **change}
    with refusal(words):
        max_min_rates(**{name: np.array(value) for name, value in arguments.items()})


def test_a_weight_too_light_to_compute_with_is_refused() -> None:
    ptr, links = rows([[0], [0]])
    with refusal(r"flow 1: .*too small"):
        max_min_rates(np.array([1.0]), ptr, links, weight=np.array([1.0, 1e-250]))
