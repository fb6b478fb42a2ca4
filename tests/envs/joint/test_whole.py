"""Whole placements whose pipes have levels: prices by the slow path, traffic by a loop, rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.joint.generator import JointProblem
from envs.joint.piped import OCTAVE, TOP, PipedGroups, off_diagonal
from envs.placement.episodes import ORDER_CLASSES, PlanSource
from envs.placement.whole import WholeLayout
from envs.step.allocated import allocated_problem
from envs.step.fusion import fuse, fused_problem
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.joint_steps import diamond_step, unplaced_steps
from tests.strength import examples

LAYOUT = WholeLayout(groups=8, devices=8, edges=40, classes=32)
STEPS = unplaced_steps(operators=(3, 8), servers=(2, 3))


def drawn(problem: StepProblem) -> JointProblem:
    fused = fused_problem(problem, fuse(problem, 8))
    return JointProblem(0, fused, PlanSource(LAYOUT, sweeps=1, unfit=1.0))


def a_plan(joint: JointProblem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and levels."""
    random, servers = np.random.default_rng(seed), joint.piped.network.num_servers
    device = random.integers(joint.facts.num_devices, size=joint.facts.num_groups)
    tokens = joint.tokens.row(device, int(random.integers(len(ORDER_CLASSES))))
    return tokens, random.integers(-TOP, TOP + 1, size=(servers, servers - 1))


@given(STEPS, st.integers(0, 1000))
@examples(40)
def test_a_reward_is_a_simulation_of_the_step_through_its_pipes(
    problem: StepProblem, seed: int
) -> None:
    joint = drawn(problem)
    tokens, level = a_plan(joint, seed)
    placed = joint.placed(tokens)
    for levels, judged in ((level * 0, placed.judged), (level, joint.shared(placed, level))):
        allocation = joint.piped.allocation(levels, placed.traffic.used)
        fused = fused_problem(problem, fuse(problem, 8))
        step = allocated_problem(fused, allocation)
        pieces = joint.fusion.expand_pieces(placed.device)
        pricer = Pricer(step)
        rule = list(ORDER_CLASSES.values())[placed.order]
        price = pricer.price(pieces, (rule,) if rule in pricer.rules else ())
        played = StepSimulator(step).step_time(pieces, price.order)
        assert judged.ratio * joint.reference_s == pytest.approx(played, rel=1e-9)
        if price.excess == 0.0 and 0.0 < judged.ratio < 20.0:
            assert judged.reward == pytest.approx(-np.log(played / joint.reference_s))


@given(STEPS, st.integers(0, 1000))
@examples(40)
def test_traffic_is_that_of_the_transfers(problem: StepProblem, seed: int) -> None:
    joint = drawn(problem)
    tokens, _ = a_plan(joint, seed)
    placed = joint.placed(tokens)
    graph, topology = joint.piped.problem.graph, joint.piped.problem.topology
    pieces, servers = joint.fusion.expand_pieces(placed.device), topology.num_servers
    sent = {
        (int(tensor), int(pieces[source]), int(pieces[reader]))
        for source, reader, tensor in graph.edges
        if topology.server[pieces[source]] != topology.server[pieces[reader]]
    }
    transfers = np.zeros((servers, servers))
    for tensor, here, there in sent:
        if joint.piped.problem.transfer_seconds[tensor, topology.link_class[here, there]] > 0.0:
            transfers[topology.server[here], topology.server[there]] += 1
    assert (placed.traffic.used == (transfers > 0)).all()
    np.testing.assert_allclose(
        placed.traffic.pipes[..., 4], off_diagonal(transfers) / max(transfers.max(), 1), rtol=1e-6
    )
    assert not placed.traffic.pipes[~placed.traffic.mask].any()


@given(STEPS, st.integers(0, 1000))
@examples(40)
def test_levels_share_every_link_and_waste_none(problem: StepProblem, seed: int) -> None:
    joint = drawn(problem)
    tokens, level = a_plan(joint, seed)
    used, network = joint.placed(tokens).traffic.used, joint.piped.network
    allocation = joint.piped.allocation(level, used)
    assert allocation.violations(network) == []
    assert ((allocation.pipes(network) > 0) == used).all()
    weight = np.zeros(used.shape)
    weight[~np.eye(len(used), dtype=bool)] = 2.0 ** (level.ravel() / OCTAVE)
    normal = allocation.rate / weight.ravel()[network.channel_pipe]
    load = network.incidence @ allocation.rate
    full = load >= network.link_capacity * (1 - 1e-9)
    for channel in np.flatnonzero(used.ravel()[network.channel_pipe]):
        links = [link for link in network.links_of(channel) if full[link]]
        assert links, "a pipe in use could have more"
        rivals = [normal[network.incidence[link] > 0].max() for link in links]
        assert normal[channel] >= min(rivals) * (1 - 1e-9)


def test_operators_and_their_groups_have_the_same_pipes() -> None:
    problem = diamond_step(1e9)
    fusion = fuse(problem, 3)
    piped, device = PipedGroups(problem, fusion), np.array([0, 1, 2])
    used = piped.traffic(device).used
    allocation = piped.allocation(np.arange(6).reshape(3, 2), used)
    step = fused_problem(allocated_problem(problem, allocation), fusion)
    expected = Pricer(step).price(fusion.expand_pieces(device))
    assert piped.price(device, allocation).seconds == pytest.approx(expected.seconds, rel=1e-9)
