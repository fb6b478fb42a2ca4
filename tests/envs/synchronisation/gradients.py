"""Gradients of small torch models, a row for each worker's batch: what sums are tried on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


def gradients(
    workers: int, seed: int, vocabulary: int = 2000, width: int = 32
) -> NDArray[np.float64]:
    """(W, E) of an embedding of words, of which few stand in a batch, and two layers after it."""
    torch.manual_seed(seed)
    embedding = nn.Embedding(vocabulary, width)
    head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))
    parameters = [*embedding.parameters(), *head.parameters()]
    rows = []
    for _ in range(workers):
        words = (torch.rand(16, 8) ** 4 * vocabulary).long()  # some words are in most batches
        found = head(embedding(words).mean(dim=1))
        loss = nn.functional.cross_entropy(found, torch.randint(10, (16,)))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).numpy())
    return np.stack(rows).astype(np.float64)
