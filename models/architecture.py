"""What every policy that a learner trains has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gymnasium import spaces
from torch import Tensor, nn

from envs.errors import InputError

MASKED_LOGIT = -1e9  # a masked action's logit: probability exactly 0 in float32, still finite


class Policy(nn.Module):
    """From a batch of observations to the inputs of the distribution of actions, and values."""

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, K) inputs of the action distribution and (B,) values.

        The inputs are logits for `Discrete`, the logits of all its parts side by side for
        `MultiDiscrete`, means and then logarithms of standard deviations for `Box`.

        Args:
            observation: every array of the observation, stacked: (B, ...).
        """
        raise NotImplementedError


class Composed(NamedTuple):
    """Actions of A tokens each, drawn."""

    actions: Tensor  # (n, A) int64
    log_probabilities: Tensor  # (n, A) of every token, given those before it
    scores: Tensor  # (n,) of the critic; 0: there is none


class Appraisal(NamedTuple):
    """What a policy makes of actions of A tokens each."""

    log_probabilities: Tensor  # (n, A) of every token asked for, given those before it
    entropy: Tensor  # (n, A) of every token's distribution
    known: Tensor  # (n, A) bool: the token exists, and is no padding
    scores: Tensor  # (n,) of the critic; 0: there is none


@runtime_checkable
class Architecture(Protocol):
    """What a person chooses about a policy; the spaces of an environment fix the rest."""

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        """A fresh policy for an agent with these spaces.

        Raises:
            InputError: the spaces are not those this kind of policy is made for.
        """


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two linear layers with a ReLU between them."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def width_of(observation_space: spaces.Dict, name: str) -> int:
    """The number of features in a row of the array called `name`.

    Raises:
        InputError: the observation has no such array.
    """
    if name not in observation_space.spaces:
        known = ", ".join(observation_space.spaces)
        raise InputError(f"the observation has no such array (it has {known})", field=name)
    shape = observation_space[name].shape
    assert shape
    return shape[-1]
