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
from agents.rllib.module import AUXILIARY, LABELS, NO_LABEL
from models.architecture import Policy

TAUGHT = "taught_actions"  # what the teacher would have done; where it is, policies are cloned

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
        inputs, values = fwd_out[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.EMBEDDINGS]
        module = self.module[module_id].unwrapped()
        present = module.get_train_action_dist_cls().from_logits(inputs)
        entropy = present.entropy().mean()
        terms["entropy"] = entropy
        if TAUGHT in batch:
            taught = batch[TAUGHT]
            loss = -present.logp(taught).mean()
            terms["cross_entropy"] = loss
            terms["agreement"] = (inputs.argmax(dim=-1) == taught).float().mean()
        else:
            moved = present.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]
            ratio, gains = moved.exp(), batch[Postprocessing.ADVANTAGES]
            clipped = ratio.clamp(1.0 - ppo.clip, 1.0 + ppo.clip)
            policy_loss = -torch.min(gains * ratio, gains * clipped).mean()
            loss = policy_loss - self.entropy_coefficient * entropy
            terms["policy_loss"] = policy_loss
            with torch.no_grad():  # how far the policy has gone (Schulman 2020, "Approximating KL")
                terms["old_approx_kl"] = -moved.mean()
                terms["approx_kl"] = (ratio - 1.0 - moved).mean()
                terms["clipfrac"] = ((ratio - 1.0).abs() > ppo.clip).float().mean()
            if self.reference is not None:
                loss = loss + self._reference_loss(module_id, batch, present)
        targets = batch[Postprocessing.VALUE_TARGETS]
        off = (values - targets).square().mean()
        loss = loss + ppo.value_coefficient * off
        terms["value_loss"] = off
        with torch.no_grad():
            spread = targets.var().clamp(min=1e-12)
            terms["explained_variance"] = 1.0 - (targets - values).var() / spread
        if LABELS in batch:
            known = (batch[LABELS] != NO_LABEL).sum().clamp(min=1)
            auxiliary = (
                functional.cross_entropy(
                    fwd_out[AUXILIARY].flatten(0, 1),
                    batch[LABELS].flatten(),
                    ignore_index=NO_LABEL,
                    reduction="sum",
                )
                / known
            )
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
            policy.load_state_dict(of_module(files["weights"], module))
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
                past.load_state_dict(of_module(files["reference"], module))

    def refer_to_present(self) -> None:
        """Policies are from now on kept near what they are now."""
        self.reference = {
            name: copy.deepcopy(policy).requires_grad_(False)
            for name, policy in self.policies().items()
        }

    def _reference_loss(self, module_id: str, batch: dict[str, Any], present: Any) -> Tensor:
        assert self.reference is not None
        module = self.module[module_id].unwrapped()
        with torch.no_grad():
            inputs, _ = self.reference[module_id].decide(batch[Columns.OBS])
        past = module.get_train_action_dist_cls().from_logits(inputs)
        divergence: Tensor = present.kl(past).mean()
        self.metrics_of[module_id]["reference_kl"] = divergence
        return self.training.ppo.reference_kl * divergence

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


def of_module(arrays: Mapping[str, Tensor], module: str) -> dict[str, Tensor]:
    """Those whose names start with the module's, by the rest of the name."""
    start = f"{module}/"
    return {name.removeprefix(start): x for name, x in arrays.items() if name.startswith(start)}


def _decisions(batch: Mapping[str, Any]) -> Tensor:
    """The rows of a batch that are decisions."""
    return torch.as_tensor(batch[Columns.LOSS_MASK]).nonzero().squeeze(1)


def parts_of(decisions: int, minibatch_size: int) -> int:
    """Gradient steps of a pass over so many decisions, of at most `minibatch_size` each."""
    return max(-(-decisions // minibatch_size), 1)
