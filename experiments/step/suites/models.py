"""Five models outside the zoo, brought as a user brings one: by the name of a class of one's own.

That is graph=experiments.step.suites.models.Captured graph.model=swin graph.batch=64
graph.micro_batches=4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.graphs.capture import OPTIMIZERS, capture_training_step
from envs.graphs.op_graph import OpGraph
from envs.graphs.readers.graph_file import GraphFile
from envs.graphs.zoo import cached_graph
from experiments.run.provenance import file_hash


@bounded
@dataclass(frozen=True)
class Captured:
    """The training step, with Adam, of one of `MODELS`.

    Args:
        model: its name.
        batch: samples of the step, over all micro-batches.
        micro_batches: equal parts of the batch.

    Raises:
        InputError: no such model, or the parts are not equal.
    """

    model: str
    batch: Count
    micro_batches: Count

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise InputError(f"{self.model!r} is none of {', '.join(MODELS)}", field="model")
        if self.batch % self.micro_batches:
            message = f"{self.micro_batches} does not divide the batch of {self.batch}"
            raise InputError(message, field="micro_batches")

    def capture(self) -> OpGraph:
        """The graph, traced now."""
        module, inputs = MODELS[self.model]
        return capture_training_step(
            module, partial(inputs, self.batch // self.micro_batches), lambda out: out["loss"],
            name=self.model, micro_batches=self.micro_batches, optimizer=OPTIMIZERS["adam"],
        )  # fmt: skip

    def load(self) -> GraphFile:
        """The graph, traced now or read from the cache; no topology comes with it."""
        key = {**asdict(self), "source": file_hash(__file__)}
        return GraphFile(cached_graph(key, self.capture), None, {"format": "captured"})

    def inputs(self) -> dict[str, str]:
        return {f"model {self.model}": file_hash(__file__)}


class Recommender(nn.Module):
    """Tables of embeddings, and products of every two of them (Naumov et al. 2019)."""

    def __init__(self, tables: int = 16, rows: int = 400_000, width: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _perceptron(13, 1024, 1024, width)
        self.top = _perceptron((tables + 1) * tables // 2 + width, 4096, 4096, 2048, 1)

    def forward(self, dense: Tensor, sparse: Tensor, label: Tensor) -> dict[str, Tensor]:
        """The binary cross entropy of a click."""
        below = self.bottom(dense)
        found = [table(sparse[:, number]) for number, table in enumerate(self.tables)]
        rows = torch.stack([below, *found], dim=1)
        high, low = torch.triu_indices(rows.shape[1], rows.shape[1], 1)
        product = torch.bmm(rows, rows.transpose(1, 2))[:, high, low]
        logit = self.top(torch.cat([below, product], dim=1))[:, 0]
        return {"loss": functional.binary_cross_entropy_with_logits(logit, label)}


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _clicks(samples: int) -> dict[str, Any]:
    return {"dense": torch.zeros(samples, 13), "sparse": _words(16, samples),
            "label": torch.zeros(samples)}  # fmt: skip


def _pixels(size: int, labels: tuple[int, ...], samples: int) -> dict[str, Any]:
    return {"pixel_values": torch.zeros(samples, 3, size, size), "labels": _words(*labels, samples)}


def _captions(samples: int) -> dict[str, Any]:
    pixels = torch.zeros(samples, 3, 224, 224)
    return {"input_ids": _words(77, samples), "pixel_values": pixels, "return_loss": True}


def _speech(samples: int) -> dict[str, Any]:
    return {"input_features": torch.zeros(samples, 80, 3000), "labels": _words(128, samples)}


def _words(*shape: int) -> Tensor:
    """Ones, as many for each sample as the shape before the last says."""
    return torch.ones(shape[-1], *shape[:-1], dtype=torch.int64)


def _published(name: str, config: str, **sizes: Any) -> nn.Module:
    """A model of transformers by the names of its class and of its config's, without weights."""
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    return model


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Mapping[str, Any]]]] = {
    "recommender": (Recommender, _clicks),
    "swin": (  # attention in windows at four resolutions
        partial(_published, "SwinForImageClassification", "SwinConfig", num_labels=1000),
        partial(_pixels, 224, ()),
    ),
    "segformer": (  # four stages, all of which the head reads
        partial(_published, "SegformerForSemanticSegmentation", "SegformerConfig"),
        partial(_pixels, 512, (512, 512)),
    ),
    "clip": (  # images and texts, each through a transformer of their own
        partial(_published, "CLIPModel", "CLIPConfig", attn_implementation="eager"), _captions
    ),
    "whisper": (  # convolutions, then an encoder and a decoder
        partial(_published, "WhisperForConditionalGeneration", "WhisperConfig",
                attn_implementation="eager"),
        _speech,
    ),
}  # fmt: skip
