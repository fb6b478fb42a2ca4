"""A policy of schedulers as an RLlib module; in training it also says how long jobs will take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ray.rllib.core.columns import Columns
from torch import Tensor

from agents.rllib.cluster.columns import POSTERIOR, REMAINING_BIN
from agents.rllib.module import PolicyModule


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
