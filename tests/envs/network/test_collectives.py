"""Collectives: every algorithm executed, its bytes counted, its time against its closed form."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.hardware.builders import planes, uniform
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.network.collectives.hierarchical import BlueConnect, HierarchicalRing
from envs.network.collectives.recursive import HalvingDoubling, RecursiveDoubling
from envs.network.collectives.ring import (
    TO_NEXT,
    TO_PREVIOUS,
    RingAllGather,
    RingAllReduce,
    RingReduceScatter,
)
from envs.network.collectives.schedule import (
    AlphaBeta,
    Collective,
    Message,
    Operation,
    Schedule,
    play_collective,
)
from envs.network.collectives.trees import (
    BinomialBroadcast,
    BinomialTree,
    DoubleTree,
    DoubleTreeBroadcast,
    ParameterServer,
)
from envs.step.allocated import allocated_problem, uniform_allocation, weighted_allocation
from envs.step.problem import StepProblem
from tests.strength import examples

COUNTS = [*range(1, 10), 16, 32]
BANDWIDTH = 25e9 / 8  # bytes/s
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}


def servers_of(nics: int, devices: int = 1, bandwidth: str = "1e18B/s") -> PcieServer:
    pcie = {"medium": "PCIe", "bandwidth": bandwidth, "latency": "2us"}
    return PcieServer("V100-16GB", devices, pcie, nics=nics)


@cache
def homogeneous(count: int) -> Topology:
    return uniform("homogeneous", servers_of(1), max(count, 2), ETHERNET)


def algorithms(n: int) -> list[Collective]:
    divisors = [g for g in range(1, n + 1) if n % g == 0]
    return [
        RingAllReduce(),
        RingAllReduce(TO_PREVIOUS),
        RingReduceScatter(),
        RingReduceScatter(TO_PREVIOUS),
        RingAllGather(),
        RingAllGather(TO_PREVIOUS),
        RecursiveDoubling(),
        HalvingDoubling(),
        BinomialTree(),
        BinomialBroadcast(),
        *(DoubleTree(chunks) for chunks in (1, 2, 7)),
        *(DoubleTreeBroadcast(chunks) for chunks in (1, 2, 7)),
        *(ParameterServer(servers) for servers in (1, 3)),
        ParameterServer(n),
        HierarchicalRing((0,) * n),
        HierarchicalRing(tuple(range(n))),
        HierarchicalRing(tuple(rank // 3 for rank in range(n))),
        HierarchicalRing(tuple(rank % 2 for rank in range(n))),
        *(BlueConnect(tuple(rank // g for rank in range(n))) for g in divisors),
        *(BlueConnect(tuple(rank % g for rank in range(n))) for g in divisors),
    ]


every_count = pytest.mark.parametrize("n", COUNTS)


def promised(operation: Operation, before: np.ndarray, after: np.ndarray) -> bool:
    n, chunks = before.shape
    blocks = np.arange(chunks) * n // chunks  # the block of each chunk
    if operation is Operation.ALL_REDUCE:
        return bool((after == before.sum(axis=0)).all())
    if operation is Operation.BROADCAST:
        return bool((after == before[0]).all())
    if operation is Operation.ALL_GATHER:
        return bool((after == before[blocks, np.arange(chunks)]).all())
    own = blocks == np.arange(n)[:, None]
    return bool((after == before.sum(axis=0))[own].all())


@every_count
def test_after_its_rounds_every_rank_holds_what_was_promised(n: int) -> None:
    for algorithm in algorithms(n):
        schedule = algorithm.schedule(n)
        vectors = np.random.default_rng(n).integers(-99, 100, (n, schedule.chunks)).astype(float)
        assert promised(algorithm.operation, vectors, schedule.perform(vectors)[:n]), algorithm
        if n > 1:
            shorter = Schedule(n, schedule.ranks, schedule.chunks, schedule.rounds[:-1])
            left = shorter.perform(vectors)[:n]
            assert not promised(algorithm.operation, vectors, left), algorithm


@every_count
@pytest.mark.parametrize("size", [0.0, 1e3, 1e8])
def test_on_a_homogeneous_network_the_closed_form_holds(n: int, size: float) -> None:
    for algorithm in algorithms(n):
        schedule = algorithm.schedule(n)
        topology = homogeneous(schedule.ranks)
        link = AlphaBeta(topology.latency[0, 1], BANDWIDTH)
        played = play_collective(schedule, size, topology, range(schedule.ranks))
        expected = algorithm.seconds(n, size, link)
        assert played.seconds == pytest.approx(expected, rel=1e-9, abs=0), algorithm
        assert (expected > 0) == (n > 1)


@every_count
@pytest.mark.parametrize("step", [TO_NEXT, TO_PREVIOUS])
def test_ring_all_reduce_takes_what_the_literature_says(n: int, step: int) -> None:
    topology, size = homogeneous(n), 123_456_789.0
    latency = topology.latency[0, 1]
    expected = 2 * (n - 1) / n * size / BANDWIDTH + 2 * (n - 1) * latency
    schedule = RingAllReduce(step).schedule(n)
    played = play_collective(schedule, size, topology, range(n))
    assert played.seconds == pytest.approx(expected, rel=1e-9, abs=0)
    for way in (schedule.sent_bytes(size), schedule.received_bytes(size)):
        assert way == pytest.approx(2 * (n - 1) / n * size, rel=1e-12)
    assert all((m.destination - m.source - step) % n == 0 for m in schedule.messages)


@every_count
def test_no_all_reduce_sends_less_than_the_bound(n: int) -> None:
    for algorithm in algorithms(n):
        schedule = algorithm.schedule(n)
        sent, received = schedule.sent_bytes(8.0), schedule.received_bytes(8.0)
        assert sent.sum() == pytest.approx(received.sum(), rel=1e-12)
        assert sent.sum() == pytest.approx(schedule.message_bytes(8.0).sum(), rel=1e-12)
        if algorithm.operation is Operation.ALL_REDUCE and schedule.ranks == n:
            assert sent.sum() >= 2 * (n - 1) * 8.0 * (1 - 1e-12)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
def test_halving_doubling_sends_as_little_as_a_ring_in_fewer_rounds(n: int) -> None:
    schedule = HalvingDoubling().schedule(n)
    assert schedule.sent_bytes(1.0) == pytest.approx(2 * (n - 1) / n, rel=1e-12)
    assert len(schedule.rounds) == 2 * (n.bit_length() - 1)


@every_count
@pytest.mark.parametrize("chunks", [1, 5])
def test_in_a_round_of_a_double_tree_ranks_send_and_receive_once(n: int, chunks: int) -> None:
    for messages in DoubleTree(chunks).schedule(n).rounds:
        assert len({m.source for m in messages}) == len(messages)
        assert len({m.destination for m in messages}) == len(messages)


@every_count
@pytest.mark.parametrize("chunks", [1, 5])
def test_a_broadcast_over_two_trees_ends_within_its_bound(n: int, chunks: int) -> None:
    """2 ceil(log2 n) + 2 k rounds (Sanders, Speck and Träff 2009)."""
    rounds = DoubleTreeBroadcast(chunks).schedule(n).rounds
    assert len(rounds) <= 2 * (n - 1).bit_length() + 2 * chunks


def test_double_tree_comes_near_full_bandwidth() -> None:
    link = AlphaBeta(0.0, 1.0)
    assert DoubleTree(1000).seconds(32, 1.0, link) == pytest.approx(2.0, rel=0.02)
    assert DoubleTreeBroadcast(1000).seconds(32, 1.0, link) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("size", [1e3, 1e8])
def test_hierarchies_take_their_closed_forms_on_two_levels(servers: int, size: float) -> None:
    g = 4
    topology = uniform("levels", servers_of(1, g, "15.75GB/s"), servers, ETHERNET)
    n = topology.num_devices
    server = tuple(topology.server.tolist())
    inside = AlphaBeta(topology.latency[0, 1], 15.75e9)
    latency = topology.latency[0, g] if servers > 1 else 0.0
    for algorithm, share in ((HierarchicalRing(server), 1), (BlueConnect(server), g)):
        between = AlphaBeta(latency, BANDWIDTH / share)
        played = play_collective(algorithm.schedule(n), size, topology, range(n))
        expected = algorithm.seconds_on(n, size, inside, between)
        assert played.seconds == pytest.approx(expected, rel=1e-9, abs=0)


def test_a_transfer_uses_all_its_links() -> None:
    one = planes("one", servers_of(1), 4, ETHERNET)
    two = planes("two", servers_of(2), 4, ETHERNET)
    schedule, size = RingAllReduce().schedule(4), 1e8
    slow = play_collective(schedule, size, one, range(4)).seconds
    fast = play_collective(schedule, size, two, range(4)).seconds
    start = 6 * one.latency[0, 1]
    assert slow - start == pytest.approx(2 * (fast - start), rel=1e-9)


def test_a_ring_runs_at_the_rates_allocated_to_it() -> None:
    topology, size = planes("two", servers_of(2), 3, ETHERNET), 1e9
    builder = GraphBuilder("nothing")
    builder.add_operator("operator")
    problem = StepProblem.build(builder.build(), topology, RooflineCost())
    network = topology.network
    onwards = (network.channel_source - network.channel_destination) % 3 == 1
    planned = weighted_allocation(network, onwards.astype(float))
    latency = topology.latency[0, 1]
    for allocation, bandwidth in (
        (uniform_allocation(network), BANDWIDTH),
        (planned, 2 * BANDWIDTH),
    ):
        pipes = allocated_problem(problem, allocation).topology
        played = play_collective(RingAllReduce(TO_PREVIOUS).schedule(3), size, pipes, range(3))
        expected = RingAllReduce().seconds(3, size, AlphaBeta(latency, bandwidth))
        assert played.seconds == pytest.approx(expected, rel=1e-9)


def test_a_server_on_a_participants_device_exchanges_with_it_for_nothing() -> None:
    topology, size = homogeneous(4), 1e8
    schedule = ParameterServer(4).schedule(4)
    played = play_collective(schedule, size, topology, [0, 1, 2, 3, 0, 1, 2, 3])
    expected = 2 * (topology.latency[0, 1] + 0.75 * size / BANDWIDTH)
    assert played.seconds == pytest.approx(expected, rel=1e-9)
    inside = [m.source == m.destination - 4 for m in schedule.messages]
    assert (played.start[inside] == played.finish[inside]).all()


def test_messages_wait_for_both_their_ends() -> None:
    schedule = Schedule(
        3,
        3,
        1,
        ((Message(0, 1, 0, 1, True),), (Message(2, 1, 0, 1, True),), (Message(0, 2, 0, 1, True),)),
    )
    assert schedule.predecessors == ((), (0,), (0, 1))
    topology = homogeneous(3)
    played = play_collective(schedule, 1e6, topology, range(3))
    one = topology.latency[0, 1] + 1e6 / BANDWIDTH
    assert played.start == pytest.approx([0, one, 2 * one], rel=1e-9)
    assert played.finish == pytest.approx([one, 2 * one, 3 * one], rel=1e-9)


@examples(30)
@given(
    n=st.integers(2, 6),
    first=st.floats(1.0, 1e9),
    more=st.floats(0.0, 1e9),
    which=st.integers(0, 100),
)
def test_larger_vectors_take_longer(n: int, first: float, more: float, which: int) -> None:
    algorithm = algorithms(n)[which % len(algorithms(n))]
    link = AlphaBeta(1e-5, 1e9)
    assert algorithm.seconds(n, first, link) <= algorithm.seconds(n, first + more, link)
    schedule = algorithm.schedule(n)
    topology = homogeneous(schedule.ranks)
    small = play_collective(schedule, first, topology, range(schedule.ranks)).seconds
    large = play_collective(schedule, first + more, topology, range(schedule.ranks)).seconds
    assert small <= large * (1 + 1e-9)


@pytest.mark.parametrize("n", [0, -1])
def test_there_must_be_participants(n: int) -> None:
    link = AlphaBeta(1e-6, 1e9)
    for algorithm in (RingAllReduce(), DoubleTree(2), ParameterServer(), BlueConnect(())):
        with pytest.raises(InputError, match="participants"):
            algorithm.schedule(n)
        with pytest.raises(InputError, match="participants"):
            algorithm.seconds(n, 1.0, link)


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="2 is neither"):
        RingAllReduce(2)
    with pytest.raises(InputError, match="0 is below 1"):
        DoubleTree(0)
    with pytest.raises(InputError, match="0 is below 1"):
        ParameterServer(0)
    with pytest.raises(InputError, match="servers of 2, 1 ranks"):
        BlueConnect((0, 0, 1)).schedule(3)
    with pytest.raises(InputError, match="names the servers of 3 participants, there are 4"):
        HierarchicalRing((0, 0, 1)).schedule(4)
    with pytest.raises(InputError, match="names 3 devices, the collective has 4 ranks"):
        play_collective(RingAllReduce().schedule(4), 1.0, homogeneous(4), range(3))
    with pytest.raises(InputError, match="device 4 is none of 4"):
        play_collective(RingAllReduce().schedule(2), 1.0, homogeneous(4), [0, 4])
    for size in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="a vector of"):
            play_collective(RingAllReduce().schedule(2), size, homogeneous(4), [0, 1])
    with pytest.raises(InputError, match="wrong end"):
        Schedule(2, 2, 1, ((Message(0, 2, 0, 1, True),),))
    with pytest.raises(InputError, match="wrong chunks"):
        Schedule(2, 2, 1, ((Message(0, 1, 0, 2, True),),))
