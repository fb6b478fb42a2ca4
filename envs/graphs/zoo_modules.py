"""The modules of the zoo, with their data and loss.

They are built from `transformers` configurations; `moe` is a decoder-only mixture-of-experts
transformer of our own, whose routing has static shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple, cast

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from envs.bounds import Count, Positive, Share, bounded
from envs.errors import InputError
from envs.graphs.capture import OPTIMIZERS, Workload, capture_training_step
from envs.graphs.op_graph import OpGraph
from envs.graphs.zoo_models import ZooModel


@bounded
@dataclass(frozen=True)
class MixtureOfExpertsConfig:
    """Sizes of the model.

    Every `expert_period`-th block has experts in place of its feed-forward network, as in GShard
    (Lepikhin et al., 2020). Each token goes to its `top_k` experts; an expert takes at most
    `capacity(tokens)` of them, the ones with the largest gates, and drops the rest.
    """

    vocabulary: Count = 32_000
    max_sequence: Count = 1024
    hidden: Count = 768
    intermediate: Count = 3072
    layers: Count = 12
    heads: Count = 12
    experts: Count = 8
    top_k: Count = 2
    capacity_factor: Positive = 1.25
    expert_period: Count = 2
    dropout: Share = 0.1
    balance_weight: float = 0.01  # of the load-balancing loss (Fedus et al., 2021, eq. 4)

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InputError(
                f"must divide hidden = {self.hidden}", file="mixture of experts", field="heads"
            )
        if self.top_k > self.experts:
            raise InputError(
                f"cannot exceed experts = {self.experts}", file="mixture of experts", field="top_k"
            )

    def capacity(self, tokens: int) -> int:
        """Rows of an expert's buffer for a micro-batch of `tokens` tokens."""
        return min(tokens, ceil(self.capacity_factor * self.top_k * tokens / self.experts))


class ModelOutput(NamedTuple):
    """What a model of our own returns."""

    loss: Tensor  # () cross entropy, and the weighted load-balancing loss of experts
    logits: Tensor  # (batch, sequence, vocabulary), or (batch, classes)


class FeedForward(nn.Module):
    """Two linear layers around a GELU: a dense block's network, and a single expert."""

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.intermediate)
        self.down = nn.Linear(config.intermediate, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to (..., hidden)."""
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


class ExpertLayer(nn.Module):
    """Top-k routing to experts with fixed-size buffers: no shape depends on the data.

    A token's gates outside its top k are 0. Each expert then takes the `capacity` tokens with its
    largest gates; a token that did not choose it but fills its buffer has gate 0 and so adds
    nothing. Experts are separate modules, so that each can be placed on a device of its own, and
    each receives only its own tokens.
    """

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, hidden) to the mixed output (tokens, hidden) and the load-balancing loss ()."""
        tokens = x.shape[0]
        probability = functional.softmax(self.router(x), dim=-1)  # (tokens, experts)
        chosen = torch.topk(probability, self.config.top_k, dim=-1)
        gates = torch.zeros_like(probability).scatter(1, chosen.indices, chosen.values)
        gates = gates / gates.sum(dim=-1, keepdim=True)
        buffer = torch.topk(gates.t(), self.config.capacity(tokens), dim=-1)  # (experts, capacity)
        mixed = []
        for expert, index, gate in zip(
            self.experts, buffer.indices.unbind(), buffer.values.unbind(), strict=True
        ):
            mixed.append(expert(x.index_select(0, index)) * gate.unsqueeze(1))
        out = torch.zeros_like(x).index_add(0, buffer.indices.flatten(), torch.cat(mixed))
        share = (gates > 0).to(probability.dtype).mean(dim=0) / self.config.top_k
        balance = self.config.experts * torch.sum(share * probability.mean(dim=0))
        return out, balance


class CausalAttention(nn.Module):
    """Multi-head self-attention with explicit matrix products and a causal mask."""

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, sequence, hidden), mask (sequence, sequence), to (batch, sequence, hidden)."""
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        score = query @ key.transpose(-1, -2) / sqrt(query.shape[-1]) + mask
        weight = self.dropout(functional.softmax(score, dim=-1))
        out: Tensor = self.out((weight @ value).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Pre-normalised transformer block, its second half dense or a mixture of experts."""

    def __init__(self, config: MixtureOfExpertsConfig, *, sparse: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = CausalAttention(config)
        self.mixture_norm = nn.LayerNorm(config.hidden)
        self.mixture = ExpertLayer(config) if sparse else FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """(batch, sequence, hidden) to the same, and the load-balancing loss of a sparse block."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        y = self.mixture_norm(x)
        if isinstance(self.mixture, ExpertLayer):
            out, balance = self.mixture(y.flatten(0, 1))
            return x + self.dropout(out.view_as(x)), balance
        return x + self.dropout(self.mixture(y)), None


class MixtureOfExperts(nn.Module):
    """Causal language model with tied embedding and head."""

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.max_sequence, config.hidden)
        self.blocks = nn.ModuleList(
            Block(config, sparse=index % config.expert_period == config.expert_period - 1)
            for index in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> ModelOutput:
        """Tokens and next-token labels, each (batch, sequence), to loss and logits."""
        length = input_ids.shape[1]
        weight = self.token.weight
        position = torch.arange(length, device=input_ids.device)
        mask = torch.full(
            (length, length), float("-inf"), dtype=weight.dtype, device=weight.device
        ).triu(1)
        x = self.token(input_ids) + self.position(position)
        penalties = []
        for block in self.blocks:
            x, balance = block(x, mask)
            if balance is not None:
                penalties.append(balance)
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        if penalties:
            loss = loss + self.config.balance_weight * torch.stack(penalties).sum()
        return ModelOutput(loss, logits)


PIXELS = 224
CLASSES = 1000


class _Family(NamedTuple):
    """Classes of `transformers`: of a configuration, of the bare model and of it with its head."""

    name: str
    head: str
    pooler: bool = False  # whether the bare model would have one that nothing reads
    decoder: bool = False  # whether it reads tokens of its own where there are no labels


_FAMILIES: Mapping[str, _Family] = {
    "resnet": _Family("ResNet", "ForImageClassification"),
    "vit": _Family("ViT", "ForImageClassification", pooler=True),
    "bert": _Family("Bert", "ForMaskedLM", pooler=True),
    "gpt": _Family("GPT2", "LMHeadModel"),
    "t5": _Family("T5", "ForConditionalGeneration", decoder=True),
    "llama": _Family("Llama", "ForCausalLM"),
}


def _options(model: ZooModel) -> dict[str, object]:
    """Of a configuration; what is not said here has its defaults."""
    options: dict[str, object] = {"num_labels": CLASSES}
    if model.hidden is None or model.heads is None:
        return options
    inner = 4 * model.hidden
    if model.family == "llama":  # a gated network of as many weights, in multiples of 256
        inner = 256 * ceil(2 * inner / 3 / 256)
    options |= {
        "attn_implementation": "eager",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "intermediate_size": inner,
    }
    if model.sequence is not None:
        options |= {"vocab_size": model.vocabulary, "use_cache": False, "bos_token_id": None,
                    "eos_token_id": None}  # fmt: skip
    if model.positions is not None:
        options["max_position_embeddings"] = model.positions
    if model.family == "t5":  # source and target are equally long
        options |= {"num_decoder_layers": model.layers, "d_ff": inner, "decoder_start_token_id": 0,
                    "d_kv": model.hidden // model.heads}  # fmt: skip
    return options


def _of_library(model: ZooModel) -> nn.Module:
    family, module = _FAMILIES[model.family], cast(Any, None)
    config: Any = getattr(transformers, f"{family.name}Config")(**_options(model))
    if model.head == "none":
        unread = {"add_pooling_layer": False} if family.pooler else {}
        module = getattr(transformers, f"{family.name}Model")(config, **unread)
    else:
        module = getattr(transformers, family.name + family.head)(config)
        if family.head == "LMHeadModel":  # a name that tells the library nothing of the loss
            module.loss_type = "ForCausalLM"
    return cast(nn.Module, module)


def _mixture(model: ZooModel) -> nn.Module:
    sizes = {key: getattr(model, key) for key in ("vocabulary", "hidden", "layers", "heads")}
    inner = 4 * sizes["hidden"]
    positions = cast(int, model.positions)
    config = MixtureOfExpertsConfig(**sizes, intermediate=inner, max_sequence=positions)
    return MixtureOfExperts(config)


def workload(model: ZooModel) -> Workload:
    """What is captured of `model`, and can be run."""
    family, bare = _FAMILIES.get(model.family), model.head == "none"
    make = _OWN.get(model.family, _of_library)
    if model.sequence is None:
        draws, labels = {"pixel_values": _pixels}, _class_labels
    else:
        draws, labels = {"input_ids": _tokens}, _tokens
    if not bare:
        draws["labels"] = labels
    elif family is not None and family.decoder:
        draws["decoder_input_ids"] = _tokens
    return Workload(
        module=lambda: make(model).to(getattr(torch, model.dtype)),
        inputs=lambda: {name: draw(model) for name, draw in draws.items()},
        loss=mean_square if bare and family is not None else model_loss,
    )


def capture(model: ZooModel) -> OpGraph:
    """Trace the training step of `model`."""
    of = workload(model)
    return capture_training_step(
        of.module,
        of.inputs,
        of.loss,
        name=model.name,
        micro_batches=model.micro_batches,
        optimizer=OPTIMIZERS[model.optimizer],
        one_operator=model.one_operator,
    )


def model_loss(output: Any) -> Tensor:
    """The loss that a model with a head computes from its labels."""
    loss: Tensor = output.loss
    return loss


def mean_square(output: Any) -> Tensor:
    """The loss of a bare model: the mean square of its last hidden state."""
    hidden: Tensor = output.last_hidden_state
    return hidden.float().square().mean()


def _tokens(model: ZooModel) -> Tensor:
    most = min(CLASSES, model.vocabulary or CLASSES)
    return torch.randint(most, (model.samples, model.sequence or 1))


def _pixels(model: ZooModel) -> Tensor:
    return torch.randn((model.samples, 3, PIXELS, PIXELS), dtype=getattr(torch, model.dtype))


def _class_labels(model: ZooModel) -> Tensor:
    return torch.randint(CLASSES, (model.samples,))


# Simonyan and Zisserman (ICLR 2015), configuration E: channels of the convolutions, 0: pooling.
VGG19 = (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0)


class Vgg19(nn.Module):
    """Sixteen convolutions and three fully connected layers; without labels, as `mean_square`."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = []
        inside = 3
        for channels in VGG19:
            if channels:
                features += [nn.Conv2d(inside, channels, 3, padding=1), nn.ReLU()]
            else:
                features.append(nn.MaxPool2d(2))
            inside = channels or inside
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(512 * (PIXELS // 32) ** 2, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, CLASSES),
        )  # fmt: skip

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ModelOutput:
        hidden = self.classifier(self.features(pixel_values).flatten(1))
        if labels is None:
            return ModelOutput(hidden.square().mean(), hidden)
        return ModelOutput(functional.cross_entropy(hidden, labels), hidden)


_OWN: Mapping[str, Callable[[ZooModel], nn.Module]] = {
    "vgg": lambda model: Vgg19(),
    "moe": _mixture,
}
