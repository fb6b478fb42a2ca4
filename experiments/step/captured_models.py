"""Models outside the zoo, brought as a user brings one: by the name of a class of one's own.

That is graph=experiments.step.captured_models.Captured graph.model=swin
graph.batch=64 graph.micro_batches=4.
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
from envs.errors import InputError, require_one_of
from envs.graphs.capture import OPTIMIZERS, Workload, capture_training_step
from envs.graphs.op_graph import OpGraph
from envs.graphs.readers.graph_file import GraphFile
from envs.graphs.zoo import cached_graph
from envs.graphs.zoo_modules import MixtureOfExperts, MixtureOfExpertsConfig
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
        require_one_of(self.model, MODELS, field="model")
        if self.batch % self.micro_batches:
            message = f"{self.micro_batches} does not divide the batch of {self.batch}"
            raise InputError(message, field="micro_batches")

    def capture(self) -> OpGraph:
        """The graph, traced now."""
        module, inputs = MODELS[self.model]
        return capture_training_step(
            module, partial(inputs, self.batch // self.micro_batches), _loss,
            name=self.model, micro_batches=self.micro_batches, optimizer=OPTIMIZERS["adam"],
        )  # fmt: skip

    def workload(self, parts: int) -> Workload:
        """See `RunnableSource`."""
        module, inputs = MODELS[self.model]
        samples, left = divmod(self.batch // self.micro_batches, parts)
        if left:
            raise InputError(f"a micro-batch does not divide over {parts} replicas", field="batch")
        return Workload(module, partial(inputs, samples), _loss)

    def load(self) -> GraphFile:
        """The graph, traced now or read from the cache; no topology comes with it."""
        key = {**asdict(self), "source": file_hash(__file__)}
        return GraphFile(cached_graph(key, self.capture), None, {"format": "captured"})

    def inputs(self) -> dict[str, str]:
        return {f"model {self.model}": file_hash(__file__)}


def _loss(out: Any) -> Tensor:
    loss: Tensor = out["loss"] if isinstance(out, Mapping) else out.loss
    return loss


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


class UNet(nn.Module):
    """Down to a sixteenth and up again, levels of a size joined (Ronneberger et al. 2015)."""

    def __init__(self, width: int = 64, levels: int = 5, classes: int = 21) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(_two_convolutions(a, b) for a, b in pairwise([3, *widths]))
        ups = list(pairwise(widths[::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ups)
        self.up = nn.ModuleList(_two_convolutions(2 * b, b) for _, b in ups)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The cross entropy of the class of every pixel."""
        x, levels = pixel_values, []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else functional.max_pool2d(x, 2))
            levels.append(x)
        for level, grow, block in zip(levels[-2::-1], self.grow, self.up, strict=True):
            x = block(torch.cat([level, grow(x)], dim=1))
        return {"loss": functional.cross_entropy(self.head(x), labels)}


class NestedUNet(nn.Module):
    """U-Net++: blocks read all before them of their size, and one below (Zhou et al. 2018)."""

    def __init__(self, width: int = 32, levels: int = 5, classes: int = 21) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels + 1)]
        first = [3, *sizes]
        self.levels = [
            [
                _two_convolutions(number * here + below if number else first[level], here)
                for number in range(levels - level)
            ]
            for level, (here, below) in enumerate(pairwise(sizes))
        ]
        self.blocks = nn.ModuleList(block for level in self.levels for block in level)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The cross entropy of the class of every pixel."""
        x, found = pixel_values, []
        for number, blocks in enumerate(self.levels):
            x = blocks[0](x if number == 0 else functional.max_pool2d(x, 2))
            found.append([x])
        for number in range(1, len(self.levels)):
            pairs = pairwise(found[: len(found) - number + 1])
            for level, (here, below) in enumerate(pairs):
                grown = functional.interpolate(below[number - 1], scale_factor=2.0)
                here.append(self.levels[level][number](torch.cat([*here, grown], dim=1)))
        return {"loss": functional.cross_entropy(self.head(found[0][-1]), labels)}


def _two_convolutions(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class StateSpaceBlock(nn.Module):
    """A block of Mamba-2 in its quadratic form (Dao and Gu 2024, section 3)."""

    def __init__(self, hidden: int, states: int = 128, head: int = 64) -> None:
        super().__init__()
        inner = 2 * hidden
        self.mixed, self.head = [inner, states, states], head
        self.norm = nn.LayerNorm(hidden)
        self.into = nn.Linear(hidden, inner + sum(self.mixed) + inner // head, bias=False)
        mixed = sum(self.mixed)
        self.mix = nn.Conv1d(mixed, mixed, 4, padding=3, groups=mixed)
        self.out = nn.Linear(inner, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, S, hidden) to the same; the state that fades between any two positions is (S, S)."""
        inner, length = self.mixed[0], hidden.shape[1]
        widths = [inner, sum(self.mixed), inner // self.head]
        gate, mixed, step = self.into(self.norm(hidden)).split(widths, dim=-1)
        mixed = functional.silu(self.mix(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
        x, write, read = mixed.split(self.mixed, dim=-1)
        step = functional.softplus(step)
        fading = torch.cumsum(step, 1)
        kept = torch.exp(fading[:, None] - fading[:, :, None]).permute(0, 3, 1, 2).tril()
        seen = kept * (read @ write.transpose(1, 2))[:, None] * step.transpose(1, 2)[:, :, None]
        y = seen @ x.unflatten(-1, (-1, self.head)).transpose(1, 2)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2) * functional.silu(gate))
        return hidden + out


class StateSpaceModel(nn.Module):
    """A causal language model as large as Mamba-2 130M."""

    def __init__(self, layers: int = 24, hidden: int = 768) -> None:
        super().__init__()
        self.token = nn.Embedding(50_280, hidden)
        self.blocks = nn.Sequential(*(StateSpaceBlock(hidden) for _ in range(layers)))
        self.head = nn.Linear(hidden, 50_280, bias=False)
        self.head.weight = self.token.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The cross entropy of the next token."""
        logits = self.head(self.blocks(self.token(input_ids)))
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


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


def _texts(source: int, target: int, samples: int) -> dict[str, Any]:
    return {"input_ids": _words(source, samples), "labels": _words(target, samples)}


def _many_experts() -> nn.Module:
    return MixtureOfExperts(
        MixtureOfExpertsConfig(
            layers=16, hidden=512, intermediate=2048, heads=8, experts=16, top_k=1
        )
    )


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
    "unet": (UNet, partial(_pixels, 256, (256, 256))),
    "unet_nested": (NestedUNet, partial(_pixels, 256, (256, 256))),
    "efficientnet": (  # blocks that widen, squeeze and narrow again
        partial(_published, "EfficientNetForImageClassification", "EfficientNetConfig",
                width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=1000),
        partial(_pixels, 224, ()),
    ),
    "pegasus": (  # an encoder of 12 layers, a decoder of 3
        partial(_published, "PegasusForConditionalGeneration", "PegasusConfig", use_cache=False,
                decoder_layers=3, attn_implementation="eager"),
        partial(_texts, 512, 64),
    ),
    "mamba": (StateSpaceModel, partial(_texts, 256, 256)),
    "bart": (  # an encoder and a decoder that reads its last state in every layer
        partial(_published, "BartForConditionalGeneration", "BartConfig", use_cache=False,
                attn_implementation="eager"),
        partial(_texts, 512, 128),
    ),
    "t5_base": (
        partial(_published, "T5ForConditionalGeneration", "T5Config", use_cache=False,
                d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0,
                attn_implementation="eager"),
        partial(_texts, 256, 256),
    ),
    "moe_sparse": (_many_experts, partial(_texts, 256, 256)),  # a mixture of more, smaller experts
}  # fmt: skip
