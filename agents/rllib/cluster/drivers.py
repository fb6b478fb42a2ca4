"""Who decides while samples are taken: the policy that learns, or its teacher now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.rllib.cluster.lane import Lane
from envs.cluster.environment.observe_kernel import fill_mask
from envs.cluster.environment.views import Advice, Situation
from envs.errors import InputError
from models.architecture import Policy

Agent = tuple[Lane, int]  # an environment that has just been observed, and its scheduler


class Drawn(NamedTuple):
    actions: NDArray[np.int64]  # (n,)
    log_probabilities: NDArray[np.float32]  # (n,)
    scores: NDArray[np.float32]  # (n,) of the critic
    taught: NDArray[np.int64] | None  # (n,) what the teacher would do


class Driver(Protocol):
    def __call__(self, observations: Mapping[str, Tensor], agents: Sequence[Agent]) -> Drawn:
        """Decisions on (n, ...) observations of `agents`."""


class PolicyDriver:
    """Actions drawn from the policy, by torch's global generator."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, observations: Mapping[str, Tensor], agents: Sequence[Agent]) -> Drawn:
        with torch.inference_mode():
            logits, scores = self.policy.decide(observations)
            logs = torch.log_softmax(logits, dim=-1)
            actions = drawn(logs.exp())
            of_actions = logs.gather(1, actions.unsqueeze(1)).squeeze(1)
        return Drawn(actions.numpy(), of_actions.numpy(), scores.numpy(), None)


class TaughtDriver:
    """The teacher says what to do; the policy drives some of the decisions all the same.

    So the policy is taught in states that its own mistakes lead to (DAgger: Ross et al., "A
    reduction of imitation learning and structured prediction to no-regret online learning",
    AISTATS 2011).

    Args:
        policy: the pupil.
        share: of the decisions that the policy drives, from 0 to 1.
    """

    def __init__(self, policy: Policy, share: float) -> None:
        self.drive, self.share = PolicyDriver(policy), share

    def __call__(self, observations: Mapping[str, Tensor], agents: Sequence[Agent]) -> Drawn:
        taught = asked(agents)
        if self.share == 0.0:
            zeros = np.zeros(len(taught), np.float32)
            return Drawn(taught, zeros, zeros, taught)
        made = self.drive(observations, agents)
        driven = (torch.rand(len(taught)) < self.share).numpy()
        return made._replace(actions=np.where(driven, made.actions, taught), taught=taught)


def drawn(probabilities: Tensor) -> Tensor:
    """(n,) one place of each row of (n, A) probabilities, never one of probability 0.

    By the inverse of the distribution function: `torch.multinomial` draws a number for every place.
    """
    below = probabilities.double().cumsum(dim=1)
    level = torch.rand(len(below), 1, dtype=torch.float64) * below[:, -1:]
    actions = (below <= level).sum(dim=1)
    # a level rounded up to the whole lies beyond the last place that is possible
    return torch.minimum(actions, (below < below[:, -1:]).sum(dim=1))


def asked(agents: Sequence[Agent]) -> NDArray[np.int64]:
    """(n,) the actions of the teachers with whom their episodes began."""
    taught = np.zeros(len(agents), np.int64)
    for k, (lane, scheduler) in enumerate(agents):
        assert lane.advice is not None
        taught[k] = lane.advice.action(lane.episode, scheduler)
    return taught


def greedy(policy: Policy, observations: Mapping[str, Tensor]) -> NDArray[np.int64]:
    """(n,) the most probable actions."""
    with torch.inference_mode():
        logits, _ = policy.decide(observations)
        actions: NDArray[np.int64] = logits.argmax(dim=-1).numpy()
    return actions


class FirstFit:
    """The first job of the window that can start goes to the first group it can go to."""

    def begin(self, episode: Situation) -> FirstFit:
        del episode
        return self

    def copy(self) -> FirstFit:
        return self

    def action(self, episode: Situation, scheduler: int) -> int:
        """A start, or else to wait; to preempt where to wait is not allowed either."""
        table, state = episode.action_table, episode.simulator.state
        mask = np.zeros(table.size, np.int8)
        fill_mask(state, episode.book, episode.views[scheduler], table, episode.most_forwards, mask)
        starts = np.flatnonzero(mask[: table.window * table.groups])
        if len(starts):
            return int(starts[0])
        return table.size - 1 if mask[-1] else int(np.flatnonzero(mask)[-1])


class ShownAdvice:
    """What the observations of the environment advise."""

    def begin(self, episode: Situation) -> Advice:
        """The episode's own advice.

        Raises:
            InputError: its observations show none.
        """
        if episode.advice is None:
            raise InputError("the observation shows nobody's advice", field="adviser")
        return episode.advice
