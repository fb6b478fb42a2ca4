"""The update: PPO's loss on ready batches, imitation of a teacher, gradient steps."""

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

from agents.rllib.config import TRAINING, Patience, Training
from agents.rllib.module import (
    AUXILIARY,
    ENTROPIES,
    KNOWN,
    LABELS,
    NO_LABEL,
    TAUGHT,
    Composer,
)
from models.architecture import Policy

_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")

Metrics = dict[str, float]


@dataclass(frozen=True)
class Instruction:
    """How one batch is learned.

    Attributes:
        seed: of the shuffling.
        num_epochs: passes over all decisions.
        parts: gradient steps of a pass.
        learning_rate: Adam's step.
        entropy_coefficient: weight of the entropy bonus.
    """

    seed: int
    num_epochs: int
    parts: int
    learning_rate: float
    entropy_coefficient: float


class PPOLearner(TorchLearner):
    """Learns from batches whose advantages are worked out already.

    A batch of a module has a row for every step of every agent; `Columns.LOSS_MASK` says which of
    them are decisions. A minibatch holds the same share of the decisions of every module, so that
    all are passed over equally often. Where decisions come with what a teacher would have done, the
    loss is the cross entropy of that and the critic's squared error.

    Of policies that compose, every token has a ratio, an entropy and a divergence of its own, all
    with the advantage of the whole action; means are over the tokens that exist.

    `update` is RLlib's interface, its body is not: RLlib's passes over a batch take equally many
    rows of every module, know no limit to the divergence, and would copy all observations.
    """

    def build(self) -> None:
        self.training: Training = self.config.learner_config_dict[TRAINING].value
        self.metrics_of: dict[str, dict[str, Tensor]] = {}
        self.reference: dict[str, Policy] | None = None
        self.entropy_coefficient = 0.0
        self.patience = Patience(self.training.budget_s)
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
        self, *, training_data: TrainingData, instruction: Instruction, **_: Any
    ) -> dict[str, Metrics]:
        """Gradient steps on minibatches, shuffled anew in every pass.

        Returns:
            By module the metrics of the last minibatch, and `gradient_steps`, how many were made.

        Raises:
            FloatingPointError: a gradient is not finite.
        """
        batches = {name: dict(own) for name, own in training_data.batch.policy_batches.items()}
        rows = {name: _decisions(own) for name, own in batches.items()}
        for name in batches:
            for group in self.get_optimizer(name).param_groups:
                group["lr"] = instruction.learning_rate
        self.entropy_coefficient = instruction.entropy_coefficient
        cloning = any(TAUGHT in own for own in batches.values())
        if self.training.ppo.reference_kl > 0.0 and self.reference is None and not cloning:
            self.refer_to_present()
        generator = torch.Generator().manual_seed(instruction.seed)
        made = 0
        patience, self.patience = self.patience, Patience(None)  # it is for the first iteration
        for _epoch in range(instruction.num_epochs):
            shuffled = {
                name: numbers[torch.randperm(len(numbers), generator=generator)].tensor_split(
                    instruction.parts
                )
                for name, numbers in rows.items()
            }
            for k in range(instruction.parts):
                patience.check("num_epochs", made, instruction.num_epochs * instruction.parts)
                self._step({x: self._taken(own, shuffled[x][k]) for x, own in batches.items()})
                made += 1
                if self._far():
                    return self._reported(made)
        self.patience.over = True
        return self._reported(made)

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The loss of one minibatch of a module."""
        ppo = self.training.ppo
        terms = self.metrics_of[module_id] = {}
        values = fwd_out[Columns.EMBEDDINGS]
        present = None if KNOWN in fwd_out else self._distribution(module_id, fwd_out)
        if present is None:
            logs, known = fwd_out[Columns.ACTION_LOGP], fwd_out[KNOWN]
            entropy = _mean(fwd_out[ENTROPIES], known)
        else:
            asked = batch[TAUGHT if TAUGHT in batch else Columns.ACTIONS]
            logs, known = present.logp(asked), None
            entropy = present.entropy().mean()
        terms["entropy"] = entropy
        if TAUGHT in batch:
            taught = batch[TAUGHT]
            loss = -_mean(logs, None if known is None else known & (taught != NO_LABEL))
            terms["cross_entropy"] = loss
            if known is None:
                likely = fwd_out[Columns.ACTION_DIST_INPUTS].argmax(dim=-1)
                terms["agreement"] = (likely == taught).float().mean()
        else:
            moved = logs - batch[Columns.ACTION_LOGP]
            ratio, gains = moved.exp(), batch[Postprocessing.ADVANTAGES]
            if known is not None:
                gains = gains.unsqueeze(1)
            clipped = ratio.clamp(1.0 - ppo.clip, 1.0 + ppo.clip)
            policy_loss = -_mean(torch.min(gains * ratio, gains * clipped), known)
            loss = policy_loss - self.entropy_coefficient * entropy
            terms["policy_loss"] = policy_loss
            with torch.no_grad():  # how far the policy has gone (Schulman 2020, "Approximating KL")
                terms["old_approx_kl"] = -_mean(moved, known)
                terms["approx_kl"] = _mean(ratio - 1.0 - moved, known)
                terms["clipfrac"] = _mean(((ratio - 1.0).abs() > ppo.clip).float(), known)
            if self.reference is not None:
                divergence = self._divergence(module_id, batch, present, logs, known)
                terms["reference_kl"] = divergence
                loss = loss + ppo.reference_kl * divergence
        targets = batch[Postprocessing.VALUE_TARGETS]
        off = (values - targets).square().mean()
        loss = loss + ppo.value_coefficient * off
        terms["value_loss"] = off
        with torch.no_grad():
            spread = targets.var().clamp(min=1e-12)
            terms["explained_variance"] = 1.0 - (targets - values).var() / spread
        if LABELS in batch:
            auxiliary = _cross_entropy(fwd_out[AUXILIARY], batch[LABELS])
            loss = loss + ppo.auxiliary_coefficient * auxiliary
            terms["auxiliary_loss"] = auxiliary
        terms["total_loss"] = loss
        total: Tensor = loss
        return total

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
        for module, policy in self.policies().items():
            policy.load_state_dict(under(files["weights"], f"{module}/"))
            state = self.get_optimizer(module).state
            for name, parameter in policy.named_parameters():
                if f"step/{module}/{name}" in files["optimizer"]:
                    state[parameter] = {
                        key: files["optimizer"][f"{key}/{module}/{name}"].to(
                            parameter.device, copy=True
                        )
                        for key in _ADAM_STATE
                    }
        if files["reference"]:
            self.refer_to_present()
            for module, past in (self.reference or {}).items():
                past.load_state_dict(under(files["reference"], f"{module}/"))

    def refer_to_present(self) -> None:
        """Policies are from now on kept near what they are now."""
        self.reference = {
            name: copy.deepcopy(policy).requires_grad_(False)
            for name, policy in self.policies().items()
        }

    def _distribution(self, module_id: str, outputs: Mapping[str, Tensor]) -> Any:
        """Of actions."""
        found = self.module[module_id].unwrapped().get_train_action_dist_cls()
        return found.from_logits(outputs[Columns.ACTION_DIST_INPUTS])

    def _divergence(
        self,
        module_id: str,
        batch: dict[str, Any],
        present: Any,
        logs: Tensor,
        known: Tensor | None,
    ) -> Tensor:
        """From the reference; of tokens by Schulman's estimate ("Approximating KL", 2020)."""
        assert self.reference is not None
        policy, seen = self.reference[module_id], batch[Columns.OBS]
        if isinstance(policy, Composer):
            with torch.no_grad():
                before = policy.appraise(seen, batch[Columns.ACTIONS]).log_probabilities
            back = before - logs
            return _mean(back.exp() - 1.0 - back, known)
        with torch.no_grad():
            inputs, _ = policy.decide(seen)
        past = self._distribution(module_id, {Columns.ACTION_DIST_INPUTS: inputs})
        divergence: Tensor = present.kl(past).mean()
        return divergence

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

    def _far(self) -> bool:
        """Whether a policy is farther from the sampling one than it may go."""
        limit = self.training.ppo.most_kl
        if limit is None:
            return False
        zero = torch.zeros(())
        farthest = max(float(terms.get("approx_kl", zero)) for terms in self.metrics_of.values())
        if self.distributed:  # all learners stop together, or wait for each other for ever
            shared = torch.tensor([farthest], device=self.device)
            torch.distributed.all_reduce(shared)
            farthest = float(shared) / torch.distributed.get_world_size()
        return farthest > limit

    def _taken(self, batch: Mapping[str, Any], numbers: Tensor) -> dict[str, Any]:
        """Some rows of a batch, on the learner's device."""
        taken: dict[str, Any] = {}
        for key, column in batch.items():
            if isinstance(column, Mapping):
                taken[key] = self._taken(column, numbers)
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


def _decisions(batch: Mapping[str, Any]) -> Tensor:
    """The rows of a batch that are decisions."""
    return torch.as_tensor(batch[Columns.LOSS_MASK]).nonzero().squeeze(1)


def parts_of(decisions: int, minibatch_size: int) -> int:
    """Gradient steps of a pass over so many decisions, of at most `minibatch_size` each."""
    return max(-(-decisions // minibatch_size), 1)
