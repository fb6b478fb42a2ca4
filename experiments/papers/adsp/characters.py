"""A character-level language model, many replicas of which take a step at once."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from envs.arrays import IntArray

CONTEXT, EMBEDDING, HIDDEN = 8, 16, 64  # bytes seen, numbers for each, width of the hidden layer
EVALUATED = 256  # places, evenly spaced over the text
BLOCK = 256  # batches of a worker that are drawn at once

Parameters = NDArray[np.float32]


class CharacterModel:
    """The next byte of a text by one hidden layer over embeddings.

    Batch j of worker w are `batch` places of the text that depend on (seed, w, j) alone, so the
    clock has no influence on them. A text is longer than `CONTEXT`.
    """

    def __init__(self, text: bytes, batch: int, seed: int) -> None:
        known, ids = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
        v, d, h = len(known), EMBEDDING, HIDDEN
        self._sizes = [(v, d), (CONTEXT * d, h), (1, h), (h, v), (1, v)]
        self._seed, count = seed, len(ids) - CONTEXT
        # at every place of the text: the context that begins there, and the byte behind it
        self._windows = torch.from_numpy(ids.astype(np.int64)).unfold(0, CONTEXT + 1, 1)
        self._evaluated = np.linspace(0, count - 1, min(EVALUATED, count)).astype(np.int64)[None]
        self._drawn = cache(
            lambda worker, block: np.random.default_rng([seed, 1 + worker, block]).integers(
                count, size=(BLOCK, batch)
            )
        )

    def start(self) -> Parameters:
        """(P,) normal weights with deviation 1 / sqrt(inputs), embeddings with 1; biases 0."""
        rng = np.random.default_rng([self._seed, 0, 0])
        scales = (1.0, (CONTEXT * EMBEDDING) ** -0.5, 0.0, HIDDEN**-0.5, 0.0)
        drawn = [rng.standard_normal(size).ravel() for size in self._sizes]
        return np.concatenate([*map(np.multiply, scales, drawn)]).astype(np.float32)

    def places(self, worker: int, count: int) -> IntArray:
        """(batch,) where the contexts of a worker's batch `count` begin."""
        drawn: IntArray = self._drawn(worker, count // BLOCK)[count % BLOCK]
        return drawn

    def objective(self, rows: Tensor, places: IntArray) -> Tensor:
        """The sum over k replicas, `rows` (k, P), of the mean cross-entropy at `places` (k, B)."""
        (k, b), sizes = places.shape, self._sizes
        context, following = self._windows[torch.from_numpy(places)].split([CONTEXT, 1], 2)
        parts = rows.split([x * y for x, y in sizes], 1)
        table, w1, b1, w2, b2 = (p.reshape(k, *size) for p, size in zip(parts, sizes, strict=True))
        own = context + torch.arange(k)[:, None, None] * sizes[0][0]
        x = functional.embedding(own, table.reshape(-1, sizes[0][1])).reshape(k, b, -1)
        logits = torch.baddbmm(b2, torch.tanh(torch.baddbmm(b1, x, w1)), w2).reshape(k * b, -1)
        total = functional.cross_entropy(logits, following.reshape(-1), reduction="sum")
        mean: Tensor = total / b
        return mean

    def step(self, rows: Parameters, worker: IntArray, count: IntArray, rate: float) -> None:
        """One step of each row (k, P) in place; row i takes batch `count[i]` of `worker[i]`."""
        places = [self.places(w, j) for w, j in zip(worker.tolist(), count.tolist(), strict=True)]
        parameters = torch.from_numpy(rows).requires_grad_()
        (gradient,) = torch.autograd.grad(self.objective(parameters, np.stack(places)), parameters)
        parameters.detach().add_(gradient, alpha=-rate)  # as torch.optim.SGD does

    def loss(self, parameters: Parameters) -> float:
        """Of parameters (P,), at places that are the same for all; nats."""
        with torch.no_grad():
            return float(self.objective(torch.from_numpy(parameters[None]), self._evaluated))
