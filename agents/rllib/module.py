"""The policy as an RLlib module."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from envs.spaces import FeatureWidths
from models.graph_batch import GraphBatch
from models.policy import PlacementPolicy, PolicyConfig

MODEL_CONFIG_KEY = "placement_policy"  # PPO adds its own keys beside it


class PlacementModule(TorchRLModule, ValueFunctionAPI):
    """`PlacementPolicy` behind RLlib's interface.

    The policy masks its own logits, so that training and exploration agree without a connector.
    `model_config[MODEL_CONFIG_KEY]` holds the `PolicyConfig` and the `FeatureWidths` as dicts.
    """

    def setup(self) -> None:
        """Build the policy; RLlib calls this once."""
        chosen = self.model_config[MODEL_CONFIG_KEY]
        self.policy = PlacementPolicy(
            PolicyConfig(**chosen["config"]), FeatureWidths(**chosen["widths"])
        )

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        logits, _value = self.policy(GraphBatch.of(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: logits}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        # The value travels as the "embedding": the loss asks for it through `compute_values` and
        # would otherwise pay for a second pass through the encoder.
        logits, value = self.policy(GraphBatch.of(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: value}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """(B,) values; `embeddings` is what `_forward_train` gave."""
        if embeddings is not None:
            return embeddings
        value: Tensor = self.policy(GraphBatch.of(batch[Columns.OBS]))[1]
        return value
