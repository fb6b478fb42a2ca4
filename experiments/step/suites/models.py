"""Five models outside the zoo, brought as a user brings one: a class of one's own, by its name.

It is named as graph=experiments.step.suites.models.Captured graph.model=unet graph.batch=16
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
            module,
            partial(inputs, self.batch // self.micro_batches),
            _loss,
            name=self.model,
            micro_batches=self.micro_batches,
            optimizer=OPTIMIZERS["adam"],
        )

    def load(self) -> GraphFile:
        """The graph, traced now or read from the cache; no topology comes with it."""
        key = {**asdict(self), "source": file_hash(__file__)}
        return GraphFile(cached_graph(key, self.capture), None, {"format": "captured"})

    def inputs(self) -> dict[str, str]:
        return {f"model {self.model}": file_hash(__file__)}


def _loss(found: Any) -> Any:
    return getattr(found, "loss", found)


class UNet(nn.Module):
    """Down and up again, with a bridge at every resolution (Ronneberger et al. 2015)."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        falling = zip((3, *widths), widths, strict=False)
        self.down = nn.ModuleList(_two_convolutions(a, b) for a, b in falling)
        rising = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in rising)
        self.up = nn.ModuleList(_two_convolutions(a, b) for a, b in rising)
        self.head = nn.Conv2d(widths[0], 21, 1)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        """The cross entropy of all pixels, a scalar."""
        bridges: list[Tensor] = []
        x = image
        for level in self.down:
            x = level(functional.max_pool2d(x, 2) if bridges else x)
            bridges.append(x)
        for rise, up, bridge in zip(self.rise, self.up, bridges[-2::-1], strict=True):
            x = up(torch.cat([bridge, rise(x)], dim=1))
        return functional.cross_entropy(self.head(x), label)


def _two_convolutions(inside: int, outside: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inside, outside):
        layers += [nn.Conv2d(width, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Recommender(nn.Module):
    """Tables of embeddings, and products of every two of them (Naumov et al. 2019)."""

    def __init__(self, tables: int = 16, rows: int = 400_000, width: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _perceptron(13, 1024, 1024, width)
        self.top = _perceptron((tables + 1) * tables // 2 + width, 4096, 4096, 2048, 1)

    def forward(self, dense: Tensor, sparse: Tensor, label: Tensor) -> Tensor:
        """The binary cross entropy of a click, a scalar."""
        below = self.bottom(dense)
        found = [table(sparse[:, number]) for number, table in enumerate(self.tables)]
        rows = torch.stack([below, *found], dim=1)
        high, low = torch.triu_indices(rows.shape[1], rows.shape[1], 1)
        product = torch.bmm(rows, rows.transpose(1, 2))[:, high, low]
        logit = self.top(torch.cat([below, product], dim=1))[:, 0]
        return functional.binary_cross_entropy_with_logits(logit, label)


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _shifted_windows() -> nn.Module:
    """Attention in windows at four resolutions (Liu et al. 2021)."""
    model: nn.Module = transformers.SwinForImageClassification(
        transformers.SwinConfig(num_labels=1000)
    )
    return model


def _segmenter() -> nn.Module:
    """Four stages, all of which the head reads (Xie et al. 2021)."""
    model: nn.Module = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig())
    return model


def _two_towers() -> nn.Module:
    """Images and texts, each through a transformer, told apart (Radford et al. 2021)."""
    model: nn.Module = transformers.CLIPModel(transformers.CLIPConfig(attn_implementation="eager"))
    return model


def _pixels(names: tuple[str, str], size: int, per_pixel: bool, samples: int) -> dict[str, Tensor]:
    label = torch.zeros((samples, size, size) if per_pixel else (samples,), dtype=torch.int64)
    return dict(zip(names, (torch.zeros(samples, 3, size, size), label), strict=True))


def _clicks(samples: int) -> dict[str, Tensor]:
    sparse = torch.zeros(samples, 16, dtype=torch.int64)
    return {"dense": torch.zeros(samples, 13), "sparse": sparse, "label": torch.zeros(samples)}


def _captions(samples: int) -> dict[str, Any]:
    text = torch.ones(samples, 77, dtype=torch.int64)
    pixels = torch.zeros(samples, 3, 224, 224)
    return {"input_ids": text, "pixel_values": pixels, "return_loss": True}


PICTURE = ("pixel_values", "labels")
MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Mapping[str, Any]]]] = {
    "unet": (UNet, partial(_pixels, ("image", "label"), 256, True)),
    "recommender": (Recommender, _clicks),
    "swin": (_shifted_windows, partial(_pixels, PICTURE, 224, False)),
    "segformer": (_segmenter, partial(_pixels, PICTURE, 512, True)),
    "clip": (_two_towers, _captions),
}
