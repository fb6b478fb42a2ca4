"""A policy behind RLlib's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from models.architecture import Appraisal, Architecture, Composed, Policy

ARCHITECTURE_KEY = "architecture"  # in the model config, where PPO adds its own keys beside it
TAUGHT = "taught_actions"  # what the teacher would have done; where it is, policies are cloned
LABELS = "auxiliary_labels"  # (n, K) class of each of K things, `NO_LABEL`: none
AUXILIARY = "auxiliary_logits"  # (n, K, classes)
NO_LABEL = -1
ENTROPIES, KNOWN = "entropies", "known"  # (n, A) of a policy that composes


class Outlook(Protocol):
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
class Foresighted(Protocol):
    """A policy with an auxiliary head."""

    def assess(self, observation: Mapping[str, Tensor]) -> Outlook:
        """All of it, for (B, ...) observations."""


@runtime_checkable
class Composer(Protocol):
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
        if isinstance(self.policy, Composer):
            found = self.policy.appraise(
                batch[Columns.OBS], batch[Columns.ACTIONS], batch.get(TAUGHT)
            )
            return {
                Columns.ACTION_LOGP: found.log_probabilities,
                ENTROPIES: found.entropy,
                KNOWN: found.known,
                Columns.EMBEDDINGS: found.scores,
            }
        if LABELS not in batch:
            inputs, value = self.policy.decide(batch[Columns.OBS])
            return {Columns.ACTION_DIST_INPUTS: inputs, Columns.EMBEDDINGS: value}
        assert isinstance(self.policy, Foresighted)
        outlook = self.policy.assess(batch[Columns.OBS])
        return {
            Columns.ACTION_DIST_INPUTS: outlook.logits,
            Columns.EMBEDDINGS: outlook.value,
            AUXILIARY: outlook.posterior,
        }

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """(B,) values; `embeddings` is what `_forward_train` gave."""
        if embeddings is not None:
            return embeddings
        return self.policy.decide(batch[Columns.OBS])[1]


def module_spec(architecture: Architecture) -> RLModuleSpec:
    """For `config.rl_module(rl_module_spec=...)`; every policy of a config gets its own copy."""
    return RLModuleSpec(module_class=PolicyModule, model_config={ARCHITECTURE_KEY: architecture})
