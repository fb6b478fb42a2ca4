"""The placement policy of whole problems: what it draws it can appraise, whatever is beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from envs.placement import sweeps
from envs.placement.whole import PlacementFacts, WholeLayout
from models.step.decoding import compose, views_of
from models.step.placer import PlacerConfig, PlacerPolicy, PresentNetwork
from tests.envs.placement.test_sweeps import drawn
from tests.refusal import refusal

SEQUENTIAL = PlacerConfig(hidden=16, rounds=2, heads=2, sweeps=("sequential",), topology=True)
KINDS = [("sequential",), ("parallel", "parallel"), ("sequential", "parallel")]


def policy_of(config: PlacerConfig) -> PlacerPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = PlacerPolicy(config)
        for parameter in made.parameters():  # far from uniform
            parameter.data.mul_(1.5)
    return made


def observed(facts: list[PlacementFacts], times: int = 1) -> dict[str, torch.Tensor]:
    layout = WholeLayout(groups=40, devices=32, edges=400, classes=64)
    rows = [layout.observe(one, k, 3 * j) for k, one in enumerate(facts) for j in range(times)]
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


@pytest.mark.parametrize("kinds", KINDS)
def test_what_is_drawn_is_appraised_the_same(kinds: tuple[str, ...]) -> None:
    policy = policy_of(replace(SEQUENTIAL, sweeps=kinds))
    facts = [drawn(seed) for seed in range(5)]
    observation = observed(facts, times=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        plans = policy.compose(observation)
    found = policy.appraise(observation, plans.actions)
    torch.testing.assert_close(found.log_probabilities, plans.log_probabilities, atol=1e-5, rtol=0)
    assert (found.known.sum(dim=1) == torch.tensor(
        [len(kinds) * one.num_groups + 1 for one in facts for _ in range(3)]
    )).all()  # fmt: skip
    assert (found.log_probabilities[~found.known] == 0.0).all()
    assert found.entropy.min() >= 0.0
    for row, one in zip(plans.actions, [one for one in facts for _ in range(3)], strict=True):
        last = row[(len(kinds) - 1) * 40 :][: one.num_groups].numpy()
        able = one.able[np.arange(one.num_groups), last]
        assert able[one.able.any(axis=1)].all()


def test_a_problem_is_decided_the_same_whoever_stands_beside_it() -> None:
    policy, facts = policy_of(SEQUENTIAL), [drawn(seed) for seed in range(4)]
    together = policy.compose(observed(facts), greedy=True)
    for number, one in enumerate(facts):
        alone = policy.compose(observed([one]), greedy=True)
        torch.testing.assert_close(
            alone.log_probabilities[0], together.log_probabilities[number], atol=1e-5, rtol=0
        )
        assert (alone.actions[0] == together.actions[number]).all()


def renamed_starts(facts: PlacementFacts, names: NDArray[np.int64]) -> NDArray[np.int64]:
    new = np.empty(len(names) + 1, np.int64)
    new[names], new[-1] = np.arange(len(names)), -1  # nowhere stays nowhere
    return new[facts.starts]


def renamed(facts: PlacementFacts, names: NDArray[np.int64]) -> PlacementFacts:
    """Device k is what was `names[k]`."""
    pair = np.ix_(names, names)
    return replace(
        facts,
        node_device_features=facts.node_device_features[:, names],
        device_features=facts.device_features[names],
        link_features=facts.link_features[pair], seconds=facts.seconds[:, names],
        able=facts.able[:, names], capacity=facts.capacity[names], begin=facts.begin[names],
        end=facts.end[names], starts=renamed_starts(facts, names),
        link_class=facts.link_class[pair], server=facts.server[names],
        send_port=facts.send_port[pair], receive_port=facts.receive_port[pair],
    )  # fmt: skip


@pytest.mark.parametrize("kinds", KINDS)
def test_devices_may_be_renamed(kinds: tuple[str, ...]) -> None:
    policy, facts = policy_of(replace(SEQUENTIAL, sweeps=kinds)), drawn(3)
    names = np.random.default_rng(0).permutation(facts.num_devices)
    network = PresentNetwork(policy)
    found = []
    for one in (facts, renamed(facts, names)):
        given, heat = sweeps.boards([one]), np.zeros(1)
        encoded, random = network.encode(views_of([one])), np.random.default_rng(0)
        problem, start = np.zeros(1, np.int64), np.full(1, 5)
        stands = one.starts[start]
        found.append(compose(network, encoded, given, problem, start, stands, kinds, heat, random))
    groups = facts.num_groups
    first, other = (one.actions[0, -1 - groups : -1] for one in found)
    np.testing.assert_allclose(found[0].chances[0][:, names], found[1].chances[0], atol=1e-4)
    assert (first == names[other]).all()


def test_an_observation_holds_the_problem() -> None:
    facts = [drawn(seed) for seed in range(3)]
    arrays = {name: array.numpy() for name, array in observed(facts).items()}
    one, other = sweeps.boards_of(arrays), sweeps.boards(facts)
    for name in one._fields:
        expected = getattr(other, name)
        np.testing.assert_allclose(getattr(one, name), expected, rtol=1e-6, err_msg=name)


def test_without_the_topology_links_change_nothing() -> None:
    facts = drawn(3)
    other = replace(facts, link_features=facts.link_features[::-1].copy())
    for topology in (True, False):
        policy = policy_of(replace(SEQUENTIAL, topology=topology))
        logs = [
            policy.compose(observed([x]), greedy=True).log_probabilities for x in (facts, other)
        ]
        assert torch.equal(*logs) == (not topology)


@pytest.mark.parametrize(
    ("chosen", "field"), [({"sweeps": ("sideways",)}, "sweeps"), ({"heads": 3}, "hidden")]
)
def test_a_config_that_makes_no_policy_is_an_error(chosen: dict[str, object], field: str) -> None:
    with refusal(f"field '{field}'"):
        replace(SEQUENTIAL, **chosen)  # type: ignore[arg-type]
