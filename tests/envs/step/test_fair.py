"""Fair sharing: hand-worked cases, a transfer alone, the slow reference, what must always hold."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from random_steps import placed_problems, topology_of
from reference_fair import is_tabulated, paths_of, play_fair
from reference_step import Played, log_of, peak_memory
from sends import sends

from envs.hardware.topology import Topology
from envs.step.fair import Fair, FairSimulator
from envs.step.order import TopologicalOrder
from envs.step.plans import MOST_WEIGHT, PairWeights
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, StepSimulator
from tests.envs.topologies import BUILT, topology_named
from tests.strength import examples

ROUTED = ("planes_4x1", "leaf_spine", "fat_tree", "torus", "h100_2x8", "dgx1", "mixed_v100_p100")
SMALL = ("planes_4x1", "leaf_spine", "torus", "dgx1", "mixed_v100_p100")


topology = cache(topology_named)


def on_topology(problem: StepProblem, chosen: Topology, seconds: float) -> StepProblem:
    """The graph of `problem` on another topology; a byte there takes `seconds` on a fast link."""
    graph = problem.graph
    rows = np.arange(graph.num_operators)[:, None]
    columns = np.arange(chosen.num_devices)[None, :]
    fastest = chosen.class_bandwidth[np.isfinite(chosen.class_bandwidth)].max()
    volume = graph.tensor_bytes[:, None] * seconds * fastest
    moves = np.where(volume > 0, chosen.class_latency + volume / chosen.class_bandwidth, 0.0)
    moves[:, 0] = 0.0
    return StepProblem(
        graph=graph,
        topology=chosen,
        op_seconds=problem.op_seconds[rows, columns % problem.op_seconds.shape[1]],
        transfer_seconds=moves,
        capacity=chosen.memory_bytes,
    )


@st.composite
def routed_problems(draw):
    """(problem, device, order) on a topology of physical links."""
    problem, _, order = draw(placed_problems(max_operators=10))
    chosen = topology(draw(st.sampled_from(SMALL)))
    problem = on_topology(problem, chosen, draw(st.sampled_from([1e-6, 0.1, 0.7])))
    n, d = len(order), chosen.num_devices
    few = draw(st.lists(st.integers(0, d - 1), min_size=1, max_size=4))
    device = np.array(draw(st.lists(st.sampled_from(few), min_size=n, max_size=n)))
    return problem, device, order


@st.composite
def ported_problems(draw):
    """(problem, device, order) on ports alone; with bandwidths, or tabulated times."""
    problem, device, order = draw(placed_problems())
    late = draw(st.sampled_from([0.0, 0.75, 1.0]))
    known = draw(st.sampled_from([np.array([np.inf, 2.0, 1.0]), np.full(3, np.inf)]))
    changed = replace(
        problem.topology, class_latency=np.array([0.0, 0.0, late]), class_bandwidth=known
    )
    return replace(problem, topology=changed), device, order


CASES = st.one_of(ported_problems(), routed_problems())


def finishes(pairs, chosen: Topology, volume: float, multipath: bool = True) -> list[float]:
    """When the transfers of `sends` end, without latency."""
    problem = sends(pairs, chosen, volume, latency=False)
    device = np.array([a for a, _ in pairs] + [b for _, b in pairs])
    order = np.arange(2 * len(pairs))
    timeline = FairSimulator(problem, multipath=multipath).run(device, order)
    return timeline.transfer_finish[np.argsort(timeline.transfer_tensor)].tolist()


def test_transfers_from_one_nic_share_it():
    """Two servers of two devices, one byte per second between them."""
    chosen = topology_of([0, 0, 1, 1], nic_per_server=True)
    assert finishes([(0, 2)], chosen, 6.0) == [6]
    assert finishes([(0, 2), (1, 3)], chosen, 6.0) == [12, 12]
    assert finishes([(0, 2), (2, 0)], chosen, 6.0) == [6, 6]  # full duplex


def test_a_transfer_speeds_up_when_another_one_ends():
    problem = sends([(0, 2), (1, 3)], topology_of([0, 0, 1, 1], nic_per_server=True), 6.0)
    problem.transfer_seconds[1] = 2.0
    timeline = FairSimulator(problem, multipath=True).run(np.array([0, 1, 2, 3]), np.arange(4))
    assert timeline.transfer_finish.tolist() == [8, 4]
    assert timeline.step_time == 8


def test_a_transfer_waits_for_its_latency_and_others_do_not_wait_for_it():
    problem = sends([(0, 2), (1, 3)], topology_of([0, 0, 1, 1], nic_per_server=True), 6.0)
    late = replace(problem.topology, class_latency=np.array([0.0, 0.0, 3.0]))
    problem = replace(problem, topology=late)
    problem.transfer_seconds[0] = 3.0 + 4.0
    problem.transfer_seconds[1] = 2.0  # shorter than the latency: moves nothing
    timeline = FairSimulator(problem, multipath=True).run(np.array([0, 1, 2, 3]), np.arange(4))
    assert timeline.transfer_start.tolist() == [0, 0]
    assert timeline.transfer_finish.tolist() == [7, 2]


def test_what_one_link_does_not_let_through_is_left_to_others():
    """Four transfers into device 0 hold its receive port; the fifth shares a send port with one."""
    chosen = topology_of([0] * 6, nic_per_server=False)  # two bytes per second at every port
    found = finishes([(1, 0), (2, 0), (3, 0), (4, 0), (4, 5)], chosen, 6.0)
    assert found == [12, 12, 12, 12, 4]


def test_paths_in_two_planes_add_up():
    chosen = topology("planes_4x1")
    plane = 25e9 / 8
    assert finishes([(0, 1)], chosen, plane, multipath=False) == pytest.approx([1.0])
    assert finishes([(0, 1)], chosen, plane) == pytest.approx([0.5])
    assert finishes([(0, 1), (0, 2)], chosen, plane) == pytest.approx([1.0, 1.0])


def test_tabulated_times_share_the_time_of_their_ports():
    chosen = replace(topology_of([0] * 3, nic_per_server=False), class_bandwidth=np.full(3, np.inf))
    problem = sends([(0, 1), (0, 2)], chosen, 1.0)
    problem.transfer_seconds[:] = [[0.0, 1.0, 1.0], [0.0, 3.0, 3.0]]
    simulator = FairSimulator(problem, multipath=True)
    timeline = simulator.run(np.array([0, 0, 1, 2]), np.arange(4))
    assert timeline.transfer_finish.tolist() == [2, 4]


@pytest.mark.parametrize("name", BUILT)
def test_alone_on_one_path_a_transfer_takes_the_time_of_single_port(name):
    chosen = topology(name)
    d = chosen.num_devices
    apart = chosen.server[:, None] != chosen.server[None, :]
    for i in range(d):
        problem = sends([(i, (i + 1) % d)], chosen, 1e9)
        fair = FairSimulator(problem, multipath=False)
        ports = StepSimulator(problem)
        for j in range(d):
            nics = chosen.num_servers < d and name == "h100_2x8" and apart[i, j]
            if i == j or (nics and (i - j) % 8):  # there the route joins NICs of two numbers
                continue
            where, order = np.array([i, j]), np.arange(2)
            alone = ports.step_time(where, order)
            assert fair.step_time(where, order) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("multipath", [True, False])
@pytest.mark.parametrize("name", ROUTED)
def test_many_transfers_at_once_agree_with_the_reference(name, multipath):
    chosen = topology(name)
    rng = np.random.default_rng(len(name))
    for count in (5, 25):
        pairs = [tuple(rng.choice(chosen.num_devices, 2, replace=False)) for _ in range(count)]
        problem = sends(pairs, chosen, 1e9, latency=False)
        problem.transfer_seconds[:] *= rng.integers(1, 5, (count, 1))
        device = np.array([a for a, _ in pairs] + [b for _, b in pairs])
        order = np.arange(2 * count)
        expected = play_fair(problem, device, order, multipath)
        found = FairSimulator(problem, multipath=multipath).run(device, order)
        assert_allclose(found.op_finish, expected.finish, rtol=1e-9)


@examples(200)
@given(CASES, st.booleans(), st.integers(0, 99), st.booleans())
def test_agrees_with_the_reference(case, multipath, seed, weighted):
    problem, device, order = case
    devices = problem.topology.num_devices
    weight = default_rng(seed).integers(1, 5, (devices, devices)) if weighted else None
    expected = play_fair(problem, device, order, multipath, weight)
    simulator = FairSimulator(problem, multipath=multipath)
    if weighted:
        simulator.weigh(weight)
    timeline = simulator.run(device, order)
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert_allclose(timeline.op_start, expected.start, **close)
    assert_allclose(timeline.op_finish, expected.finish, **close)
    log = log_of(timeline)
    assert_allclose(sorted(log), sorted(expected.transfers), **close)
    assert simulator.step_time(device, order) == timeline.step_time
    played = Played(timeline.op_start.tolist(), timeline.op_finish.tolist(), log)
    assert_allclose(timeline.peak_memory, peak_memory(problem, device, played))


@examples(50)
@given(CASES, st.sampled_from([1, 3, 64, MOST_WEIGHT]))
def test_equal_weights_are_fair_sharing_to_the_last_digit(case, weight):
    problem, device, order = case
    fair = Fair().simulator(problem)
    devices = problem.topology.num_devices
    equal = PairWeights(np.full((devices, devices), weight))
    weighed = Fair(weights=equal).simulator(problem)
    same = weighed.step_time(device, order), fair.step_time(device, order)
    assert same[0] == (same[1] if weight != 3 else pytest.approx(same[1], rel=1e-12))


def test_what_is_no_weight_is_told():
    wrong = PairWeights(np.array([[1, 0], [MOST_WEIGHT + 1, 1]]))
    first, second = wrong.violations(2)
    assert "from device 0 to 1 is 0" in first
    assert "from device 1 to 0 is 4097" in second
    assert PairWeights.fair(3).violations(3) == []
    assert PairWeights.fair(3).violations(2) == ["gives (3, 3) weights, there are 2 devices"]


@examples(100)
@given(CASES)
def test_no_link_carries_more_than_its_capacity_in_any_span_of_time(case):
    """Bytes of transfers that begin and end within a span, over a link of their only path."""
    problem, device, order = case
    timeline = FairSimulator(problem, multipath=False).run(device, order)
    tabulated = is_tabulated(problem)
    known = problem.topology
    capacity = np.ones(known.num_ports) if tabulated else known.network.link_capacity
    carried = {}  # link -> [(begin, end, bytes)]
    for tensor, i, j, begin, end in log_of(timeline):
        link = known.link_class[i, j]
        lasting = problem.transfer_seconds[tensor, link] - known.class_latency[link]
        if lasting > 0:
            volume = lasting * (1.0 if tabulated else known.class_bandwidth[link])
            for crossed in paths_of(problem, i, j, False)[0]:
                span = (begin + known.class_latency[link], end, volume)
                carried.setdefault(crossed, []).append(span)
    for link, spans in carried.items():
        for first, _, _ in spans:
            for _, last, _ in spans:
                inside = sum(size for a, b, size in spans if a >= first and b <= last)
                assert inside <= capacity[link] * max(0.0, last - first) * (1 + 1e-9) + 1e-9


@examples(80)
@given(CASES, st.booleans())
def test_never_faster_than_without_communication(case, multipath):
    problem, device, order = case
    free = StepSimulator(problem, communication=NO_COMMUNICATION).step_time(device, order)
    assert FairSimulator(problem, multipath=multipath).step_time(device, order) >= free * (
        1 - 1e-12
    )


@examples(40)
@given(CASES)
def test_batches_agree_with_single_placements_and_leave_no_trace(case):
    problem, device, order = case
    rng = np.random.default_rng(0)
    simulator = FairSimulator(problem, multipath=True)
    devices = rng.integers(0, problem.topology.num_devices, (4, len(device)))
    once = simulator.step_times(devices, order)
    again = simulator.step_times(devices[::-1], order)[::-1]
    assert once.tolist() == again.tolist()
    by_rule = FairSimulator(problem, multipath=True, order_rule=TopologicalOrder())
    natural = np.arange(len(device))
    assert by_rule.step_time(device) == simulator.step_time(device, natural)


def test_an_operator_a_device_cannot_run_never_ends():
    problem = sends([(0, 1)], topology_of([0, 1], nic_per_server=True), 1.0)
    problem.op_seconds[1, 1] = np.inf
    simulator = FairSimulator(problem, multipath=True)
    assert simulator.step_time(np.array([0, 1]), np.arange(2)) == np.inf


def test_simulators_can_be_copied_and_pickled():
    problem = sends([(0, 1)], topology("planes_4x1"), 1e9)
    simulator = FairSimulator(problem, multipath=True)
    for twin in (copy.deepcopy(simulator), pickle.loads(pickle.dumps(simulator))):
        where = np.array([0, 3])
        assert twin.step_time(where, np.arange(2)) == simulator.step_time(where, np.arange(2))
