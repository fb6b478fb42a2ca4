from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from random_channels import Observation, random_pipes
from torch import Tensor

from envs.errors import InputError
from envs.joint.observation import AllocatorObservation
from models.step.allocator import LOWER, RAISE, AllocatorConfig, AllocatorPolicy, changes
from tests.strength import examples


def make_policy(**chosen: Any) -> AllocatorPolicy:
    torch.manual_seed(0)
    values = {"hidden": 16, "initial_scale": 1.0, "initial_keep": 0.0, "initial_look_ahead": 0.0}
    config = AllocatorConfig(**{**values, **chosen})
    return config.policy(AllocatorObservation(4).space, spaces.Discrete(7))


def outputs(policy: AllocatorPolicy, *observations: Observation) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        return policy.decide(
            {
                name: torch.from_numpy(np.stack([seen[name] for seen in observations]))
                for name in observations[0]
            }
        )


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_any_number_of_servers_gives_one_logit_per_change(seed: int, servers: int) -> None:
    seen = random_pipes(np.random.default_rng(seed), servers)
    logits, value = outputs(make_policy(), seen)
    assert logits.shape == (1, 1 + 2 * (servers - 1))
    assert torch.isfinite(value).all()
    probability = logits.softmax(-1)[0].numpy()
    assert (probability[seen["action_mask"] == 0] == 0.0).all()
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)


def test_renaming_servers_permutes_raises_and_lowerings() -> None:
    rng = np.random.default_rng(1)
    seen = random_pipes(rng, 5)
    seen["action_mask"][:] = 1
    order = rng.permutation(4)
    renamed = {**seen, "pipe_features": seen["pipe_features"][order]}
    logits, value = outputs(make_policy(), seen)
    again, same = outputs(make_policy(), renamed)
    index = np.concatenate([[0], 1 + order, 5 + order])
    torch.testing.assert_close(again, logits[:, index], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(same, value, atol=1e-5, rtol=1e-5)


def test_a_change_sees_its_own_look_ahead_first() -> None:
    pipes = torch.from_numpy(random_pipes(np.random.default_rng(2), 3)["pipe_features"])[None]
    rows = changes(pipes)
    assert rows.shape == (1, 4, pipes.shape[-1] + 1)
    torch.testing.assert_close(rows[:, :2, RAISE], pipes[..., RAISE])
    torch.testing.assert_close(rows[:, 2:, RAISE], pipes[..., LOWER])
    assert rows[0, :, -1].tolist() == [1.0, 1.0, -1.0, -1.0]


def test_the_start_keeps_weights_but_where_the_step_gets_shorter() -> None:
    policy = make_policy(initial_scale=0.0, initial_keep=5.0, initial_look_ahead=-4.0)
    seen = random_pipes(np.random.default_rng(3), 4)
    seen["action_mask"][:] = 1
    seen["pipe_features"][:, [RAISE, LOWER]] = 0.0
    assert outputs(policy, seen)[0].argmax().item() == 0
    seen["pipe_features"][1, LOWER] = -2.0
    assert outputs(policy, seen)[0].argmax().item() == 1 + 3 + 1


def test_every_parameter_receives_a_gradient() -> None:
    policy, rng = make_policy(), np.random.default_rng(4)
    seen = [random_pipes(rng, 4) for _ in range(8)]
    batch = {k: torch.from_numpy(np.stack([one[k] for one in seen])) for k in seen[0]}
    logits, value = policy.decide(batch)
    (logits.log_softmax(-1)[:, 0].mean() + value.sum()).backward()
    assert [name for name, p in policy.named_parameters() if p.grad is None] == []


@pytest.mark.slow
def test_it_exports_with_any_number_of_pipes() -> None:
    class Plain(torch.nn.Module):
        def __init__(self, policy: AllocatorPolicy) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, pipes: Tensor, server: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            arrays = {"pipe_features": pipes, "server_features": server, "action_mask": mask}
            return self.policy.decide({name: x.unsqueeze(0) for name, x in arrays.items()})

    def arguments(seen: Observation) -> tuple[Tensor, ...]:
        names = ("pipe_features", "server_features", "action_mask")
        return tuple(torch.from_numpy(seen[name]) for name in names)

    rng = np.random.default_rng(5)
    policy, seen, larger = make_policy().eval(), random_pipes(rng, 4), random_pipes(rng, 7)
    pipes = torch.export.Dim("E", min=2)
    program = torch.export.export(
        Plain(policy), arguments(seen), dynamic_shapes=({0: pipes}, {}, {0: 2 * pipes + 1})
    ).module()
    for one in (seen, larger):
        torch.testing.assert_close(program(*arguments(one))[0], outputs(policy, one)[0])


@pytest.mark.parametrize(
    ("chosen", "field"), [({"hidden": 0}, "hidden"), ({"initial_scale": -1.0}, "initial_scale")]
)
def test_senseless_settings_are_named(chosen: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"field '{field}'"):
        make_policy(**chosen)


def test_other_agents_are_refused() -> None:
    config = AllocatorConfig(8, 0.1, 0.0, 0.0)
    with pytest.raises(InputError, match="chooses a change"):
        config.policy(AllocatorObservation(3).space, spaces.MultiDiscrete([2, 2]))
    with pytest.raises(InputError, match="field 'pipe_features'"):
        config.policy(spaces.Dict({"x": spaces.Box(0, 1, (2,))}), spaces.Discrete(5))
