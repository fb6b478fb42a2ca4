"""PPO's learner with gradient clipping of our own, and equal passes for every module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.policy.sample_batch import MultiAgentBatch
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


MAX_GRADIENT_NORM_KEY = "max_gradient_norm"
GRADIENT_NORM_METRIC = "gradient_norm"


class ClippedPPOLearner(PPOTorchLearner):
    """Clips the gradient of each module to `learner_config_dict[MAX_GRADIENT_NORM_KEY]`.

    The norm is the global one of all the module's parameters. RLlib's own `grad_clip` depends on
    which optimizer owns which parameters and is silently off where several modules share one. Logs
    the norm of each module before clipping.

    With several modules a minibatch holds the same share of each one's decisions, so that all are
    passed over `num_epochs` times. RLlib's own minibatches hold equally many: the module with the
    fewest decisions would be passed over most often.
    """

    def postprocess_gradients_for_module(
        self, *, module_id: str, module_gradients_dict: dict[Any, Any], **_: Any
    ) -> dict[Any, Any]:
        """The gradients scaled by min(1, limit / global norm of the module)."""
        norm = torch.nn.utils.get_total_norm(module_gradients_dict.values())
        limit = self.config.learner_config_dict[MAX_GRADIENT_NORM_KEY]
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        self.gradient_norm = norm.item()
        self.metrics.log_value((module_id, GRADIENT_NORM_METRIC), self.gradient_norm, window=1)
        return {parameter: grad * scale for parameter, grad in module_gradients_dict.items()}

    def _create_iterator_if_necessary(self, **arguments: Any) -> Any:
        batches = super()._create_iterator_if_necessary(**arguments)
        if len(self.module) == 1:
            return batches
        return proportional_minibatches(
            batches._batch, arguments["num_epochs"], arguments["minibatch_size"]
        )


def proportional_minibatches(
    batch: MultiAgentBatch, epochs: int, size: int
) -> Iterator[MultiAgentBatch]:
    """Minibatches with the same share of every module's decisions, shuffled anew every epoch.

    Args:
        batch: the decisions of every module.
        epochs: passes over each of them.
        size: decisions, at most, of the module with the fewest.
    """
    modules = batch.policy_batches
    fewest = min(len(decisions) for decisions in modules.values())
    parts = -(-fewest // size)
    for _ in range(epochs):
        for decisions in modules.values():
            decisions.shuffle()
        for part in range(parts):
            yield MultiAgentBatch(
                {
                    name: decisions[
                        part * len(decisions) // parts : (part + 1) * len(decisions) // parts
                    ]
                    for name, decisions in modules.items()
                },
                len(batch),
            )
