"""PPO's learner with gradient clipping of our own."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID

MAX_GRADIENT_NORM_KEY = "max_gradient_norm"
GRADIENT_NORM_METRIC = "gradient_norm"


class ClippedPPOLearner(PPOTorchLearner):
    """Clips the global norm of every gradient to `learner_config_dict[MAX_GRADIENT_NORM_KEY]`.

    RLlib's own `grad_clip` depends on which optimizer owns which parameters and is silently off
    where several modules share one. Logs the norm before clipping.
    """

    def postprocess_gradients(self, gradients_dict: dict[Any, Any]) -> dict[Any, Any]:
        """The gradients scaled by min(1, limit / global norm)."""
        gradients = super().postprocess_gradients(gradients_dict)
        norm = torch.nn.utils.get_total_norm(gradients.values())
        limit = self.config.learner_config_dict[MAX_GRADIENT_NORM_KEY]
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        self.metrics.log_value((DEFAULT_MODULE_ID, GRADIENT_NORM_METRIC), norm.item(), window=1)
        return {parameter: gradient * scale for parameter, gradient in gradients.items()}
