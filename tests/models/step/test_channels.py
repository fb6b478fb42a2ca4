from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from random_channels import (
    LEVELS,
    Observation,
    channel_space,
    padded_channels,
    random_channels,
)
from torch import Tensor

from models.step.channels import ChannelPolicy, ChannelPolicyConfig
from tests.refusal import refusal
from tests.strength import SEEDS, examples

sizes = st.tuples(SEEDS, st.integers(1, 8), st.integers(1, 6), st.integers(1, 12))


def make_policy(levels: int | None, **chosen: Any) -> ChannelPolicy:
    torch.manual_seed(0)
    values = {"hidden": 16, "rounds": 2, "initial_scale": 1.0, "initial_deviation": 0.5}
    actions: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (3,), np.float32)
    if levels is not None:
        actions = spaces.MultiDiscrete([levels] * 3)
    return ChannelPolicyConfig(**{**values, **chosen}).policy(
        channel_space(3, 2, 4, levels), actions
    )


def outputs(policy: ChannelPolicy, *observations: Observation) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        return policy.decide(
            {
                name: torch.from_numpy(np.stack([seen[name] for seen in observations]))
                for name in observations[0]
            }
        )


@examples(30)
@given(sizes)
def test_any_sizes_give_finite_actions_and_masked_levels_nothing(
    drawn: tuple[int, int, int, int],
) -> None:
    seed, *shape = drawn
    seen = random_channels(default_rng(seed), *shape)
    logits, value = outputs(make_policy(LEVELS), seen)
    assert logits.shape == (1, shape[0] * LEVELS)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(value).all()
    probability = logits.view(shape[0], LEVELS).softmax(-1).numpy()
    assert (probability[seen["action_mask"] == 0] == 0.0).all()
    inputs, _ = outputs(make_policy(None), seen)
    assert inputs.shape == (1, 2 * shape[0])
    mean, log_deviation = inputs[0].chunk(2)
    assert (mean.abs() <= 1.0).all()
    idle = torch.from_numpy(seen["active"] == 0)
    assert (mean[idle] == 0.0).all()
    assert (log_deviation[idle] == 0.0).all()


@examples(30)
@given(sizes, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_padding_changes_nothing(
    drawn: tuple[int, int, int, int], channels: int, links: int, incidences: int
) -> None:
    seed, *shape = drawn
    seen = random_channels(default_rng(seed), *shape)
    wider = padded_channels(seen, channels, links, incidences)
    policy = make_policy(LEVELS)
    logits, value = outputs(policy, seen)
    with_padding, same = outputs(policy, wider)
    torch.testing.assert_close(with_padding[:, : logits.shape[1]], logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same, value, atol=1e-5, rtol=1e-5)


def test_renaming_channels_and_links_permutes_the_means() -> None:
    rng = default_rng(1)
    seen = random_channels(rng, 6, 4, 11)
    order, links = rng.permutation(6), rng.permutation(4)
    renamed = dict(seen)
    for name in ("channel_features", "channel_mask", "active", "action_mask"):
        renamed[name] = seen[name][order]
    renamed["link_features"] = seen["link_features"][links]
    renamed["incidence"] = np.stack(
        [np.argsort(order)[seen["incidence"][0]], np.argsort(links)[seen["incidence"][1]]]
    )
    policy = make_policy(None)
    inputs, value = outputs(policy, seen)
    again, same = outputs(policy, renamed)
    torch.testing.assert_close(again[0, :6], inputs[0, order], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same, value, atol=1e-5, rtol=1e-5)


def test_a_channel_feels_those_it_shares_a_link_with() -> None:
    seen = random_channels(default_rng(2), 3, 2, 1)
    seen["active"][:] = 1
    seen["incidence"] = np.array([[0, 1, 2], [0, 0, 1]])
    seen["incidence_mask"] = np.ones(3, np.int8)
    other = {**seen, "channel_features": seen["channel_features"].copy()}
    other["channel_features"][1] += 1.0
    policy = make_policy(None, rounds=1)
    change = (outputs(policy, other)[0] - outputs(policy, seen)[0])[0, :3].abs()
    assert change[0] > 1e-4
    assert change[2] == 0.0


def test_the_start_is_near_equal_shares_with_the_given_width() -> None:
    seen = random_channels(default_rng(3), 5, 4, 9)
    seen["active"][:] = 1
    inputs, _ = outputs(make_policy(None, initial_scale=0.01, initial_deviation=0.2), seen)
    np.testing.assert_allclose(inputs[0, :5], 0.0, atol=0.1)
    np.testing.assert_allclose(inputs[0, 5:], np.log(0.2), rtol=1e-5)
    seen["action_mask"][:] = 1
    logits, _ = outputs(make_policy(LEVELS, initial_scale=0.0, initial_deviation=0.2), seen)
    assert logits.view(5, LEVELS).argmax(-1).tolist() == [LEVELS // 2] * 5


def test_every_parameter_receives_a_gradient() -> None:
    rng = default_rng(4)
    for levels in (LEVELS, None):
        policy = make_policy(levels)
        seen = [random_channels(rng, 6, 4, 9) for _ in range(8)]
        batch = {k: torch.from_numpy(np.stack([one[k] for one in seen])) for k in seen[0]}
        actions, value = policy.decide(batch)
        (actions.clamp(min=-50).square().sum() + value.sum()).backward()
        assert [name for name, p in policy.named_parameters() if p.grad is None] == []


@pytest.mark.slow
def test_it_exports_with_any_sizes() -> None:
    class Plain(torch.nn.Module):
        def __init__(self, policy: ChannelPolicy, names: list[str]) -> None:
            super().__init__()
            self.policy, self.names = policy, names

        def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
            named = zip(self.names, arrays, strict=True)
            return self.policy.decide({name: array.unsqueeze(0) for name, array in named})

    rng = default_rng(5)
    seen, larger = random_channels(rng, 5, 3, 7), random_channels(rng, 9, 6, 20)
    names = [name for name in seen if name != "channel_ends"]
    policy = make_policy(LEVELS).eval()
    c, k, i = (torch.export.Dim(letter, min=2) for letter in "CKI")
    dims: dict[str, dict[int, Any]] = {
        "channel_features": {0: c}, "channel_mask": {0: c}, "active": {0: c},
        "action_mask": {0: c}, "link_features": {0: k}, "link_mask": {0: k},
        "incidence": {1: i}, "incidence_mask": {0: i}, "phase_features": {},
    }  # fmt: skip
    program = torch.export.export(
        Plain(policy, names),
        tuple(torch.from_numpy(seen[name]) for name in names),
        dynamic_shapes=(tuple(dims[name] for name in names),),
    ).module()
    for one in (seen, larger):
        logits, value = program(*(torch.from_numpy(one[name]) for name in names))
        expected, worth = outputs(policy, one)
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(value, worth, atol=1e-6, rtol=1e-6)


def test_other_agents_are_refused() -> None:
    config = ChannelPolicyConfig(8, 1, 0.1, 0.1)
    with refusal("chooses levels or weights"):
        config.policy(channel_space(3, 2, 4, None), spaces.Discrete(3))
    with refusal("different numbers of levels"):
        config.policy(channel_space(3, 2, 4, 2), spaces.MultiDiscrete([2, 3, 2]))
    with refusal("field 'channel_features'"):
        config.policy(spaces.Dict({"x": spaces.Box(0, 1, (2,))}), spaces.MultiDiscrete([2, 2]))
