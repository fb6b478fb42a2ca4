"""PPO's learner on decisions whose advantages are worked out already, and cloning with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, VF_LOSS_KEY
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from torch import Tensor
from torch.nn import functional

from agents.rllib.cluster.memory import ObservationMemory
from agents.rllib.learner import ClippedPPOLearner
from agents.rllib.module import PolicyModule

TAUGHT = "taught_actions"  # (n,) what the teacher would have done; where it is, policies are cloned
REMAINING_BIN = "remaining_bin"  # (n, W + M) bin of the seconds a job still needs, `NO_BIN`: no job
POSTERIOR = "posterior"  # (n, W + M, bins) logits over these bins
NO_BIN = -1

CROSS_ENTROPY = "cloning_cross_entropy"  # nats
AGREEMENT = "cloning_agreement"  # share of the teacher's actions that are the most probable ones
POSTERIOR_LOSS = "posterior_cross_entropy"  # nats
KL = "approximate_kl"  # from the sampling policy, nats
CLIPPED = "clipped_share"  # of the decisions, beyond the clip


class Outlook(Protocol):
    """What a policy says in one pass."""

    @property
    def logits(self) -> Tensor:
        """(B, A), masked."""

    @property
    def value(self) -> Tensor:
        """(B,)."""

    @property
    def posterior(self) -> Tensor:
        """(B, W + M, bins) logits over the bins of what jobs still need."""


@runtime_checkable
class Foresighted(Protocol):
    """A policy that also says how long jobs will take."""

    def assess(self, observation: Mapping[str, Tensor]) -> Outlook:
        """All of it, for (B, ...) observations."""


class SchedulerModule(PolicyModule):
    """`PolicyModule`, with the policy's posterior where the batch has labels for it."""

    def _forward_train(self, batch: dict[str, Any], **arguments: Any) -> dict[str, Tensor]:
        if REMAINING_BIN not in batch:
            return super()._forward_train(batch, **arguments)
        assert isinstance(self.policy, Foresighted)
        outlook = self.policy.assess(batch[Columns.OBS])
        return {
            Columns.ACTION_DIST_INPUTS: outlook.logits,
            Columns.EMBEDDINGS: outlook.value,
            POSTERIOR: outlook.posterior,
        }


POSTERIOR_COEFFICIENT = "posterior_coefficient"  # keys of `learner_config_dict`
EXPLAINED = "vf_explained_var"


@dataclass(frozen=True, eq=False)
class Decisions:
    """n decisions to learn from; observations stay where they were written until they are needed.

    Attributes:
        memory: holds their observations.
        rows: (n,) where, counted as time x B + row.
        columns: (n, ...) everything else, by RLlib's names and those of `columns`.
    """

    memory: ObservationMemory
    rows: Tensor
    columns: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, numbers: Tensor) -> dict[str, Any]:
        """Some of the decisions as RLlib's losses take them."""
        batch: dict[str, Any] = {key: x.index_select(0, numbers) for key, x in self.columns.items()}
        batch[Columns.OBS] = self.memory.take(self.rows[numbers])
        return batch


class SchedulerLearner(ClippedPPOLearner):
    """RLlib's PPO loss and optimizer, without its connectors.

    RLlib's `Learner.update` would turn episodes into batches, walk over their steps for the values
    and work out advantages per step; here these come with the batch (`Decisions`), and a minibatch
    is a gather of rows. Where decisions come with what a teacher would have done, the loss is the
    cross entropy of that and the critic's squared error; where they come with labels of what jobs
    still need, a cross entropy of the policy's `posterior` is added.
    """

    def learn(
        self, decisions: Decisions, *, passes: int, size: int, most_kl: float, steps: int
    ) -> tuple[dict[str, float], int]:
        """Gradient steps on minibatches, shuffled anew in every pass.

        Args:
            decisions: what to learn from.
            passes: over all of them.
            size: decisions of a minibatch, at most.
            most_kl: no step follows a minibatch whose policy is farther than this from the one
                that took the samples, in nats.
            steps: decisions of PPO, these included, which the next schedules go by.

        Returns:
            The metrics of the last minibatch, and how many gradient steps were made.
        """
        parts = -(-len(decisions) // size)
        made = 0
        losses: Mapping[str, Tensor] = {}
        self._far = False
        for _ in range(passes):
            for numbers in torch.randperm(len(decisions)).tensor_split(parts):
                _, losses, _ = self._update({DEFAULT_MODULE_ID: decisions.batch(numbers)})
                made += 1
                if self._kl > most_kl:
                    return self._reduced(losses, steps), made
        return self._reduced(losses, steps), made

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """RLlib's Adam, all parameters in one kernel."""
        parameters = self.get_parameters(self._module[module_id])
        optimizer = torch.optim.Adam(parameters, lr=config.lr, fused=True)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
        )

    def apply_gradients(self, gradients_dict: dict[Any, Tensor]) -> None:
        """One step of Adam.

        RLlib looks for infinities in every parameter and sets them to 0; here the norm says it of
        all at once (`postprocess_gradients_for_module`).

        Raises:
            FloatingPointError: a gradient is not finite.
        """
        if not math.isfinite(self.gradient_norm):
            raise FloatingPointError("a gradient is not finite")
        for key, gradient in gradients_dict.items():
            self._params[key].grad = gradient
        self.get_optimizer(DEFAULT_MODULE_ID).step()

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        if TAUGHT in batch:
            loss: Tensor = self._cloning_loss(module_id, config, batch, fwd_out)
        else:
            # RLlib makes a distribution of it for its KL term, which is off: one column will do
            batch[Columns.ACTION_DIST_INPUTS] = fwd_out[Columns.ACTION_DIST_INPUTS][:, :1].detach()
            loss = super().compute_loss_for_module(
                module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
            )
            self._measure_step(module_id, config, batch, fwd_out)
        if REMAINING_BIN in batch:
            off = functional.cross_entropy(
                fwd_out[POSTERIOR].flatten(0, 1),
                batch[REMAINING_BIN].flatten(),
                ignore_index=NO_BIN,
                reduction="sum",
            ) / (batch[REMAINING_BIN] != NO_BIN).sum().clamp(min=1)
            self._log(module_id, {POSTERIOR_LOSS: off})
            loss = loss + self.config.learner_config_dict[POSTERIOR_COEFFICIENT] * off
        return loss

    def _cloning_loss(
        self, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        logits, taught = fwd_out[Columns.ACTION_DIST_INPUTS], batch[TAUGHT]
        logs = torch.log_softmax(logits, dim=-1)
        imitation: Tensor = functional.nll_loss(logs, taught)
        values, targets = fwd_out[Columns.EMBEDDINGS], batch[Postprocessing.VALUE_TARGETS]
        off = (values - targets).square().mean()
        with torch.no_grad():
            explained = 1.0 - (targets - values).var() / targets.var().clamp(min=1e-12)
            agreement = (logits.argmax(dim=-1) == taught).float().mean()
            entropy = -(logs.exp() * logs.clamp(min=-1e9)).sum(dim=-1).mean()
        self._kl = 0.0
        self._log(
            module_id,
            {
                CROSS_ENTROPY: imitation,
                AGREEMENT: agreement,
                VF_LOSS_KEY: off,
                EXPLAINED: explained,
                ENTROPY_KEY: entropy,
            },
        )
        coefficient: float = config.vf_loss_coeff
        loss: Tensor = imitation + coefficient * off
        return loss

    def _measure_step(
        self, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> None:
        """How far the policy has gone: E[r - 1 - ln r], which is never negative (Schulman 2020)."""
        with torch.no_grad():
            logs = torch.log_softmax(fwd_out[Columns.ACTION_DIST_INPUTS], dim=-1)
            taken = logs.gather(1, batch[Columns.ACTIONS].unsqueeze(1)).squeeze(1)
            moved = taken - batch[Columns.ACTION_LOGP]
            ratio = moved.exp()
            kl = (ratio - 1.0 - moved).mean()
            clipped = ((ratio - 1.0).abs() > config.clip_param).float().mean()
        self._kl = float(kl)
        self._log(module_id, {KL: kl, CLIPPED: clipped})

    def _log(self, module_id: str, values: Mapping[str, Tensor]) -> None:
        plain = {name: float(value.detach()) for name, value in values.items()}
        self.metrics.log_dict(plain, key=module_id, window=1)

    def _reduced(self, losses: Mapping[str, Tensor], steps: int) -> dict[str, float]:
        module = DEFAULT_MODULE_ID
        self.metrics.log_value((module, self.TOTAL_LOSS_KEY), losses[module].item(), window=1)
        self.after_gradient_based_update(timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: steps})
        found = self.metrics.reduce()[module]
        return {str(name): float(stat.peek()) for name, stat in found.items()}
