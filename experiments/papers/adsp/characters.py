"""A character-level language model, many replicas of which take a step at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from envs.arrays import IntArray

CONTEXT, EMBEDDING, HIDDEN = 8, 16, 64  # bytes seen, numbers for each, width of the hidden layer
EVALUATED = 256  # windows, evenly spaced over the text
BLOCK = 256  # batches of a worker that are drawn at once


class CharacterModel:
    """The next byte of a text by one hidden layer over embeddings; a `Trainable` of `envs`.

    Batch j of worker w are `batch` places of the text that depend on (seed, w, j) alone, so the
    clock has no influence on them. A text is longer than `CONTEXT`.
    """

    def __init__(self, text: bytes, batch: int, seed: int) -> None:
        known, ids = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
        self._ids, self._batch, self._seed = ids.astype(np.int64), batch, seed
        v, d, h = len(known), EMBEDDING, HIDDEN
        self._sizes = [(v, d), (CONTEXT * d, h), (1, h), (h, v), (1, v)]
        self._blocks: dict[int, tuple[int, IntArray]] = {}
        self._places = len(ids) - CONTEXT
        places = np.linspace(0, self._places - 1, min(EVALUATED, self._places)).astype(np.int64)
        self._evaluated = self.windows(places[None])

    def start(self) -> NDArray[np.float32]:
        """Normal weights with deviation 1 / sqrt(inputs), embeddings with 1; biases 0."""
        rng = np.random.default_rng([self._seed, 0, 0])
        scales = (1.0, self._sizes[1][0] ** -0.5, 0.0, self._sizes[3][0] ** -0.5, 0.0)
        drawn = [rng.standard_normal(size).ravel() for size in self._sizes]
        parts = [scale * part for scale, part in zip(scales, drawn, strict=True)]
        return np.concatenate(parts).astype(np.float32)

    def windows(self, places: IntArray) -> tuple[Tensor, Tensor]:
        """Contexts (k, B, context) that begin at `places` (k, B), and what follows them (k, B)."""
        context = self._ids[places[..., None] + np.arange(CONTEXT)]
        return torch.from_numpy(context), torch.from_numpy(self._ids[places + CONTEXT])

    def places(self, worker: int, count: int) -> IntArray:
        """Where the windows of a worker's batch `count` begin (batch,)."""
        block = count // BLOCK
        if worker not in self._blocks or self._blocks[worker][0] != block:
            rng = np.random.default_rng([self._seed, 1 + worker, block])
            self._blocks[worker] = block, rng.integers(self._places, size=(BLOCK, self._batch))
        drawn: IntArray = self._blocks[worker][1][count % BLOCK]
        return drawn

    def objective(self, rows: Tensor, context: Tensor, following: Tensor) -> Tensor:
        """The sum over k replicas, `rows` (k, P), of the mean cross-entropy of each, nats."""
        (k, b, _), sizes = context.shape, self._sizes
        parts = rows.split([x * y for x, y in sizes], 1)
        table, w1, b1, w2, b2 = (p.reshape(k, *size) for p, size in zip(parts, sizes, strict=True))
        own = context + torch.arange(k)[:, None, None] * sizes[0][0]
        x = functional.embedding(own, table.reshape(-1, sizes[0][1])).reshape(k, b, -1)
        logits = torch.baddbmm(b2, torch.tanh(torch.baddbmm(b1, x, w1)), w2).reshape(k * b, -1)
        return functional.cross_entropy(logits, following.reshape(-1), reduction="sum") / b

    def step(
        self, rows: NDArray[np.float32], worker: IntArray, count: IntArray, rate: float
    ) -> None:
        places = [self.places(w, j) for w, j in zip(worker.tolist(), count.tolist(), strict=True)]
        parameters = torch.from_numpy(rows).requires_grad_()
        loss = self.objective(parameters, *self.windows(np.stack(places)))
        (gradient,) = torch.autograd.grad(loss, parameters)
        parameters.detach().add_(gradient, alpha=-rate)  # as torch.optim.SGD does

    def loss(self, parameters: NDArray[np.float32]) -> float:
        with torch.no_grad():
            return float(self.objective(torch.from_numpy(parameters[None]), *self._evaluated))
