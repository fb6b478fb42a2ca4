from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from envs.errors import InputError
from models.step.policy import (
    GraphBatch,
    PlacementPolicy,
    scatter_edges,
    standing_on,
    sum_edge_features,
)
from tests.models.random_observations import WIDTHS, padded, policy_config, random_observation
from tests.strength import examples

Observation = dict[str, NDArray[Any]]
graphs = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 20), st.integers(1, 6)
)


@pytest.fixture(scope="module")
def policy() -> PlacementPolicy:
    return make_policy()


def make_policy(**chosen: Any) -> PlacementPolicy:
    torch.manual_seed(0)
    return PlacementPolicy(
        policy_config(**{"operator_rounds": 2, "initial_scale": 1.0, **chosen}), WIDTHS
    )


def outputs(policy: PlacementPolicy, *observations: Observation) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        logits, value = policy(GraphBatch.stack(observations))
    return logits, value


@examples(30)
@given(graphs)
def test_any_sizes_give_one_finite_logit_per_device(
    policy: PlacementPolicy, drawn: tuple[int, int, int, int]
) -> None:
    seed, *sizes = drawn
    observation = random_observation(np.random.default_rng(seed), *sizes)
    logits, value = outputs(policy, observation)
    assert logits.shape == (1, sizes[2])
    assert value.shape == (1,)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(value).all()


@examples(30)
@given(graphs)
def test_masked_devices_have_probability_zero(
    policy: PlacementPolicy, drawn: tuple[int, int, int, int]
) -> None:
    seed, *sizes = drawn
    observation = random_observation(np.random.default_rng(seed), *sizes)
    probability = outputs(policy, observation)[0].softmax(-1)[0].numpy()
    allowed = observation["action_mask"] == 1
    assert (probability[~allowed] == 0.0).all()
    assert probability[allowed].sum() == pytest.approx(1.0, abs=1e-5)


@examples(30)
@given(graphs, st.integers(0, 9), st.integers(0, 9))
def test_padding_changes_nothing(
    policy: PlacementPolicy, drawn: tuple[int, int, int, int], more_nodes: int, more_edges: int
) -> None:
    seed, nodes, edges, devices = drawn
    observation = random_observation(np.random.default_rng(seed), nodes, edges, devices)
    wider = padded(observation, nodes + more_nodes, edges + more_edges)
    for plain, with_padding in zip(
        outputs(policy, observation), outputs(policy, wider), strict=True
    ):
        torch.testing.assert_close(plain, with_padding, atol=1e-5, rtol=1e-5)


def test_renaming_devices_permutes_the_logits(policy: PlacementPolicy) -> None:
    rng = np.random.default_rng(1)
    observation = random_observation(rng, 9, 14, 5)
    order = rng.permutation(5)
    renamed = dict(observation)
    for name in ("device_features", "candidate_features", "action_mask"):
        renamed[name] = observation[name][order]
    renamed["node_device_features"] = observation["node_device_features"][:, order]
    renamed["link_features"] = observation["link_features"][order][:, order]
    renamed["placement"] = np.argsort(order)[observation["placement"]]
    logits, value = outputs(policy, observation)
    again, same = outputs(policy, renamed)
    torch.testing.assert_close(again, logits[:, order], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same, value, atol=1e-5, rtol=1e-5)


def test_renaming_nodes_changes_nothing(policy: PlacementPolicy) -> None:
    rng = np.random.default_rng(2)
    observation = random_observation(rng, 9, 14, 3)
    order = rng.permutation(9)
    renamed = dict(observation)
    for name in ("node_features", "node_device_features", "placement", "placed"):
        renamed[name] = observation[name][order]
    renamed["edge_index"] = np.argsort(order)[observation["edge_index"]]
    renamed["current"] = np.argsort(order)[observation["current"]]
    torch.testing.assert_close(
        outputs(policy, renamed), outputs(policy, observation), atol=1e-5, rtol=1e-5
    )


def test_a_distant_operator_is_felt_through_the_edges(policy: PlacementPolicy) -> None:
    chain = random_observation(np.random.default_rng(3), 4, 3, 2)
    chain["edge_index"] = np.array([[0, 1, 2], [1, 2, 3]])
    chain["current"] = np.array([3])
    chain["action_mask"][:] = 1
    moved = {**chain, "node_features": chain["node_features"].copy()}
    moved["node_features"][0] += 1.0
    apart = {**chain, "edge_mask": np.array([1, 1, 0], np.int8)}
    moved_apart = {**moved, "edge_mask": apart["edge_mask"]}

    def difference(first: Observation, second: Observation) -> float:
        # Device pooling carries a little everywhere: compare with and without the last edge.
        return float((outputs(policy, first)[0] - outputs(policy, second)[0]).abs().max())

    assert difference(chain, moved) != pytest.approx(difference(apart, moved_apart), rel=1e-3)


def test_the_start_is_nearly_uniform_over_allowed_devices() -> None:
    observation = random_observation(np.random.default_rng(4), 9, 14, 5)
    observation["action_mask"][:] = 1
    probability = outputs(make_policy(initial_scale=0.01), observation)[0].softmax(-1)
    assert probability.max() - probability.min() < 0.01


def test_a_candidate_weight_starts_the_policy_at_the_rule_it_expresses() -> None:
    observation = random_observation(np.random.default_rng(5), 9, 14, 4)
    observation["action_mask"][:] = 1
    rule = make_policy(initial_scale=0.0, initial_candidate_weights={2: -1.5, 0: 1.0})
    features = observation["candidate_features"]
    expected = torch.from_numpy(features[:, 0] - 1.5 * features[:, 2])
    torch.testing.assert_close(outputs(rule, observation)[0][0], expected)


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        ({"initial_candidate_weights": {6: 1.0}}, "initial_candidate_weights"),
        ({"hidden": 1}, "hidden"),
        ({"operator_rounds": -1}, "operator_rounds"),
    ],
)
def test_senseless_settings_are_named(chosen: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"field '{field}'"):
        make_policy(**chosen)


def test_every_parameter_receives_a_gradient(policy: PlacementPolicy) -> None:
    rng = np.random.default_rng(6)
    observations = [random_observation(rng, 9, 14, 5) for _ in range(8)]
    logits, value = policy(GraphBatch.stack(observations))
    (logits.log_softmax(-1)[:, 0].mean() + value.sum()).backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None]
    policy.zero_grad()
    assert without == []


seeds = st.integers(0, 2**32 - 1)


@examples(25)
@given(seeds, st.integers(1, 7), st.integers(1, 12))
def test_adjacency_is_the_mean_over_a_nodes_edges(seed: int, nodes: int, edges: int) -> None:
    rng = np.random.default_rng(seed)
    observation = padded(random_observation(rng, nodes, edges, 2), nodes + 2, edges + 3)
    weight = torch.from_numpy(rng.uniform(size=(1, edges + 3, 2)).astype(np.float32))
    into, back = (a[0].numpy() for a in scatter_edges(GraphBatch.stack([observation]), weight))
    expected_into, expected_back = np.zeros((2, nodes + 2, nodes + 2))
    pairs = [(int(u), int(v)) for u, v in observation["edge_index"].T[:edges]]
    for e, (u, v) in enumerate(pairs):
        expected_into[v, u] += float(weight[0, e, 0]) / sum(v == other for _, other in pairs)
        expected_back[u, v] += float(weight[0, e, 1]) / sum(u == other for other, _ in pairs)
    np.testing.assert_allclose(into, expected_into, atol=1e-6)
    np.testing.assert_allclose(back, expected_back, atol=1e-6)


def test_edge_features_are_summed_at_both_ends() -> None:
    observation = random_observation(np.random.default_rng(0), 3, 2, 2)
    observation["edge_index"] = np.array([[0, 1], [2, 2]])
    observation["edge_features"] = np.array([[1.0, 2.0], [3.0, 0.5]], np.float32)
    sums = sum_edge_features(GraphBatch.stack([observation]))[0]
    np.testing.assert_allclose(np.expm1(sums[2].numpy()), [4.0, 2.5, 2.0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(np.expm1(sums[0].numpy()), [0, 0, 0, 1.0, 2.0, 1.0], rtol=1e-6)


def test_padded_nodes_stand_nowhere() -> None:
    observation = padded(random_observation(np.random.default_rng(0), 3, 2, 2), 5, 2)
    on = standing_on(GraphBatch.stack([observation]))[0]
    assert on.sum(dim=1).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert on[:3].argmax(dim=1).tolist() == observation["placement"][:3].tolist()
