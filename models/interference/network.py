"""A set-invariant network: how fast a job runs beside its neighbours, from all their profiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LEAST_SCALE = 0.005  # of a predicted error


class InterferenceNetwork(nn.Module):
    """M independent networks of one shape, evaluated at once.

    A sum over the neighbours, as in Deep Sets (Zaheer et al., NeurIPS 2017), of what a network
    makes of the job and one neighbour:

        slow-down of i beside S = 1 + sum over j in S of exp(f(i, j)),    rate = 1 / slow-down

    The rate does not depend on the order of the neighbours, is 1 alone, and no neighbour raises it.
    For jobs that share a resource equally in turns the sum is exact. Only pairs have been measured:
    that the slow-downs of several neighbours add up is an assumption.

    f takes the embeddings of both jobs through one hidden layer; a second output is the scale of
    the error, that of a Laplace distribution of the rate.

    Args:
        networks: M.
        inputs: features of a profile.
        hidden: width of the embedding and of the hidden layers.
        generator: of the first weights.
    """

    def __init__(self, networks: int, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.networks, self.inputs, self.hidden = networks, inputs, hidden

        def weight(rows: int, columns: int, gain: float) -> nn.Parameter:
            values = torch.randn(networks, rows, columns, generator=generator)
            return nn.Parameter(values * gain / math.sqrt(rows))

        def bias(columns: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(networks, 1, columns))

        self.embed, self.embed_bias = weight(inputs, hidden, 1.4), bias(hidden)
        self.own = weight(inputs + hidden, hidden, 1.0)
        self.other, self.pair_bias = weight(inputs + hidden, hidden, 1.0), bias(hidden)
        self.mix, self.mix_bias = weight(hidden, hidden, 1.4), bias(hidden)
        self.read, self.read_bias = weight(hidden, 2, 0.3), bias(2)
        self.own_linear, self.other_linear = weight(inputs, 2, 0.0), weight(inputs, 2, 0.0)

    def embeddings(self, profiles: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of (M, N, F) profiles: (M, N, H) as a job and as a neighbour, (M, N, 2) linear parts."""
        state = torch.nn.functional.silu(profiles @ self.embed + self.embed_bias)
        state = torch.cat([profiles, state], dim=-1)
        own, other = state @ self.own + self.pair_bias, state @ self.other
        return own, other, profiles @ self.own_linear, profiles @ self.other_linear

    def _heads(self, pairs: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
        """(M, N) logarithm of the added slow-down, and the scale, of (M, N, H) pairs."""
        state = torch.nn.functional.silu(torch.nn.functional.silu(pairs) @ self.mix + self.mix_bias)
        added = state @ self.read[..., :1] + self.read_bias[..., :1] + linear[..., :1]
        scale = state.detach() @ self.read[..., 1:] + self.read_bias[..., 1:] + linear[..., 1:]
        scale = LEAST_SCALE + torch.nn.functional.softplus(scale - 3.0)
        return added.squeeze(-1).clamp(-12.0, 12.0), scale.squeeze(-1)

    def all_pairs(self, profiles: Tensor) -> tuple[Tensor, Tensor]:
        """(M, T, P, P) rates of the row's job beside the column's, and scales of their errors.

        Args:
            profiles: (M, T, P, F).
        """
        networks, tables, jobs, _ = profiles.shape
        flat = profiles.reshape(networks, tables * jobs, -1)
        own, other, row, column = (
            x.view(networks, tables, jobs, -1) for x in self.embeddings(flat)
        )
        pairs = own[:, :, :, None] + other[:, :, None]
        linear = row[:, :, :, None] + column[:, :, None]
        shape = (networks, tables, jobs, jobs)
        added, scale = self._heads(
            pairs.reshape(networks, -1, self.hidden), linear.reshape(networks, -1, 2)
        )
        return torch.sigmoid(-added).view(shape), scale.view(shape)

    def forward(self, profiles: Tensor, own: Tensor, neighbours: Tensor) -> Tensor:
        """(M, B) rates.

        Args:
            profiles: (M, P, F) of P jobs.
            own: (B,) which job.
            neighbours: (B, L) which neighbours; negative: nobody.
        """
        as_job, as_neighbour, row, column = self.embeddings(profiles)
        at = neighbours.clamp(min=0).flatten()
        times = neighbours.shape[1]
        mine = own.repeat_interleave(times)
        added, _ = self._heads(as_job[:, mine] + as_neighbour[:, at], row[:, mine] + column[:, at])
        present = (neighbours >= 0).to(added.dtype)
        slow = added.exp().view(self.networks, *neighbours.shape) * present
        return 1.0 / (1.0 + slow.sum(dim=-1))
