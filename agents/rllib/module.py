"""A policy behind RLlib's interface."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from models.architecture import Policy

ARCHITECTURE_KEY = "architecture"  # in the model config, where PPO adds its own keys beside it


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
        inputs, value = self.policy.decide(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: inputs, Columns.EMBEDDINGS: value}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """(B,) values; `embeddings` is what `_forward_train` gave."""
        if embeddings is not None:
            return embeddings
        return self.policy.decide(batch[Columns.OBS])[1]
