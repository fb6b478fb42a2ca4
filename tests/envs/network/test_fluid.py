"""Fluid flows: against exact arithmetic, conservation, certificates, pipes, closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from certificate import unjustified_flows
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference_fluid import reference_completion

from envs.network.fluid import FlowSet, RateHistory, simulate_flows
from tests.envs.network.made_flows import flow_set, flows_between
from tests.envs.topologies import topology_named
from tests.refusal import refusal
from tests.strength import examples

Case = tuple[list[float], FlowSet]


@st.composite
def cases(draw) -> Case:
    """A few links and flows over one to three paths; simple numbers, so that instants coincide."""
    links = draw(st.integers(1, 5))
    flows = draw(st.integers(0, 6))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True)

    def column(*values: float):
        return draw(st.lists(st.sampled_from(values), min_size=flows, max_size=flows))

    return (
        draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 10.0, 0.7]), min_size=links,
                      max_size=links)),
        flow_set(
            column(0.0, 0.0, 0.5, 1.0, 2.0, 1 / 3),
            column(0.0, 1.0, 2.0, 3.0, 7.0, 0.3),
            draw(st.lists(st.lists(path, min_size=1, max_size=3), min_size=flows,
                          max_size=flows)),
            priority=[int(c) for c in column(0, 0, 1, 2)],
            weight=column(1.0, 1.0, 2.0, 0.1, 0.0),
            latency=column(0.0, 0.0, 0.25, 1.0),
            limit=column(np.inf, np.inf, 0.5, 2.0, 0.0),
        ),
    )  # fmt: skip


@examples(250)
@given(cases())
def test_completion_times_are_those_of_exact_arithmetic(case: Case) -> None:
    capacity, flows = case
    found = simulate_flows(np.array(capacity), flows)
    assert_allclose(found.completion, reference_completion(capacity, flows), rtol=1e-10)
    assert found.num_events <= 2 * flows.num_flows


def rates_at(history: RateHistory, instant: float, num_paths: int) -> np.ndarray:
    rate = np.zeros(num_paths)
    now = (history.start <= instant) & (instant < history.start + history.duration)
    rate[history.path[now]] = history.rate[now]
    return rate


@examples(200)
@given(cases())
def test_bytes_are_conserved_and_rates_are_fair_at_all_times(case: Case) -> None:
    capacity, flows = np.array(case[0]), case[1]
    found = simulate_flows(capacity, flows, record_rates=True)
    history = found.history
    assert history is not None
    assert len({*zip(history.start, history.path, strict=True)}) == len(history.start)
    sent = np.zeros(flows.num_flows)
    np.add.at(sent, flows.path_flow[history.path], history.rate * history.duration)
    ended = np.isfinite(found.completion)
    assert_allclose(sent[ended], flows.volume[ended], rtol=1e-10, atol=1e-12)
    assert np.all(sent <= flows.volume * (1 + 1e-10))
    entry = flows.arrival + flows.latency
    end = flows.arrival + found.completion
    routes = [
        flows.path_links[flows.link_ptr[p] : flows.link_ptr[p + 1]] for p in range(flows.num_paths)
    ]
    for start, duration in {*zip(history.start, history.duration, strict=True)}:
        if duration < 1e-9:
            continue
        instant = start + duration / 2
        rate = rates_at(history, instant, flows.num_paths)
        there = np.flatnonzero(((entry <= instant) & (instant < end))[flows.path_flow])
        assert rate.sum() == pytest.approx(rate[there].sum())
        check_fair(capacity, flows, routes, rate, there)


def check_fair(
    capacity: np.ndarray,
    flows: FlowSet,
    routes: list[np.ndarray],
    rate: np.ndarray,
    there: np.ndarray,
) -> None:
    """No link and no limit is exceeded; every path has a bottleneck, its flow's limit included."""
    rooms = np.concatenate((capacity, np.where(np.isinf(flows.limit), 1e9, flows.limit)))
    rows = [[*routes[p], len(capacity) + flows.path_flow[p]] for p in there]
    ptr = np.cumsum([0, *map(len, rows)])
    links = np.array([link for row in rows for link in row], dtype=np.int64)
    load = np.bincount(links, np.repeat(rate[there], np.diff(ptr)), minlength=len(rooms))
    assert np.all(load <= rooms * (1 + 1e-12))
    owner = flows.path_flow[there]
    options = {"weight": flows.weight[owner], "priority": flows.priority[owner]}
    assert not len(unjustified_flows(rooms, ptr, links, rate[there], **options))


def test_two_flows_that_overlap_share_while_both_are_there() -> None:
    """Alone for 1 s, both at half rate until the first has sent its 2 bytes, then alone again."""
    flows = flow_set([0.0, 1.0], [2.0, 2.0], [[[0]], [[0]]], latency=[0.0, 0.5])
    assert_allclose(simulate_flows(np.ones(1), flows).completion, [2.5, 3.0])


def test_urgent_flows_stop_the_others() -> None:
    flows = flow_set([0.0, 1.0], [2.0, 3.0], [[[0]], [[0]]], priority=[1, 0])
    assert simulate_flows(np.ones(1), flows).completion.tolist() == [5.0, 3.0]


def test_a_flow_that_ends_as_an_urgent_one_enters_has_ended() -> None:
    """Ten times 0.1 is less than 1 in floating point; the byte that is left is rounding."""
    arrival = [0.1 * k for k in range(10)]
    urgent = flow_set(
        [*arrival, 0.0, 1.0], [*[0.01] * 10, 0.9, 5.0], [[[0]]] * 12, priority=[0] * 10 + [1, 0]
    )
    completion = simulate_flows(np.ones(1), urgent).completion
    assert completion[10] == pytest.approx(1.0, rel=1e-12)


def test_paths_of_a_flow_drain_one_volume() -> None:
    flows = flow_set([0.0, 0.0], [3.0, 0.5], [[[0], [1]], [[1]]])
    assert_allclose(simulate_flows(np.ones(2), flows).completion, [1.75, 1.0])


def test_a_starved_flow_never_ends_and_an_empty_one_takes_its_latency() -> None:
    flows = flow_set([0.0, 0.0], [1.0, 0.0], [[[0]], [[0]]], latency=[0.0, 2.0])
    assert simulate_flows(np.zeros(1), flows).completion.tolist() == [np.inf, 2.0]


def test_no_flows_at_all() -> None:
    found = simulate_flows(np.ones(1), flow_set([], [], []), record_rates=True)
    assert len(found.completion) == 0
    assert found.num_events == 0


def test_a_limit_holds_where_no_link_does() -> None:
    limited = flow_set([0.0], [1.0], [[[0], [1]]], limit=[0.25])
    assert simulate_flows(np.array([1.0, np.inf]), limited).completion.tolist() == [4.0]


def test_flows_between_devices_run_over_all_their_planes() -> None:
    network = topology_named("planes_4x1").network
    flows = flows_between(network, [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [0, 3, 1], [1, 0, 2])
    assert flows.path_ptr.tolist() == [0, 2, 4, 6]
    for flow, (source, destination) in enumerate([(0, 1), (3, 0), (1, 2)]):
        pair = source * network.num_devices + destination
        for way in range(2):
            own = flows.path_ptr[flow] + way
            assert_array_equal(
                flows.path_links[flows.link_ptr[own] : flows.link_ptr[own + 1]],
                network.links_on(network.paths_of(pair)[way]),
            )
    with refusal("flow 0: field 'destination': 4 is not one of 4 devices"):
        flows_between(network, [0.0], [1.0], [0], [4])
    with refusal("flow 0: device 2 has no path to device 2"):
        flows_between(network, [0.0], [1.0], [2], [2])


def test_flows_and_paths_must_be_as_many() -> None:
    with refusal("field 'paths': is not one list for each of 2 flows"):
        flow_set([0.0, 0.0], [1.0, 1.0], [[[0]]])
