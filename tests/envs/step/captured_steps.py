"""Captured training steps small enough for unit tests."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from envs.graphs.capture import capture_training_step
from envs.graphs.op_graph import OpGraph


@cache
def perceptron(micro_batches: int = 3) -> OpGraph:
    return capture_training_step(
        lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))),
        lambda: {"input": torch.zeros((256, 512))},
        lambda output: output.sum(),
        name="perceptron",
        micro_batches=micro_batches,
        optimizer=torch.optim.Adam,
    )
