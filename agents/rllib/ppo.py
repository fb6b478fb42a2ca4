"""PPO's loss and its gradient steps, on batches whose advantages are worked out already."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor, nn
from torch.nn import functional

from agents.rllib.config import TRAINING, BudgetGuard, Training
from agents.rllib.module import (
    AUXILIARY_LOGITS,
    ENTROPIES,
    EXPERT_ACTIONS,
    LABELS,
    NO_LABEL,
    TOKEN_MASK,
    Autoregressive,
)
from models.architecture import Policy

_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")

Metrics = dict[str, float]


@dataclass(frozen=True)
class UpdateRequest:
    """How one batch is learned.

    Attributes:
        seed: of the shuffling.
        num_epochs: passes over all decisions.
        num_minibatches: gradient steps of a pass.
        learning_rate: Adam's step.
        entropy_coefficient: weight of the entropy bonus.
    """

    seed: int
    num_epochs: int
    num_minibatches: int
    learning_rate: float
    entropy_coefficient: float


class PPOLearner(TorchLearner):
    """Learns from batches whose advantages are worked out already.

    A batch of a module has a row for every step of every agent; `Columns.LOSS_MASK` says which of
    them are decisions. A minibatch holds the same share of the decisions of every module, so that
    all are passed over equally often. Where decisions come with an expert's, the loss is the cross
    entropy of those and the critic's squared error.

    Of autoregressive policies, every token has a ratio, an entropy and a divergence of its own, all
    with the advantage of the whole action; means are over the tokens that exist.

    `update` is RLlib's interface, its body is not: RLlib's passes over a batch take equally many
    rows of every module, know no limit to the divergence, and would copy all observations.
    """

    def build(self) -> None:
        self.training: Training = self.config.learner_config_dict[TRAINING].value
        self.metrics_of: dict[str, dict[str, Tensor]] = {}
        self.reference: dict[str, Policy] | None = None
        self.entropy_coefficient = 0.0
        self.guard = BudgetGuard(self.training.budget_s)
        if self.config.num_learners > 0:  # this is an actor
            torch.set_num_threads(self.training.torch_threads)
        if self.training.learner.remote:  # batches lie in Ray's object store
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            super().build()

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Adam, all parameters in one kernel; `update` sets its step."""
        parameters = self.get_parameters(self.module[module_id])
        optimizer = torch.optim.Adam(parameters, lr=self.training.ppo.learning_rate, fused=True)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=parameters)

    def update(
        self, *, training_data: TrainingData, request: UpdateRequest, **_: Any
    ) -> dict[str, Metrics]:
        """Gradient steps on minibatches, shuffled anew in every pass.

        Returns:
            By module the metrics of the last minibatch, and `gradient_steps`, how many were made.

        Raises:
            FloatingPointError: a gradient is not finite.
        """
        batches = {name: dict(own) for name, own in training_data.batch.policy_batches.items()}
        rows = {
            name: torch.as_tensor(own[Columns.LOSS_MASK]).nonzero().squeeze(1)
            for name, own in batches.items()
        }
        for name in batches:
            for group in self.get_optimizer(name).param_groups:
                group["lr"] = request.learning_rate
        self.entropy_coefficient = request.entropy_coefficient
        cloning = any(EXPERT_ACTIONS in own for own in batches.values())
        if self.training.ppo.reference_kl > 0.0 and self.reference is None and not cloning:
            self.keep_reference()
        generator = torch.Generator().manual_seed(request.seed)
        made, parts = 0, request.num_minibatches
        guard, self.guard = self.guard, BudgetGuard(None)  # it is for the first iteration
        for _epoch in range(request.num_epochs):
            shuffled = {
                name: numbers[torch.randperm(len(numbers), generator=generator)].tensor_split(parts)
                for name, numbers in rows.items()
            }
            for k in range(parts):
                guard.check("num_epochs", made, request.num_epochs * parts)
                self._step({x: self._minibatch(own, shuffled[x][k]) for x, own in batches.items()})
                made += 1
                if self._too_far():
                    return self._reported(made)
        self.guard.over = True
        return self._reported(made)

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The loss of one minibatch of a module."""
        ppo, tokens = self.training.ppo, fwd_out.get(TOKEN_MASK)
        terms = self.metrics_of[module_id] = {}
        expert = batch.get(EXPERT_ACTIONS)
        distribution = None if tokens is not None else self._distribution(module_id, fwd_out)
        if distribution is None:
            logs, entropy = fwd_out[Columns.ACTION_LOGP], _mean(fwd_out[ENTROPIES], tokens)
        else:
            logs = distribution.logp(batch[Columns.ACTIONS] if expert is None else expert)
            entropy = distribution.entropy().mean()
        terms["entropy"] = entropy
        if expert is not None:
            loss = -_mean(logs, None if tokens is None else tokens & (expert != NO_LABEL))
            terms["cross_entropy"] = loss
            if tokens is None:
                likely = fwd_out[Columns.ACTION_DIST_INPUTS].argmax(dim=-1)
                terms["agreement"] = (likely == expert).float().mean()
        else:
            log_ratio = logs - batch[Columns.ACTION_LOGP]
            ratio, gains = log_ratio.exp(), batch[Postprocessing.ADVANTAGES]
            if tokens is not None:
                gains = gains.unsqueeze(1)
            clipped = ratio.clamp(1.0 - ppo.clip, 1.0 + ppo.clip)
            policy_loss = -_mean(torch.min(gains * ratio, gains * clipped), tokens)
            loss = policy_loss - self.entropy_coefficient * entropy
            terms["policy_loss"] = policy_loss
            with torch.no_grad():  # Schulman 2020, "Approximating KL divergence"
                terms["old_approx_kl"] = -_mean(log_ratio, tokens)
                terms["approx_kl"] = _mean(ratio - 1.0 - log_ratio, tokens)
                terms["clipfrac"] = _mean(((ratio - 1.0).abs() > ppo.clip).float(), tokens)
            if self.reference is not None:
                kl = self._reference_kl(module_id, batch, distribution, logs, tokens)
                terms["reference_kl"] = kl
                loss = loss + ppo.reference_kl * kl
        values, targets = fwd_out[Columns.EMBEDDINGS], batch[Postprocessing.VALUE_TARGETS]
        value_loss = (values - targets).square().mean()
        loss = loss + ppo.value_coefficient * value_loss
        terms["value_loss"] = value_loss
        with torch.no_grad():
            spread = targets.var().clamp(min=1e-12)
            terms["explained_variance"] = 1.0 - (targets - values).var() / spread
        if LABELS in batch:
            auxiliary_loss = _cross_entropy(fwd_out[AUXILIARY_LOGITS], batch[LABELS])
            loss = loss + ppo.auxiliary_coefficient * auxiliary_loss
            terms["auxiliary_loss"] = auxiliary_loss
        terms["total_loss"] = loss
        return torch.as_tensor(loss)

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """Of every policy, by module and name, on the CPU."""
        return {
            name: {key: x.detach().cpu() for key, x in policy.state_dict().items()}
            for name, policy in self.policies().items()
        }

    def policies(self) -> dict[str, Policy]:
        """Those that learn, by module."""
        return {name: self.module[name].unwrapped().policy for name in self.module.keys()}  # noqa: SIM118

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All that learning needs to go on: arrays by name of the file and `<module>/<name>`."""
        files: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "reference": {}}
        for module, policy in self.policies().items():
            state = self.get_optimizer(module).state
            for name, value in policy.state_dict().items():
                files["weights"][f"{module}/{name}"] = value.detach().cpu()
            for name, parameter in policy.named_parameters():
                for key in _ADAM_STATE if parameter in state else ():
                    files["optimizer"][f"{key}/{module}/{name}"] = state[parameter][key].cpu()
            if self.reference is not None:
                for name, value in self.reference[module].state_dict().items():
                    files["reference"][f"{module}/{name}"] = value.cpu()
        return files

    def restore(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from what `tensors` gave.

        Raises:
            RuntimeError: they are another policy's.
        """
        optimizer = files["optimizer"]
        for module, policy in self.policies().items():
            policy.load_state_dict(under(files["weights"], f"{module}/"))
            state = self.get_optimizer(module).state
            for name, parameter in policy.named_parameters():
                if f"step/{module}/{name}" in optimizer:
                    state[parameter] = {
                        key: optimizer[f"{key}/{module}/{name}"].to(parameter.device, copy=True)
                        for key in _ADAM_STATE
                    }
        if files["reference"]:
            for module, past in self.keep_reference().items():
                past.load_state_dict(under(files["reference"], f"{module}/"))

    def keep_reference(self) -> dict[str, Policy]:
        """Policies are from now on kept near what they are now."""
        self.reference = {
            name: copy.deepcopy(policy).requires_grad_(False)
            for name, policy in self.policies().items()
        }
        return self.reference

    def _distribution(self, module_id: str, outputs: Mapping[str, Tensor]) -> Any:
        """Of actions."""
        found = self.module[module_id].unwrapped().get_train_action_dist_cls()
        return found.from_logits(outputs[Columns.ACTION_DIST_INPUTS])

    def _reference_kl(
        self, module_id: str, batch: dict[str, Any], distribution: Any, logs: Tensor,
        tokens: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """From the reference; of tokens by Schulman's estimate ("Approximating KL", 2020)."""
        assert self.reference is not None
        policy, seen = self.reference[module_id], batch[Columns.OBS]
        with torch.no_grad():
            if isinstance(policy, Autoregressive):
                past = policy.appraise(seen, batch[Columns.ACTIONS]).log_probabilities
            else:
                inputs, _ = policy.decide(seen)
                past = self._distribution(module_id, {Columns.ACTION_DIST_INPUTS: inputs})
        if tokens is None:
            return torch.as_tensor(distribution.kl(past).mean())
        back = past - logs
        return _mean(back.exp() - 1.0 - back, tokens)

    def _step(self, minibatch: dict[str, dict[str, Any]]) -> None:
        """One step of Adam for every module, each with a gradient of limited norm."""
        for name in minibatch:
            self.get_optimizer(name).zero_grad(set_to_none=True)
        outputs = self.module.forward_train(minibatch)
        losses = self.compute_losses(fwd_out=outputs, batch=minibatch)
        torch.stack(list(losses.values())).sum().backward()
        limit = self.training.ppo.max_gradient_norm
        for name in minibatch:
            norm = nn.utils.clip_grad_norm_(self.get_parameters(self.module[name]), limit)
            if not math.isfinite(norm):
                raise FloatingPointError(f"a gradient of {name} is not finite")
            self.metrics_of[name]["gradient_norm"] = norm
            self.get_optimizer(name).step()

    def _too_far(self) -> bool:
        """Whether a policy is farther from the sampling one than it may go."""
        limit = self.training.ppo.target_kl
        if limit is None:
            return False
        zero = torch.zeros(())
        farthest = max(float(terms.get("approx_kl", zero)) for terms in self.metrics_of.values())
        if self.distributed:  # all learners stop together, or wait for each other for ever
            shared = torch.tensor([farthest], device=self.device)
            torch.distributed.all_reduce(shared)
            farthest = float(shared) / torch.distributed.get_world_size()
        return farthest > limit

    def _minibatch(self, batch: Mapping[str, Any], numbers: Tensor) -> dict[str, Any]:
        """Some rows of a batch, on the learner's device."""
        taken: dict[str, Any] = {}
        for key, column in batch.items():
            if isinstance(column, Mapping):
                taken[key] = self._minibatch(column, numbers)
            elif key != Columns.LOSS_MASK:
                rows = torch.as_tensor(column).index_select(0, numbers)
                taken[key] = rows.to(self.device, non_blocking=True)
        return taken

    def _reported(self, made: int) -> dict[str, Metrics]:
        return {
            name: {**{key: float(x.detach()) for key, x in terms.items()}, "gradient_steps": made}
            for name, terms in self.metrics_of.items()
        }


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of (n, K, classes) and (n, K), over the labels that are known."""
    known = (labels != NO_LABEL).sum().clamp(min=1)
    total = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum"
    )
    return total / known


def _mean(values: Tensor, known: Tensor | None) -> Tensor:
    """Over all, or those that are known."""
    if known is None:
        return values.mean()
    return values.where(known, 0.0).sum() / known.sum().clamp(min=1)


def under(arrays: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """Those whose names start so, by the rest of the name."""
    return {name.removeprefix(start): x for name, x in arrays.items() if name.startswith(start)}


def num_minibatches(decisions: int, minibatch_size: int) -> int:
    """Gradient steps of a pass over so many decisions, of at most `minibatch_size` each."""
    return max(-(-decisions // minibatch_size), 1)
