"""A user's own module, as `graph=a_module.Own`: tied weights, dropout, skips, writing in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from envs.graphs.capture import OPTIMIZERS, Workload, capture_training_step
from envs.graphs.op_graph import OpGraph
from envs.graphs.readers.graph_file import GraphFile

WORDS, WIDTH = 32, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.unused = nn.Parameter(torch.zeros(3))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.token.weight

    def forward(self, words: Tensor, target: Tensor, scale: float) -> Tensor:
        x = first = self.token(words)
        for block in self.blocks:
            x = functional.relu_(block(x)) * scale + first
            x = functional.dropout(x, 0.2, self.training)
        logits = self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


@dataclass(frozen=True)
class Own:
    samples: int = 4

    def workload(self, parts: int) -> Workload:
        shape = (self.samples // parts, 6)

        def data() -> dict[str, object]:
            words, target = (torch.randint(WORDS, shape) for _ in range(2))
            return {"words": words, "target": target, "scale": 0.5}

        return Workload(Net, data, lambda loss: loss)  # type: ignore[arg-type]

    def capture(self) -> OpGraph:
        of, sgd = self.workload(1), OPTIMIZERS["sgd"]
        return capture_training_step(
            of.module, of.inputs, of.loss, name="own", micro_batches=1, optimizer=sgd
        )

    def load(self) -> GraphFile:
        return GraphFile(self.capture(), None, {"format": "captured"})

    def inputs(self) -> dict[str, str]:
        return {}
