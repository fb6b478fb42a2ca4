"""The rules: closed forms for one sender, many channels, pipes without traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from agents.bandwidth.piped_step import PipedStep
from agents.bandwidth.rules import (
    ProportionalShares,
    RuleOfShares,
    SquareRootShares,
    UniformShares,
    shared_by_weight,
)
from envs.step.allocated import uniform_allocation
from tests.agents.bandwidth.placed_steps import (
    cluster,
    concurrent_sends,
    serial_sends,
    with_capacities,
)
from tests.asking import allocated
from tests.envs.topologies import topology_named

VOLUMES = [1.0, 4.0, 9.0]


@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize(
    ("rule", "made", "seconds", "share"),
    [
        (SquareRootShares(), serial_sends, 36.0, np.array([1, 2, 3]) / 6),
        (ProportionalShares(), concurrent_sends, 14.0, np.array(VOLUMES) / 14),
    ],
)
def test_sends_take_what_their_rule_is_best_for(
    rule: RuleOfShares, made: Any, seconds: float, share: np.ndarray, planes: int
) -> None:
    problem, plan = made(VOLUMES, cluster(4, planes_=planes, bandwidth=2.0))
    found = allocated(rule, problem, plan, 1.0)
    assert found.value == pytest.approx(seconds / (2.0 * planes), rel=1e-9)
    pipes = found.solution.allocation.pipes(problem.topology.network)
    assert_allclose(pipes[0, 1:], planes * 2.0 * share, rtol=1e-9)


def test_uniform_shares_look_at_nothing() -> None:
    problem, plan = concurrent_sends(VOLUMES, cluster(4))
    found = allocated(UniformShares(), problem, plan, 1.0)
    assert found.value == pytest.approx(3 * 9.0)
    assert found.solution.allocation is not None
    expected = uniform_allocation(problem.topology.network).rate
    assert_array_equal(found.solution.allocation.rate, expected)


@pytest.mark.parametrize("rule", [ProportionalShares(), SquareRootShares()])
def test_pipes_without_traffic_get_nothing(rule: RuleOfShares) -> None:
    problem, plan = concurrent_sends([1.0, 2.0], cluster(4, planes_=2))
    pipes = rule.shares(PipedStep(problem, plan)).pipes(problem.topology.network)
    assert (np.flatnonzero(pipes) == [1, 2]).all()
    assert pipes.sum() == pytest.approx(2.0)  # both links of server 0 are full


def test_a_pipe_weighs_on_its_channels_by_their_capacities() -> None:
    topology = with_capacities(cluster(3, planes_=2), [1.0])
    network = topology.network
    slow = np.array(["plane1" in name for name in network.link_names])
    topology = with_capacities(topology, list(np.where(slow, 0.25, 1.0)))
    used = np.zeros((3, 3), dtype=np.int64)
    used[0, 1:] = 1
    weight = np.zeros((3, 3))
    weight[0, 1:] = 1.0, 3.0
    network = topology.network
    found = shared_by_weight(network, weight.ravel(), used.ravel())
    assert found.violations(network) == []
    assert_allclose(found.pipes(network)[0], [0.0, 1.25 / 4, 1.25 * 3 / 4])
    assert sorted(set(network.channel_capacity)) == [0.25, 1.0]


@pytest.mark.parametrize("name", ["leaf_spine", "torus", "fat_tree"])
def test_a_pipe_does_not_weigh_more_for_having_more_channels(name: str) -> None:
    network = topology_named(name).network
    used = np.zeros((network.num_servers, network.num_servers), dtype=np.int64)
    used[0, 1:] = 1
    channels = np.bincount(network.channel_destination[network.channel_source == 0])[1:]
    assert channels.min() < channels.max()
    pipes = shared_by_weight(network, used.ravel().astype(float), used.ravel()).pipes(network)
    assert_allclose(pipes[0, 1:], pipes[0, 1], rtol=1e-9)


def test_a_pipe_of_empty_messages_gets_a_rate() -> None:
    used, weight = np.ones((3, 3), dtype=np.int64), np.zeros((3, 3))
    np.fill_diagonal(used, 0)
    weight[0, 1] = 5.0
    network = cluster(3).network
    pipes = shared_by_weight(network, weight.ravel(), used.ravel()).pipes(network)
    assert 0 < pipes[0, 2] < 1e-5
    assert pipes[0, 1] == pytest.approx(1.0, rel=1e-5)


def test_what_cannot_be_placed_so_is_infeasible_under_every_rate() -> None:
    problem, plan = concurrent_sends(VOLUMES, cluster(4))
    problem.op_seconds[0, 0] = np.inf
    found = allocated(ProportionalShares(), problem, plan, 1.0)
    assert (found.solution, found.status, found.bound) == (None, "infeasible", np.inf)
    assert "cannot run" in found.reason
