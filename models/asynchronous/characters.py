"""A character-level language model, many replicas of which take a step at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from envs.bounds import Count, bounded

BLOCK = 256  # batches of a worker that are drawn at once
EVALUATED = 256  # windows, evenly spaced over the text


@bounded
@dataclass(frozen=True)
class CharacterShape:
    """An embedding of `context` characters, one hidden layer (tanh), the next character."""

    context: Count
    embedding: Count
    hidden: Count


class CharacterModel:
    """Predicts the next byte of a text; implements `envs.asynchronous.simulation.Trainable`.

    Batch j of worker w are `batch` places of the text that depend on (seed, w, j) alone, so the
    clock has no influence on them. A text is longer than a context.
    """

    def __init__(self, text: bytes, shape: CharacterShape, batch: int, seed: int) -> None:
        known, ids = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
        self._ids = ids.astype(np.int64)
        self._shape, self._batch, self._seed = shape, batch, seed
        v, c, d, h = len(known), shape.context, shape.embedding, shape.hidden
        self._sizes = [(v, d), (c * d, h), (1, h), (h, v), (1, v)]
        self._blocks: dict[int, tuple[int, NDArray[np.int64]]] = {}
        places = np.linspace(0, len(ids) - c - 1, min(EVALUATED, len(ids) - c)).astype(np.int64)
        self._evaluated = self.windows(places[None])

    def start(self) -> NDArray[np.float32]:
        """Normal weights with deviation 1 / sqrt(inputs), embeddings with 1; biases 0."""
        rng = np.random.default_rng([self._seed, 0, 0])
        deviation = [1.0, self._sizes[1][0] ** -0.5, 0.0, self._sizes[3][0] ** -0.5, 0.0]
        parts = [
            s * rng.standard_normal(size) for s, size in zip(deviation, self._sizes, strict=True)
        ]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def windows(self, places: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Contexts (k, B, context) that begin at `places` (k, B), and what follows them (k, B)."""
        c = self._shape.context
        return torch.from_numpy(self._ids[places[..., None] + np.arange(c)]), torch.from_numpy(
            self._ids[places + c]
        )

    def places(self, worker: int, count: int) -> NDArray[np.int64]:
        """Where the windows of a worker's batch `count` begin (batch,)."""
        block = count // BLOCK
        if self._blocks.get(worker, (-1, None))[0] != block:
            rng = np.random.default_rng([self._seed, 1 + worker, block])
            size = (BLOCK, self._batch)
            self._blocks[worker] = (
                block,
                rng.integers(len(self._ids) - self._shape.context, size=size),
            )
        return self._blocks[worker][1][count % BLOCK]

    def objective(self, rows: Tensor, context: Tensor, following: Tensor) -> Tensor:
        """The sum over k replicas, `rows` (k, P), of the mean cross-entropy of each, nats."""
        (k, b, _), sizes = context.shape, self._sizes
        parts = rows.split([x * y for x, y in sizes], 1)
        table, w1, b1, w2, b2 = (p.reshape(k, *size) for p, size in zip(parts, sizes, strict=True))
        own = context + torch.arange(k)[:, None, None] * sizes[0][0]
        x = functional.embedding(own, table.reshape(-1, sizes[0][1])).reshape(k, b, -1)
        logits = torch.baddbmm(b2, torch.tanh(torch.baddbmm(b1, x, w1)), w2)
        flat = logits.reshape(k * b, -1)
        return functional.cross_entropy(flat, following.reshape(-1), reduction="sum") / b

    def step(
        self,
        rows: NDArray[np.float32],
        worker: NDArray[np.int64],
        count: NDArray[np.int64],
        rate: float,
    ) -> None:
        places = [self.places(w, j) for w, j in zip(worker.tolist(), count.tolist(), strict=True)]
        parameters = torch.from_numpy(rows).requires_grad_()
        loss = self.objective(parameters, *self.windows(np.stack(places)))
        (gradient,) = torch.autograd.grad(loss, parameters)
        parameters.detach().add_(gradient, alpha=-rate)  # as torch.optim.SGD does

    def loss(self, parameters: NDArray[np.float32]) -> float:
        with torch.no_grad():
            return float(self.objective(torch.from_numpy(parameters[None]), *self._evaluated))
