"""What a job may still need: a distribution over bins of its remaining time, and its Gittins index.

Gittins, "Bandit processes and dynamic allocation indices", J. R. Stat. Soc. B 41 (1979); for
scheduling, Aalto, Ayesta and Righter, "On the Gittins index in the M/G/1 queue", Queueing Systems
63 (2009), equation 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SHORTEST_S, LONGEST_S, EDGES = 30.0, 60 * 86_400.0, 25
BINS = EDGES + 1
_CENTRE, _SCALE = -9.0, 3.0  # of logarithms of indices, so that they are of the order of 1


def edges_s() -> Tensor:
    """(25,) upper edges of all bins but the last, in seconds: 30 s to 60 days, evenly in log."""
    return torch.exp(
        torch.linspace(math.log(SHORTEST_S), math.log(LONGEST_S), EDGES, dtype=torch.float64)
    )


def bins_of(seconds: Tensor) -> Tensor:
    """The bin, 0 to 25, of each remaining time in seconds; an edge belongs to the bin below it."""
    return torch.bucketize(seconds.double(), edges_s().to(seconds.device))


def log_middles() -> Tensor:
    """(26,) ln of seconds in the middle of every bin, those at the ends as wide as the others."""
    edges = edges_s().log()
    half = (edges[1] - edges[0]) / 2
    return torch.cat([edges - half, edges[-1:] + half])


class GittinsIndex(nn.Module):
    """max over b of P(remaining <= b) / E[min(remaining, b)], with b over the edges of the bins.

    Within a bin remaining times are evenly spread; those in the last are above all edges, so that
    both expressions are linear in the probabilities of the bins.
    """

    reached: Tensor
    spent: Tensor

    def __init__(self) -> None:
        super().__init__()
        upper = edges_s()
        lower = torch.cat([upper.new_zeros(1), upper])  # of all 26 bins
        below = torch.arange(BINS)[:, None] <= torch.arange(EDGES)
        middle = torch.cat([(lower[:-1] + upper) / 2, upper.new_zeros(1)])
        spent = torch.where(below, middle[:, None], upper)
        self.register_buffer("reached", below.float(), persistent=False)
        self.register_buffer("spent", spent.float(), persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        """(...,) natural logarithms of indices in 1/s from (..., 26) logits."""
        probability = logits.softmax(-1)
        chance = (probability @ self.reached).clamp(min=torch.finfo(logits.dtype).tiny)
        return (chance.log() - (probability @ self.spent).log()).amax(-1)

    def feature(self, logits: Tensor) -> Tensor:
        """The same, centred and scaled to the order of 1."""
        centred: Tensor = (self(logits) - _CENTRE) / _SCALE
        return centred
