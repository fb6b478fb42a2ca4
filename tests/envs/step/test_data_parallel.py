"""Data-parallel steps: their rules checked on what they say happened, and their limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from captured_steps import perceptron
from hypothesis import given
from hypothesis import strategies as st

from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph, Phase
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.network.collectives.hierarchical import BlueConnect, HierarchicalRing
from envs.network.collectives.recursive import HalvingDoubling
from envs.network.collectives.ring import RingAllReduce
from envs.network.collectives.schedule import Collective, play_collective
from envs.network.collectives.trees import BinomialBroadcast, DoubleTree, ParameterServer
from envs.network.fluid import simulate_flows
from envs.step.data_parallel import DataParallelSimulator, DataParallelStep
from envs.step.fair import FairSimulator
from envs.step.order import OneFOneB
from envs.step.problem import StepProblem
from envs.step.replicated_step import (
    ONE_BUCKET,
    BucketRule,
    ReplicatedStep,
    gradient_buckets,
    gradients,
    updates_by_bucket,
    updates_last,
)
from envs.step.step import NO_COMMUNICATION, StepSimulator
from tests.envs.network.made_flows import flows_between
from tests.strength import examples

SMALL = BucketRule(first=1e5, size=1e6)


@cache
def cluster(
    servers: int, devices: int, bandwidth: str = "25Gbps", latency: str = "5us"
) -> Topology:
    fast = "1e30B/s"
    pcie = {
        "medium": "PCIe",
        "bandwidth": fast if bandwidth == fast else "15.75GB/s",
        "latency": "0s" if bandwidth == fast else "2us",
    }
    network = {"medium": "Ethernet", "bandwidth": bandwidth, "latency": latency}
    return planes("cluster", PcieServer("V100-16GB", devices, pcie, nics=2), servers, network)


def problem_of(graph: OpGraph, topology: Topology) -> StepProblem:
    return StepProblem.build(graph, topology, RooflineCost())


def whole(graph: OpGraph, replicas: int) -> np.ndarray:
    """A replica on every one of the first devices."""
    return np.repeat(np.arange(replicas)[:, None], graph.num_operators, axis=1)


def halves(graph: OpGraph, groups: np.ndarray) -> np.ndarray:
    """Replicas on two devices each, layers in two halves, split at a co-location group."""
    stage = np.zeros(graph.num_operators, dtype=np.int64)
    group = graph.colocation
    stage[group >= graph.num_groups // 2] = 1
    return groups[:, stage]


def play(
    graph: OpGraph,
    topology: Topology,
    devices: np.ndarray,
    rule: BucketRule = SMALL,
    collective: Collective | None = None,
    servers: tuple[int, ...] = (),
) -> DataParallelStep:
    simulator = DataParallelSimulator(
        problem_of(graph, topology), collective or RingAllReduce(), rule, servers
    )
    return simulator.run(devices, OneFOneB()(graph, devices[0]))


def check_rules(
    step: DataParallelStep,
    problem: StepProblem,
    devices: np.ndarray,
    order: np.ndarray,
    collective: Collective,
    servers: tuple[int, ...],
) -> None:
    """Everything started as soon as the rules allow, and all traffic took max-min fair time."""
    graph, topology = problem.graph, problem.topology
    order = updates_last(graph, order)
    found = gradients(graph)
    n = graph.num_operators
    rows: list[tuple[float, int, int, float, float]] = []
    expected_rows: list[float] = []
    buckets_of: dict[int, list[float]] = {}
    for run in step.buckets:
        for parameter in run.bucket.parameters:
            for op in found[parameter].updates:
                buckets_of.setdefault(op, []).append(run.finish)
    for timeline in step.timelines:
        arrival = {
            (int(t), int(d)): float(finish)
            for t, d, finish in zip(
                timeline.transfer_tensor, timeline.transfer_destination,
                timeline.transfer_finish, strict=True,
            )
        }  # fmt: skip
        before: dict[int, float] = {}
        earliest = np.zeros(n)
        for producer, consumer, tensor in graph.edges:
            there = int(timeline.device[consumer])
            local = timeline.device[producer] == there
            came = timeline.op_finish[producer] if local else arrival[int(tensor), there]
            earliest[consumer] = max(earliest[consumer], came)
        for op in order:
            device = int(timeline.device[op])
            start = max(before.get(device, 0.0), earliest[op], *buckets_of.get(int(op), [0.0]))
            assert timeline.op_start[op] == start
            assert timeline.op_finish[op] == start + problem.op_seconds[op, device]
            before[device] = float(timeline.op_finish[op])
        for t, i, j, start, finish in zip(
            timeline.transfer_tensor, timeline.transfer_source, timeline.transfer_destination,
            timeline.transfer_start, timeline.transfer_finish, strict=True,
        ):  # fmt: skip
            assert start == timeline.op_finish[graph.producer[t]]
            if graph.tensor_bytes[t] > 0:
                rows.append((start, i, j, graph.tensor_bytes[t], topology.latency[i, j]))
                expected_rows.append(finish)
            else:
                assert start == finish
    schedule = collective.schedule(len(devices))
    last: dict[int, float] = {}
    for run in step.buckets:
        ready = max(
            timeline.op_finish[op]
            for timeline in step.timelines
            for parameter in run.bucket.parameters
            for op in found[parameter].makers
        )
        assert run.ready == ready
        assert run.start == max(ready, last.get(run.bucket.device, 0.0))
        assert run.finish == run.messages.finish.max(initial=run.start)
        last[run.bucket.device] = run.finish
        owner = graph.parameter_owner[run.bucket.parameters[0]]
        places = [*devices[:, owner], *servers]
        sizes = schedule.message_bytes(run.bucket.size)
        for number, message in enumerate(schedule.messages):
            start = run.messages.start[number]
            previous = list(schedule.predecessors[number])
            assert start == run.messages.finish[previous].max(initial=run.start)
            i, j = places[message.source], places[message.destination]
            if i != j:
                rows.append((start, i, j, sizes[number], topology.latency[i, j]))
                expected_rows.append(run.messages.finish[number])
    if rows:
        start, i, j, size, latency = (np.array(column) for column in zip(*rows, strict=True))
        flows = flows_between(topology.network, start, size, i, j, latency=latency)
        finish = start + simulate_flows(topology.network.link_capacity, flows).completion
        assert expected_rows == pytest.approx(finish, rel=1e-9)


@examples(40)
@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 4),
    micro_batches=st.integers(1, 3),
    replicas=st.integers(1, 4),
    stages=st.integers(1, 2),
    size=st.sampled_from([1.0, 2e7, 1e8, np.inf]),
    which=st.integers(0, 5),
)
def test_everything_happens_as_soon_as_the_rules_allow(
    seed: int, layers: int, micro_batches: int, replicas: int, stages: int, size: float, which: int
) -> None:
    graph = synthetic_training_graph(np.random.default_rng(seed), layers, 2, micro_batches)
    topology = cluster(4, 2)
    groups = np.arange(8).reshape(stages, -1).T[:replicas]
    devices = halves(graph, groups) if stages == 2 else whole(graph, replicas)
    collective: Collective = (
        RingAllReduce(), HalvingDoubling(), DoubleTree(2), ParameterServer(1),
        HierarchicalRing(tuple(r // 2 for r in range(replicas))), BlueConnect((0,) * replicas),
    )[which]  # fmt: skip
    servers = (7,) if which == 3 else ()
    problem = problem_of(graph, topology)
    order = OneFOneB()(graph, devices[0])
    simulator = DataParallelSimulator(problem, collective, BucketRule(size, size), servers)
    step = simulator.run(devices, order)
    check_rules(step, problem, devices, order, collective, servers)
    assert sum(run.bucket.size for run in step.buckets) == pytest.approx(graph.gradient_bytes.sum())


@pytest.mark.parametrize("collective", [RingAllReduce(), HalvingDoubling(), ParameterServer(4)])
def test_a_captured_step_follows_the_recurrence_of_its_buckets(collective: Collective) -> None:
    """One device for each replica: buckets one after another, each as if alone."""
    graph, topology = perceptron(), cluster(4, 1)
    servers = (0, 1, 2, 3) if collective.name.startswith("parameter") else ()
    step = play(graph, topology, whole(graph, 4), SMALL, collective, servers)
    schedule = collective.schedule(4)
    seconds = problem_of(graph, topology).op_seconds[:, 0]
    order = updates_last(graph, OneFOneB()(graph, np.zeros(graph.num_operators, dtype=np.int64)))
    clock, finish = 0.0, {}
    for op in order[graph.phase[order] != Phase.OPTIMIZER]:
        clock += seconds[op]
        finish[int(op)] = clock
    reduced, before = {}, 0.0
    assert len(step.buckets) > 3
    for run in step.buckets:
        alone = play_collective(schedule, run.bucket.size, topology, [0, 1, 2, 3, *servers])
        makers = [op for p in run.bucket.parameters for op in gradients(graph)[p].makers]
        before = max(before, *(finish[op] for op in makers)) + alone.seconds
        assert run.finish == pytest.approx(before, rel=1e-9)
        reduced |= {int(graph.parameter_owner[p]): before for p in run.bucket.parameters}
    for op in order[graph.phase[order] == Phase.OPTIMIZER]:
        clock = max(clock, reduced[int(op)]) + seconds[op]
    assert step.step_time == pytest.approx(clock, rel=1e-9)
    assert step.exposed_seconds > 0


@pytest.mark.parametrize("stages", [1, 2])
def test_with_infinite_bandwidth_nothing_changes(stages: int) -> None:
    graph, topology = perceptron(), cluster(4, 2, "1e30B/s", "0s")
    groups = np.arange(8).reshape(4, 2)
    devices = halves(graph, groups) if stages == 2 else whole(graph, 4)
    step = play(graph, topology, devices)
    simulator = StepSimulator(problem_of(graph, topology), communication=NO_COMMUNICATION)
    order = updates_last(graph, OneFOneB()(graph, devices[0]))
    assert step.step_time == pytest.approx(simulator.step_time(devices[0], order), rel=1e-9)
    assert step.exposed_seconds == pytest.approx(0.0, abs=1e-12)


@examples(40)
@given(seed=st.integers(0, 10**6), layers=st.integers(1, 5), micro_batches=st.integers(1, 3))
def test_one_replica_is_played_as_under_fair_sharing(
    seed: int, layers: int, micro_batches: int
) -> None:
    rng = np.random.default_rng(seed)
    graph = synthetic_training_graph(rng, layers, 2, micro_batches)
    problem = problem_of(graph, cluster(2, 2))
    device = rng.integers(0, 4, graph.num_groups)[graph.colocation]
    order = updates_last(graph, OneFOneB()(graph, device))
    simulator = DataParallelSimulator(problem, RingAllReduce(), SMALL)
    step = simulator.run(device[None, :], order)
    expected = FairSimulator(problem, multipath=True).run(device, order)
    (timeline,) = step.timelines
    assert timeline.op_start == pytest.approx(expected.op_start, rel=1e-9, abs=1e-15)
    assert timeline.op_finish == pytest.approx(expected.op_finish, rel=1e-9, abs=1e-15)
    assert step.step_time == step.computing_time


def test_one_replica_has_nothing_to_reduce() -> None:
    graph, topology = perceptron(), cluster(4, 1)
    step = play(graph, topology, whole(graph, 1))
    assert step.step_time == step.computing_time
    assert step.exposed_share == step.synchronisation_seconds == 0.0


def test_one_bucket_overlaps_nothing() -> None:
    graph, topology = perceptron(), cluster(4, 1)
    step = play(graph, topology, whole(graph, 4), ONE_BUCKET)
    (run,) = step.buckets
    assert run.bucket.size == graph.gradient_bytes.sum()
    assert step.exposed_seconds == pytest.approx(run.seconds, rel=1e-9)
    assert step.exposed_share == pytest.approx(1.0, rel=1e-9)


@examples(15)
@given(size=st.floats(1e3, 1e7), gbps=st.floats(0.01, 400.0), replicas=st.integers(2, 4))
def test_a_step_lasts_as_long_as_its_collectives_and_as_its_computation(
    size: float, gbps: float, replicas: int
) -> None:
    graph, topology = perceptron(), cluster(4, 1, f"{gbps:.6f}Gbps")
    step = play(graph, topology, whole(graph, replicas), BucketRule(size, size))
    assert step.step_time >= step.synchronisation_seconds * (1 - 1e-12)
    assert step.step_time >= step.computing_time
    assert step.exposed_seconds <= step.synchronisation_seconds * (1 + 1e-9)
    sent = sum(run.messages.finish.size for run in step.buckets)
    assert sent == len(step.buckets) * len(RingAllReduce().schedule(replicas).messages)


def test_updates_in_the_order_of_their_buckets_start_earlier_and_never_end_later() -> None:
    graph, topology = perceptron(), cluster(4, 1, "1Gbps")
    devices = whole(graph, 4)
    problem = problem_of(graph, topology)
    simulator = DataParallelSimulator(problem, RingAllReduce(), SMALL)
    order = OneFOneB()(graph, devices[0])
    buckets = gradient_buckets(graph, devices[0], updates_last(graph, order), SMALL)
    plain = simulator.run(devices, order)
    sooner = simulator.run(devices, updates_by_bucket(graph, order, buckets))
    update = graph.phase == Phase.OPTIMIZER
    first = [step.timelines[0].op_start[update].min() for step in (sooner, plain)]
    assert first[0] < first[1]
    assert sooner.step_time < plain.step_time


def test_updates_in_the_middle_of_backward_are_moved_behind_it() -> None:
    graph, topology = perceptron(), cluster(4, 1)
    problem, devices = problem_of(graph, topology), whole(graph, 2)
    position = np.arange(graph.num_operators, dtype=np.float64)
    for gradient in gradients(graph).values():
        position[list(gradient.updates)] = max(gradient.makers) + 0.5
    early = np.argsort(position)
    update = graph.phase == Phase.OPTIMIZER
    assert (np.diff(update[early].astype(int)) < 0).any()
    step = DataParallelSimulator(problem, RingAllReduce(), SMALL).run(devices, early)
    last = np.concatenate([early[~update[early]], early[update[early]]])
    check_rules(step, problem, devices, last, RingAllReduce(), ())
    stuck = ReplicatedStep(problem, devices, early)
    (bucket,) = gradient_buckets(graph, devices[0], early, ONE_BUCKET)
    stuck.reduce(bucket, gradients(graph), RingAllReduce().schedule(2), [0, 1])
    with pytest.raises(InputError, match=r"'optimizer/5.* waits for what comes after it"):
        stuck.play()


def test_a_slow_replica_holds_up_the_others() -> None:
    graph = perceptron()
    topology = cluster(4, 1)
    problem = problem_of(graph, topology)
    problem.op_seconds[:, 2] *= 3.0
    simulator = DataParallelSimulator(problem, RingAllReduce(), SMALL)
    devices = whole(graph, 3)
    step = simulator.run(devices, OneFOneB()(graph, devices[0]))
    alone = StepSimulator(problem)
    order = updates_last(graph, OneFOneB()(graph, devices[0]))
    assert step.computing_time == pytest.approx(alone.step_time(devices[2], order), rel=1e-9)
    ends = [timeline.op_finish[graph.phase != Phase.OPTIMIZER].max() for timeline in step.timelines]
    assert ends[2] == pytest.approx(3 * ends[0], rel=1e-9)
    assert min(timeline.step_time for timeline in step.timelines) > ends[2]


def test_a_replica_remembers_its_peak_memory() -> None:
    graph, topology = perceptron(), cluster(4, 1)
    devices = whole(graph, 4)
    step = play(graph, topology, devices)
    alone = StepSimulator(problem_of(graph, topology)).run(
        devices[0], updates_last(graph, OneFOneB()(graph, devices[0]))
    )
    for replica, timeline in enumerate(step.timelines):
        assert timeline.peak_memory[replica] == pytest.approx(alone.peak_memory[0])
        assert timeline.peak_memory.sum() == timeline.peak_memory[replica]


def test_bad_input_is_named() -> None:
    graph, topology = perceptron(), cluster(4, 2)
    problem = problem_of(graph, topology)
    simulator = DataParallelSimulator(problem, RingAllReduce(), SMALL)
    order = OneFOneB()(graph, whole(graph, 1)[0])
    n = graph.num_operators
    with pytest.raises(InputError, match="binomial broadcast is a broadcast"):
        DataParallelSimulator(problem, BinomialBroadcast(), SMALL)
    with pytest.raises(InputError, match="device 8 is none of 8"):
        DataParallelSimulator(problem, ParameterServer(1), SMALL, (8,))
    with pytest.raises(InputError, match="not replicas x"):
        simulator.run(np.zeros(n, dtype=np.int64), order)
    with pytest.raises(InputError, match="beyond the 8"):
        simulator.run(whole(graph, 9), order)
    with pytest.raises(InputError, match="device 1 is in replica 1 too"):
        simulator.run(whole(graph, 2)[[0, 1, 1]], order)
    mixed = whole(graph, 2)
    mixed[1, 0] = 3
    with pytest.raises(InputError, match="two devices stand for device 0"):
        simulator.run(mixed, order)
    joined = halves(graph, np.array([[0, 1], [2, 2]]))
    with pytest.raises(InputError, match="stands for two devices: device 2"):
        simulator.run(joined, order)
    with pytest.raises(InputError, match="stands before its input"):
        simulator.run(whole(graph, 2), order[::-1])
    with pytest.raises(InputError, match="not a permutation"):
        simulator.run(whole(graph, 2), np.zeros(n, dtype=np.int64))
    with pytest.raises(InputError, match="names 4 devices, the collective has 5 ranks"):
        play(graph, topology, whole(graph, 4), SMALL, ParameterServer(1))
    apart = whole(graph, 1)
    apart[0, graph.parameter_owner[3]] = 1
    with pytest.raises(InputError, match="on another device"):
        simulator.run(apart, order)
    unknown = replace(topology, class_bandwidth=np.full_like(topology.class_bandwidth, np.inf))
    devices = halves(graph, np.array([[0, 2]]))
    with pytest.raises(InputError, match="has no bandwidth to share"):
        DataParallelSimulator(replace(problem, topology=unknown), RingAllReduce(), SMALL).run(
            devices, OneFOneB()(graph, devices[0])
        )
    problem.op_seconds[5, 1] = np.inf
    with pytest.raises(InputError, match="cannot run on"):
        simulator.run(whole(graph, 2), order)
