"""How a scheduler chooses a cell for a job: a score of every cell, by weights and by a network.

Both take the same features, of a cell and of the decision. The linear rule has a weight for every
product of the two; the network adds to it and has two hidden layers, the same for all cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError
from models.architecture import MASKED_LOGIT, Policy, perceptron, width_of
from models.layout import CONTEXTS, FEATURES, cell_shapes

QUEUE = 5  # the feature that is jobs per GPU, what all have sent as far as is known included
CELLS, CONTEXT, NOISE = "cell_features", "context_features", "noise"


@bounded
@dataclass(frozen=True)
class CellsConfig:
    """`models.architecture.Architecture`.

    Attributes:
        hidden: width of the network's layers; 0: the linear rule alone.
        sharpness: of the choice of the shortest queue that training begins with; 0: any cell.
        critic: width of the critic's hidden layer.
    """

    hidden: Annotated[int, Ge(0)] = 0
    sharpness: NonNegative = 20.0
    critic: Count = 64

    def fresh(self) -> CellsPolicy:
        """Before training; its weights are drawn from torch's source of randomness."""
        return CellsPolicy(self)

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> CellsPolicy:
        """A fresh one.

        Raises:
            InputError: the observation is another than that of cells.
        """
        for name, width in ((CELLS, FEATURES), (CONTEXT, CONTEXTS)):
            if width_of(observation_space, name) != width:
                raise InputError(f"does not have {width} columns", field=name)
        return self.fresh()


class CellsPolicy(Policy):
    """Logits of cells, with noise added that the environment gives, and the value of the state."""

    def __init__(self, config: CellsConfig) -> None:
        super().__init__()
        self.config = config
        self.actor = nn.ParameterDict()
        for name, shape in cell_shapes(config.hidden).items():
            spread = max(shape[0], 1) ** -0.5 if name in ("first", "second") else 0.0
            self.actor[name] = nn.Parameter(torch.randn(shape) * spread)
        with torch.no_grad():
            self.actor["weights"][QUEUE, 0] = -config.sharpness
        self.critic = perceptron(2 * FEATURES + CONTEXTS, config.critic, 1)

    @property
    def linear(self) -> NDArray[np.float64]:
        """(FEATURES, CONTEXTS) the weights of the linear rule."""
        weights: Tensor = self.actor["weights"]
        found: NDArray[np.float64] = weights.detach().double().numpy()
        return found

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        cells, context = observation[CELLS], observation[CONTEXT]
        allowed = observation["action_mask"] > 0
        logits = (self.scores(cells, context) + observation[NOISE]).masked_fill(
            ~allowed, MASKED_LOGIT
        )
        mine = (cells * cells[..., :1]).sum(1)  # the first feature says whose cell it is
        seen = torch.cat([cells.mean(1), mine, context], dim=-1)
        return logits, self.critic(seen)[:, 0]

    def scores(self, cells: Tensor, context: Tensor) -> Tensor:
        """(B, S)."""
        actor, width = self.actor, cells.shape[-1]
        weights = torch.einsum("fc,bc->bf", actor["weights"], context)
        scores = torch.einsum("bsf,bf->bs", cells, weights)
        if self.config.hidden == 0:
            return scores
        common = context @ actor["first"][width:] + actor["first_bias"]
        hidden = torch.tanh(cells @ actor["first"][:width] + common[:, None])
        last: Tensor = torch.tanh(hidden @ actor["second"] + actor["second_bias"]) @ actor["last"]
        return scores + last
