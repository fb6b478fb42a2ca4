"""Pipes whose rates change with the phases: hand-worked cases, the static oracle, the reference."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from random_steps import placed_problems, topology_of
from reference_phased import play_phased
from reference_step import peak_memory

from envs.graphs.builder import GraphBuilder
from envs.step.allocated import allocated_problem
from envs.step.phased import PhasedSimulator
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.refusal import refusal
from tests.strength import examples

SHARES = st.sampled_from([0.25, 0.5, 0.75, 1.0])


def with_latency(problem: StepProblem, latency: float) -> StepProblem:
    """The problem with `latency` seconds before every transfer that takes time."""
    late = replace(problem.topology, class_latency=np.array([0.0, 0.0, latency]))
    seconds = problem.transfer_seconds.copy()
    seconds[:, 2] += np.where(seconds[:, 2] > 0, latency, 0.0)
    return replace(problem, topology=late, transfer_seconds=seconds)


@st.composite
def phased_problems(draw):
    """(problem, device, order, begins, rates (P, C))."""
    problem, device, order = draw(placed_problems())
    problem = with_latency(problem, draw(st.sampled_from([0.0, 0.375])))
    cuts = draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=3))
    begins = np.array([0, *sorted(cut for cut in cuts if cut < len(order))])
    network = problem.topology.network
    used = network.link_capacity[network.link_capacity > 0]  # some ports serve no pair
    most = used.min(initial=1.0) / max(1, network.num_channels)
    c = network.num_channels
    shares = draw(st.lists(SHARES, min_size=len(begins) * c, max_size=len(begins) * c))
    return problem, device, order, begins, most * np.array(shares).reshape(len(begins), c)


def pipes_of(problem, rates):
    network = problem.topology.network
    return np.array([BandwidthAllocation(rate).pipes(network) for rate in rates])


def two_servers(edges, seconds, move=8.0) -> StepProblem:
    """Operators of `seconds`; a tensor of `move` bytes, 1 byte/s between the two servers."""
    builder = GraphBuilder("hand")
    for op in range(len(seconds)):
        builder.add_operator(f"op{op}")
    for producer, consumer in edges:
        builder.add_use(builder.add_tensor(producer, move), consumer)
    graph = builder.build()
    topology = topology_of([0, 1], nic_per_server=True)
    moves = np.tile([0.0, move / 2, move], (graph.num_tensors, 1))
    op_seconds = np.repeat(np.array(seconds, dtype=float)[:, None], 2, axis=1)
    return StepProblem(graph, topology, op_seconds, moves, topology.memory_bytes)


def rates(forth: float, back: float = 1.0):
    return np.array([[0.0, forth], [back, 0.0]])


def test_a_transfer_under_way_goes_on_at_the_rate_of_the_new_phase():
    """Sent from 1 s; 4 s at 0.5 bytes/s until operator 1 ends, then 6 bytes at 1 byte/s."""
    problem = two_servers([(0, 2)], [1, 4, 1])
    step = PhasedSimulator(problem).begin(
        np.array([0, 0, 1]), np.arange(3), begins=np.array([0, 2])
    )
    assert step.traffic[:, 0, 1].tolist() == [8, 0]
    assert step.advance(rates(0.5)) == 5
    assert (step.phase, step.now, step.backlog[0, 1]) == (1, 5, 6)
    assert step.advance(rates(1.0)) == 7
    assert step.done
    assert step.timeline().transfer_finish.tolist() == [11]


def test_the_backlog_counts_what_every_phase_sent():
    """8 bytes from 1 s: 1 second at 0.5 bytes/s, 2 at 1; half a byte of 5.5 in the third phase."""
    problem = two_servers([(0, 4)], [1, 1, 2, 1, 1])
    where, order = np.array([0, 0, 0, 0, 1]), np.arange(5)
    step = PhasedSimulator(problem).begin(where, order, np.array([0, 2, 3, 4]))
    backlogs = []
    for forth in (0.5, 1.0, 0.5):
        step.advance(rates(forth))
        backlogs.append(float(step.backlog[0, 1]))
    assert backlogs == [7.5, 5.5, 5.0]


def test_a_pipe_that_opens_in_the_second_phase_delivers_then():
    problem = two_servers([(0, 2)], [1, 4, 1])
    play = PhasedSimulator(problem).run
    where, order = np.array([0, 0, 1]), np.arange(3)
    assert play(where, order, np.array([0, 2]), np.array([rates(0), rates(1)])).step_time == 14
    step = PhasedSimulator(problem).begin(where, order, np.array([0, 2]))
    step.advance(rates(1))
    assert step.advance(rates(0)) == np.inf
    assert step.now == np.inf


def test_what_waits_for_a_phase_that_never_begins_never_ends():
    """Operator 1 waits for a closed pipe, so that phases 2 and 3 never begin; 3 sends from 1 s."""
    problem = two_servers([(0, 1), (3, 4)], [1, 1, 1, 1, 1])
    topology = topology_of([0, 0, 1], nic_per_server=True)
    problem = replace(problem, topology=topology, op_seconds=np.ones((5, 3)))
    step = PhasedSimulator(problem).begin(
        np.array([2, 0, 0, 1, 2]), np.arange(5), np.array([0, 1, 2, 3])
    )
    step.advance(rates(1, 0))
    step.advance(rates(0, 0))
    assert step.now == np.inf
    step.advance(rates(1, 0))
    step.advance(rates(1, 0))
    assert step.timeline().op_finish.tolist() == [1, np.inf, np.inf, 1, np.inf]
    assert step.now == np.inf


def test_what_runs_ahead_of_its_phase_is_sent_at_the_former_rate():
    """Operator 1 of phase 1 ends at 2 s, on another device than operator 0, which ends at 4 s."""
    problem = two_servers([(1, 2)], [4, 2, 1])
    step = PhasedSimulator(problem).begin(np.array([1, 0, 1]), np.arange(3), np.array([0, 1]))
    assert step.traffic[:, 0, 1].tolist() == [0, 8]
    step.advance(rates(1.0))
    assert (step.now, step.pending[0, 1]) == (4, 8)
    step.advance(rates(0.5))
    assert step.timeline().transfer_finish.tolist() == [4 + 6 / 0.5]


def test_steps_under_way_are_copied_and_pickled():
    problem = two_servers([(0, 2)], [1, 4, 1])
    step = PhasedSimulator(problem).begin(np.array([0, 0, 1]), np.arange(3), np.array([0, 2]))
    step.advance(rates(0.5))
    twins = [step.copy(), copy.deepcopy(step), pickle.loads(pickle.dumps(step))]
    step.advance(rates(1.0))
    for twin in twins:
        assert twin.phase == 1
        twin.advance(rates(0.25))
        assert twin.now > step.now
    assert step.now == 12


def test_wrong_input_is_named():
    problem = two_servers([(0, 2)], [1, 4, 1])
    simulator = PhasedSimulator(problem)
    where, order = np.array([0, 0, 1]), np.arange(3)
    for begins in ([1], [0, 2, 2], [0, 3], []):
        with refusal("begins"):
            simulator.begin(where, order, np.array(begins, dtype=np.int64))
    step = simulator.begin(where, order)
    for wrong in (np.ones((3, 3)), rates(-1), rates(np.nan)):
        with refusal("pipes"):
            step.advance(wrong)
    with refusal("remain"):
        step.timeline()
    step.advance(rates(1))
    with refusal("played"):
        step.advance(rates(1))
    tabulated = replace(problem.topology, class_bandwidth=np.full(3, np.inf))
    with refusal("between"):
        PhasedSimulator(replace(problem, topology=tabulated))


@examples(150)
@given(phased_problems())
def test_one_phase_is_the_static_allocation(case):
    problem, device, order, _, given_rates = case
    allocation = BandwidthAllocation(given_rates[0])
    expected = StepSimulator(allocated_problem(problem, allocation)).run(device, order)
    found = PhasedSimulator(problem).run(
        device, order, np.zeros(1, dtype=np.int64), pipes_of(problem, given_rates[:1])
    )
    for column in ("op_start", "op_finish", "transfer_start", "transfer_finish"):
        assert_allclose(
            getattr(found, column), getattr(expected, column), rtol=1e-12, err_msg=column
        )
    for column in ("transfer_tensor", "transfer_source", "transfer_destination", "peak_memory"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist()


@examples(60)
@given(phased_problems())
def test_equal_rates_make_phases_invisible(case):
    problem, device, order, begins, given_rates = case
    same = np.repeat(given_rates[:1], len(begins), axis=0)
    allocation = BandwidthAllocation(given_rates[0])
    expected = StepSimulator(allocated_problem(problem, allocation)).run(device, order)
    found = PhasedSimulator(problem).run(device, order, begins, pipes_of(problem, same))
    assert_allclose(found.op_finish, expected.op_finish, rtol=1e-12)
    assert_allclose(found.transfer_finish, expected.transfer_finish, rtol=1e-12)


@examples(150)
@given(phased_problems())
def test_agrees_with_the_reference(case):
    problem, device, order, begins, given_rates = case
    pipes = pipes_of(problem, given_rates)
    expected, begun, behind = play_phased(problem, device, order, begins, pipes)
    step = PhasedSimulator(problem).begin(device, order, begins)
    times, sent = [], []
    for p, rate in enumerate(pipes):
        times.append(step.now)
        assert_allclose(step.backlog, behind[p], rtol=1e-9, atol=1e-9)
        step.advance(rate)
        sent.append(step.traffic[: p + 1].sum(axis=0) - step.backlog)
    assert_allclose(times, begun, rtol=1e-9, atol=1e-9)
    timeline = step.timeline()
    assert_allclose(timeline.op_start, expected.start, rtol=1e-9, atol=1e-9)
    assert_allclose(timeline.op_finish, expected.finish, rtol=1e-9, atol=1e-9)
    log = np.array([entry[3:] for entry in expected.transfers]).reshape(-1, 2)
    assert_allclose(timeline.transfer_start, log[:, 0], rtol=1e-9, atol=1e-9)
    assert_allclose(timeline.transfer_finish, log[:, 1], rtol=1e-9, atol=1e-9)
    assert_allclose(timeline.peak_memory, peak_memory(problem, device, expected))
    assert (np.diff([np.zeros_like(sent[0]), *sent], axis=0) >= -1e-9).all()
    assert_allclose(sent[-1], step.traffic.sum(axis=0), atol=1e-9)
