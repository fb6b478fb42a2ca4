"""What is computed again or moved to the host: by hand on a chain, by rules on random steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.hardware.builders import mixed, single_server, torus
from envs.hardware.fabric import LinkSpec
from envs.hardware.servers import DEFAULT_LINK, NvlinkServer, PcieServer, host_link, with_hosts
from envs.step.order import OneFOneB
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.ready import ReadySimulator
from envs.step.rematerialise import Residence, rematerialised
from envs.step.step import StepSimulator
from tests.envs.step.random_steps import placed_problems, topology_of
from tests.envs.step.reference_step import peak_memory, play_in_order

KEEP, RECOMPUTE, OFFLOAD = Residence
GB = 1e9


def chain(layers: int, micro_batches: int = 1, memory: float = np.inf) -> StepProblem:
    """One device: forward 1 s and backward 2 s a layer; a layer saves 10 GB that feed the next."""
    builder = GraphBuilder("chain")
    for m in range(micro_batches):
        saved = []
        for layer in range(layers):
            op = builder.add_operator(f"f{layer}.{m}", micro_batch=m)
            if saved:
                builder.add_use(saved[-1], op)
            saved.append(builder.add_tensor(op, 10 * GB))
        gradient = None
        for layer in reversed(range(layers)):
            op = builder.add_operator(f"b{layer}.{m}", phase=Phase.BACKWARD, micro_batch=m)
            builder.add_use(saved[layer], op)
            if gradient is not None:
                builder.add_use(gradient, op)
            gradient = builder.add_tensor(op, 1 * GB)
    graph = builder.build()
    seconds = np.where(graph.phase == Phase.FORWARD, 1.0, 2.0)[:, None]
    alone = topology_of([0], False)
    spec = replace(alone.devices[0].spec, memory_bytes=100 * GB)
    topology = replace(alone, devices=(replace(alone.devices[0], spec=spec),))
    return StepProblem(
        graph,
        topology,
        seconds,
        np.zeros((graph.num_tensors, 3)),
        np.array([memory]),
    )


def played(problem: StepProblem, residence, device=None):
    """The step with its moves, in its numbering where there is one device, else 1F1B."""
    n = problem.graph.num_operators
    device = np.zeros(n, dtype=np.int64) if device is None else device
    order = np.arange(n) if device.max() == 0 else OneFOneB()(problem.graph, device)
    made = rematerialised(problem, device, order, np.asarray(residence, dtype=np.int64))
    return made, StepSimulator(made.problem).run(made.device, made.order)


def test_computing_again_takes_the_forward_seconds_and_frees_the_bytes() -> None:
    problem = chain(4)  # f0 f1 f2 f3 b3 b2 b1 b0
    _, timeline = played(problem, [0] * 8)
    # all four outputs and the first gradient
    assert (timeline.step_time, timeline.peak_memory[0]) == (12.0, 41 * GB)
    again, timeline = played(problem, [KEEP, RECOMPUTE, KEEP, KEEP, *[0] * 4])
    assert timeline.step_time == 13.0
    assert [again.problem.graph.op_names[op] for op in again.order] == [
        "f0.0", "f1.0", "f2.0", "f3.0", "b3.0", "b2.0", "f1.0/again", "b1.0", "b0.0",
    ]  # fmt: skip
    # while b3 runs, f1's output is gone
    assert timeline.peak_memory[0] == 31 * GB
    assert again.problem.graph.flop.sum() == problem.graph.flop.sum()


def test_second_runs_read_second_runs_back_to_what_is_kept() -> None:
    made, timeline = played(chain(4), [KEEP, RECOMPUTE, RECOMPUTE, KEEP, *[0] * 4])
    names = made.problem.graph.op_names
    assert names == (
        "f0.0", "f1.0", "f2.0", "f3.0", "b3.0", "f1.0/again", "f2.0/again", "b2.0", "b1.0", "b0.0",
    )  # fmt: skip
    assert timeline.step_time == 14.0
    # b2 has f0, f1 and f2 again, the gradients of b3 and its own
    assert timeline.peak_memory[0] == 32 * GB
    read = {(names[u], names[c]) for u, c, _ in made.problem.graph.edges}
    assert ("f1.0/again", "f2.0/again") in read
    assert ("f0.0", "f1.0/again") in read
    assert ("f1.0", "b1.0") not in read


def test_what_nobody_needs_again_is_not_computed_again() -> None:
    builder = GraphBuilder("no backward")
    first, second = builder.add_operator("a"), builder.add_operator("b")
    builder.add_use(builder.add_tensor(first, 1.0), second)
    graph = builder.build()
    problem = StepProblem(
        graph, topology_of([0], False), np.ones((2, 1)), np.zeros((1, 3)), np.array([9.0])
    )
    made, _ = played(problem, [RECOMPUTE, RECOMPUTE])
    assert made.problem.graph.num_operators == 2


def test_offload_counts_the_links_traffic_and_the_hosts_memory() -> None:
    problem = chain(8)
    residence = [OFFLOAD, *[0] * 15]
    made, timeline = played(problem, residence)
    topology = made.problem.topology
    assert [device.name for device in topology.devices] == ["d0", "d0/host"]
    assert timeline.peak_memory.tolist() == [71 * GB, 10 * GB]
    seconds = DEFAULT_LINK.latency + 10 * GB / DEFAULT_LINK.bandwidth
    moves = list(zip(timeline.transfer_source, timeline.transfer_destination, strict=True))
    taken = timeline.transfer_finish - timeline.transfer_start
    assert sorted(zip(moves, taken.round(9), strict=True)) == [
        ((0, 1), 0.0),  # the word to fetch
        ((0, 1), round(seconds, 9)), ((1, 0), round(seconds, 9)),
    ]  # fmt: skip
    # out at once after f0, back so as to be there when b0 starts at 8 + 7 * 2 s
    assert timeline.transfer_start.min() == 1.0
    assert 22.0 - 2.0 <= timeline.transfer_finish.max() <= 22.0
    assert timeline.step_time == 24.0


def test_a_host_has_the_memory_of_its_device_and_not_more() -> None:
    problem = chain(2, memory=100 * GB)
    small = replace(problem.topology.devices[0].spec, memory_bytes=9 * GB)
    device = replace(problem.topology.devices[0], spec=small)
    problem = replace(problem, topology=replace(problem.topology, devices=(device,)))
    plan = Plan(Placement(np.zeros(4, np.int64)), np.arange(4), np.array([OFFLOAD, 0, 0, 0]))
    assert plan.violations(problem) == [
        "device 'd0/host' needs 10000000000 bytes at its peak, 1000000000 too many"
    ]


def test_only_forward_operators_move() -> None:
    problem = chain(2, memory=100 * GB)
    plan = Plan(Placement(np.zeros(4, np.int64)), np.arange(4), np.array([0, 7, RECOMPUTE, 0]))
    found = plan.violations(problem)
    assert [fault.split(":")[0] for fault in found] == ["operator 'f1.0'", "operator 'b1.0'"]


def test_what_another_device_has_received_it_keeps() -> None:
    problem = chain(2)
    problem = replace(
        problem,
        topology=topology_of([0, 0], False),
        op_seconds=np.repeat(problem.op_seconds, 2, axis=1),
        capacity=np.full(2, np.inf),
    )
    device = np.array([0, 1, 1, 1])  # f0 | f1 b1 b0: b0 reads what f0 has sent
    made, timeline = played(problem, [RECOMPUTE, RECOMPUTE, 0, 0], device)
    assert [made.problem.graph.op_names[op] for op in made.order if made.of[op] < 2] == [
        "f0.0", "f1.0", "f1.0/again",
    ]  # fmt: skip
    assert timeline.peak_memory[0] == 10 * GB


def test_operators_that_wait_for_no_gradient_wait_for_their_first_reader() -> None:
    builder = GraphBuilder("derivative")
    forward = [builder.add_operator(f"f{layer}") for layer in range(2)]
    loss = builder.add_operator("loss")
    saved = [builder.add_tensor(op, 10.0) for op in forward]
    builder.add_use(saved[0], forward[1])
    builder.add_use(saved[1], loss)
    end = builder.add_tensor(loss, 1.0)
    early = builder.add_operator("square", phase=Phase.BACKWARD)
    builder.add_use(saved[0], early)
    gradient = builder.add_operator("gradient", phase=Phase.BACKWARD)
    builder.add_use(end, gradient)
    last = builder.add_operator("backward", phase=Phase.BACKWARD)
    builder.add_use(builder.add_tensor(early, 1.0), last)
    builder.add_use(builder.add_tensor(gradient, 1.0), last)
    graph = builder.build()
    problem = StepProblem(
        graph, topology_of([0], False), np.ones((6, 1)), np.zeros((graph.num_tensors, 3)),
        np.array([99.0]),
    )  # fmt: skip
    made, _ = played(problem, [RECOMPUTE, 0, 0, 0, 0, 0])
    assert made.problem.graph.op_names == (
        "f0", "f1", "loss", "gradient", "f0/again", "square", "backward",
    )  # fmt: skip


@pytest.mark.parametrize("medium", ["PCIe 4.0 x16", "Ring"])
def test_the_link_to_the_host_is_that_of_the_topology(medium: str) -> None:
    link = LinkSpec(medium, 31.5 * GB, 1e-6)
    alone = single_server("one", PcieServer("T4", 2, link, nics=0))
    assert host_link(alone, 0) == (link if medium.startswith("PCIe") else DEFAULT_LINK)
    brick = LinkSpec("NVLink", 50 * GB, 1e-6)
    island = single_server("two", NvlinkServer("V100-32GB", 2, 2, brick, link, nics=0))
    assert host_link(island, 1) == (link if medium.startswith("PCIe") else DEFAULT_LINK)


def test_hosts_share_the_devices_ports_and_no_others() -> None:
    link = LinkSpec("PCIe 3.0 x16", 15.75 * GB, 2e-6)
    pair, single = PcieServer("T4", 2, link), PcieServer("T4", 1, link)
    topology = mixed("three", [pair, single], LinkSpec("Ethernet", 3e9, 1e-6))
    both = with_hosts(topology, np.array([1, 2]))
    assert both.memory_bytes[3:].tolist() == topology.memory_bytes[[1, 2]].tolist()
    assert both.send_port[1, 3] == topology.send_port[1, 0]
    assert both.receive_port[3, 1] == topology.receive_port[0, 1]
    assert both.receive_port[1, 3] >= topology.num_ports  # the host's own
    # alone in its server: out and in do not wait for each other, nor for the network
    ports = {both.send_port[2, 4], both.send_port[4, 2]}
    ports |= {both.receive_port[2, 4], both.receive_port[4, 2]}
    assert len(ports) == 4
    assert min(ports) >= topology.num_ports
    chip = torus("ring", "A100-80GB", [2], link, link)
    assert with_hosts(chip, np.array([0])).num_devices == 3


@given(data=st.data())
def test_random_steps_keep_their_rules(data: st.DataObject) -> None:
    problem, device, order = data.draw(placed_problems())
    n = problem.graph.num_operators
    forward = problem.graph.phase == Phase.FORWARD
    drawn = data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=n, max_size=n))
    residence = np.where(forward, drawn, 0)
    made = rematerialised(problem, device, order, residence)
    graph = made.problem.graph
    slow = play_in_order(made.problem, made.device, made.order)
    timeline = StepSimulator(made.problem).run(made.device, made.order)
    assert_allclose(timeline.op_finish, slow.finish)
    assert_allclose(timeline.peak_memory, peak_memory(made.problem, made.device, slow))
    assert np.isfinite(ReadySimulator(made.problem).step_time(made.device, made.order))
    # nothing is lost: every operator still reads each of its inputs, or the same bytes again
    first = made.position
    assert_array_equal(made.of[first], np.arange(n))
    for u, c, t in problem.graph.edges:
        sources = graph.edges[graph.edges[:, 1] == first[c]]
        kept = made.of[sources[:, 0]] == u
        assert problem.graph.tensor_bytes[t] in graph.tensor_bytes[sources[kept, 2]]
    if not residence.any():
        plain = StepSimulator(problem).run(device, order)
        assert_array_equal(plain.op_start, timeline.op_start[first])
        assert_array_equal(plain.peak_memory, timeline.peak_memory)
