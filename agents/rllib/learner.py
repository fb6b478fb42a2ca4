"""PPO's learner with gradient clipping of our own, and equal passes for every module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.policy.sample_batch import MultiAgentBatch

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
