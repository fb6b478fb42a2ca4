"""A small language model as layers in a row, each with a name.

Only torch is imported: an exported plan carries a copy of this file as model.py. Another model
takes its place with the same four names: `layers`, `loss`, `batch` and `micro_batch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embedding(nn.Module):
    """Tokens (B, T) to vectors (B, T, width): of what they are, and of where they stand."""

    def __init__(self, vocabulary: int, sequence: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(sequence, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.add(self.token(tokens), self.position)


class Block(nn.Module):
    """Causal attention, then two linear layers of four times the width, each beside its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        joined = self.query_key_value(self.before(x))
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in joined.chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).flatten(-2))
        return torch.add(x, self.down(functional.gelu(self.up(self.between(x)))))


@dataclass(frozen=True)
class Transformer:
    """`blocks` transformer blocks between an embedding, and a norm and the output.

    The names of its layers are those of torchtitan's models. Tokens and weights follow from
    `seed` alone.
    """

    blocks: int = 8  # transformer blocks: layers.0, layers.1, ...
    width: int = 128  # of the vectors between layers
    heads: int = 4  # of attention; they divide the width
    sequence: int = 64  # tokens of a sample
    vocabulary: int = 512  # different tokens
    micro_batch: int = 4  # samples
    seed: int = 0  # of the weights and the tokens

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1 and name != "seed":
                raise ValueError(f"{name}: {value} is below 1")

    def layers(self) -> dict[str, nn.Module]:
        """The layers by name, in their order, as they begin."""
        torch.manual_seed(self.seed)
        found: dict[str, nn.Module] = {
            "tok_embeddings": Embedding(self.vocabulary, self.sequence, self.width)
        }
        for block in range(self.blocks):
            found[f"layers.{block}"] = Block(self.width, self.heads)
        found["norm"] = nn.LayerNorm(self.width)
        found["output"] = nn.Linear(self.width, self.vocabulary, bias=False)
        return found

    def batch(self, step: int, samples: int) -> tuple[Tensor, Tensor]:
        """What goes in and what is to come out, (samples, sequence) each: the next token."""
        random = torch.Generator().manual_seed(self.seed + 1 + step)
        shape = (samples, self.sequence + 1)
        tokens = torch.randint(self.vocabulary, shape, generator=random)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    @staticmethod
    def loss(output: Tensor, target: Tensor) -> Tensor:
        """The mean over all tokens, so that that of a batch is the mean of its micro-batches'."""
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())
