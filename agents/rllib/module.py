"""A policy as an RLModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from agents.rllib.task import Array, Greedy, ObservationBuffer, RLTask
from envs.arrays import BoolArray, FloatArray, IntArray
from models.architecture import Appraisal, Architecture, Composed, Policy

ARCHITECTURE_KEY = "architecture"  # in the model config, where PPO adds its own keys beside it
EXPERT_ACTIONS = "expert_actions"  # in a batch: what is imitated
LABELS = "auxiliary_labels"  # (n, K) class of each of K things, `NO_LABEL`: unknown
AUXILIARY_LOGITS = "auxiliary_logits"  # (n, K, classes)
NO_LABEL = -1
ENTROPIES, TOKEN_MASK = "entropies", "token_mask"  # (n, A) of an autoregressive policy


class AuxiliaryOutput(Protocol):
    """What a policy with an auxiliary head says in one pass."""

    @property
    def logits(self) -> Tensor:
        """(B, A), masked."""

    @property
    def value(self) -> Tensor:
        """(B,)."""

    @property
    def posterior(self) -> Tensor:
        """(B, K, classes) logits of the auxiliary head."""


@runtime_checkable
class WithAuxiliaryHead(Protocol):
    """A policy that also predicts labels."""

    def assess(self, observation: Mapping[str, Tensor]) -> AuxiliaryOutput:
        """All of it, for (B, ...) observations."""


@runtime_checkable
class Autoregressive(Protocol):
    """A policy whose one action is a row of tokens, a whole plan; `decide` it need not."""

    def compose(self, observation: Mapping[str, Tensor], greedy: bool = False) -> Composed:
        """An action for each of (n, ...) observations, by torch's global generator.

        Args:
            observation: every array of it, stacked.
            greedy: whether every token is the most probable one.
        """

    def appraise(
        self, observation: Mapping[str, Tensor], actions: Tensor, asked: Tensor | None = None
    ) -> Appraisal:
        """What the policy thinks of (n, A) actions, with gradients.

        Args:
            observation: every array of it, stacked.
            actions: what stands before each token.
            asked: (n, A) tokens whose probability is asked for; None: those of `actions`.
        """


class Sampled(NamedTuple):
    """n actions, drawn."""

    actions: Array  # (n, ...)
    log_probabilities: NDArray[np.float32]  # (n,), or (n, A) of tokens
    values: NDArray[np.float32]  # (n,) of the critic


class PolicyModule(TorchRLModule, ValueFunctionAPI):
    """A `models.architecture.Policy` behind RLlib's interface.

    The policy masks its own logits, so that training and exploration agree without a connector.
    `model_config[ARCHITECTURE_KEY]` holds the `Architecture`, which makes the policy for the
    module's spaces.
    """

    def setup(self) -> None:
        """Build the policy; RLlib calls this once."""
        architecture = self.model_config[ARCHITECTURE_KEY]
        self.policy: Policy = architecture.policy(self.observation_space, self.action_space)
        self.discrete = isinstance(self.action_space, spaces.Discrete)
        self.autoregressive = isinstance(self.policy, Autoregressive)
        if isinstance(self.action_space, spaces.MultiDiscrete):
            self.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(
                input_lens=self.action_space.nvec.tolist()
            )

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        inputs, _value = self.policy.decide(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: inputs}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        # The value travels as the "embedding": the loss asks for it through `compute_values` and
        # would otherwise pay for a second pass through the encoder.
        if isinstance(self.policy, Autoregressive):
            of_tokens = self.policy.appraise(
                batch[Columns.OBS], batch[Columns.ACTIONS], batch.get(EXPERT_ACTIONS)
            )
            return {
                Columns.ACTION_LOGP: of_tokens.log_probabilities,
                ENTROPIES: of_tokens.entropy,
                TOKEN_MASK: of_tokens.known,
                Columns.EMBEDDINGS: of_tokens.scores,
            }
        if LABELS not in batch:
            inputs, value = self.policy.decide(batch[Columns.OBS])
            return {Columns.ACTION_DIST_INPUTS: inputs, Columns.EMBEDDINGS: value}
        assert isinstance(self.policy, WithAuxiliaryHead)
        found = self.policy.assess(batch[Columns.OBS])
        return {
            Columns.ACTION_DIST_INPUTS: found.logits,
            Columns.EMBEDDINGS: found.value,
            AUXILIARY_LOGITS: found.posterior,
        }

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """(B,) values; `embeddings` is what `_forward_train` gave."""
        if embeddings is not None:
            return embeddings
        return self.policy.decide(batch[Columns.OBS])[1]

    def sample(self, observations: Mapping[str, Tensor]) -> Sampled:
        """One draw of the policy for each observation, by torch's global generator."""
        with torch.inference_mode():
            if isinstance(self.policy, Autoregressive):
                made = self.policy.compose(observations)
                tensors = made.actions, made.log_probabilities, made.scores
                return Sampled(*(tensor.numpy() for tensor in tensors))
            inputs, values = self.policy.decide(observations)
            if self.discrete:
                logs = torch.log_softmax(inputs, dim=-1)
                actions = sample_rows(logs.exp())
                log_probabilities = logs.gather(1, actions.unsqueeze(1)).squeeze(1)
            else:
                distribution = self.get_exploration_action_dist_cls().from_logits(inputs)
                actions = distribution.sample()
                log_probabilities = distribution.logp(actions)
        return Sampled(actions.numpy(), log_probabilities.numpy(), values.numpy())

    def greedy(self, observations: Mapping[str, Tensor], rule: Greedy) -> Array:
        """(n, ...) the most probable actions, token by token of an autoregressive policy.

        Args:
            observations: every array of them, stacked.
            rule: takes single choices from their logits.
        """
        with torch.inference_mode():
            if isinstance(self.policy, Autoregressive):
                actions = self.policy.compose(observations, greedy=True).actions
            elif self.discrete:
                return rule(self.policy.decide(observations)[0].numpy())
            else:
                inputs, _ = self.policy.decide(observations)
                distribution = self.get_inference_action_dist_cls().from_logits(inputs)
                actions = distribution.to_deterministic().sample()
        return np.asarray(actions.numpy())

    def values(self, observations: Mapping[str, Tensor]) -> FloatArray:
        """(n,) of the critic."""
        with torch.inference_mode():
            return self.policy.decide(observations)[1].double().numpy()

    def masks(self, buffer: ObservationBuffer) -> NDArray[np.int8] | None:
        """(T, B, A) which of A actions are allowed; None where actions are no single choice.

        Of autoregressive policies, two: the second says that there is a choice.
        """
        return buffer.masks if self.discrete or self.autoregressive else None

    def forced(self, masks: NDArray[np.int8]) -> tuple[IntArray, BoolArray]:
        """(n, ...) the first actions allowed by (n, A) masks, and (n,) where there is a choice."""
        shape = self.action_space.shape or ()
        first = masks.argmax(axis=1).reshape(-1, *(1 for _ in shape))
        return np.tile(first, shape), masks.sum(axis=1, dtype=np.int64) > 1

    def clipped(self, actions: Array) -> Array:
        """`actions` as they act: real numbers beyond the bounds of a `Box` as the bounds."""
        space = self.action_space
        return np.clip(actions, space.low, space.high) if isinstance(space, spaces.Box) else actions


def sample_rows(probabilities: Tensor) -> Tensor:
    """(n,) one place of each row of (n, A) probabilities, never one of probability 0.

    By the inverse of the distribution function: `torch.multinomial` draws a number for every place.
    """
    below = probabilities.double().cumsum(dim=1)
    level = torch.rand(len(below), 1, dtype=torch.float64) * below[:, -1:]
    actions = (below <= level).sum(dim=1)
    # a level rounded up to the whole lies beyond the last place that is possible
    return torch.minimum(actions, (below < below[:, -1:]).sum(dim=1))


def module_spec(architecture: Architecture) -> RLModuleSpec:
    """For `config.rl_module(rl_module_spec=...)`; every policy of a config gets its own copy."""
    return RLModuleSpec(module_class=PolicyModule, model_config={ARCHITECTURE_KEY: architecture})


def module_specs(task: RLTask, model: Any) -> dict[str, RLModuleSpec]:
    """What RLlib builds the modules of a task from.

    Raises:
        InputError: `model` is not what the task needs.
    """
    seen = {task.module_of(agent): task.spaces_of(agent) for agent in task.agents}
    found = {}
    for name, architecture in task.architectures(model).items():
        found[name] = module_spec(architecture)
        found[name].observation_space, found[name].action_space = seen[name]
    return found


def modules_of(task: RLTask, model: Any) -> dict[str, PolicyModule]:
    """A fresh module of every policy, as RLlib builds it.

    Raises:
        InputError: `model` is not what the task needs.
    """
    return {name: spec.build() for name, spec in module_specs(task, model).items()}
