"""Small models traced by torch's profiler while they train on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from envs.graphs.capture import capture_training_step
from envs.graphs.op_graph import OpGraph

SAMPLES = 16


def network() -> nn.Module:
    """Products, a convolution, norms and dropout; a module that is used twice."""
    shared = nn.Linear(32, 32)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 32), nn.Dropout(0.1), shared, nn.LayerNorm(32), shared, nn.Linear(32, 10),
    )  # fmt: skip


def example(samples: int = SAMPLES) -> torch.Tensor:
    return torch.randn(samples, 3, 8, 8)


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def captured(micro_batches: int) -> OpGraph:
    return capture_training_step(
        network,
        lambda: {"input": torch.zeros(SAMPLES, 3, 8, 8)},
        loss,
        name="network",
        micro_batches=micro_batches,
        optimizer=torch.optim.Adam,
    )


def write_trace(path: Path, micro_batches: int, steps: int, samples: int = SAMPLES) -> Any:
    """Train for some steps under the profiler; returns what it wrote."""
    module, data = network(), example(samples)
    optimizer = torch.optim.Adam(module.parameters())

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(micro_batches):
            loss(module(data)).backward()
        optimizer.step()

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as traced:
        for _ in range(steps):
            step()
    traced.export_chrome_trace(str(path))
    return json.loads(path.read_text())
