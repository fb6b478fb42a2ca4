"""The models of the zoo: a table of sizes, and their families in sizes of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from envs.errors import InputError, refused_in, require_one_of
from envs.units import read_count

_DTYPES = ("float32", "float16", "bfloat16")
_OPTIMIZERS = ("adam", "adamw", "momentum", "sgd")


@dataclass(frozen=True)
class ZooModel:
    """One training step of a model of the zoo; `zoo_model` makes one.

    Attributes:
        family: the modules it is made of; a model of this name is of any size.
        head: what it is trained for; "none" is the bare model under a mean-square loss.
        batch: samples of the whole step, all micro-batches together.
        micro_batches: equal parts the batch is split into.
        sequence: tokens per sample; None for a model of images (224 x 224 pixels, 1000 classes).
        positions: longest sequence the model has positions for; None: no limit.
        layers: of a transformer (of its encoder and of its decoder); None: it is none.
        hidden: width between layers.
        heads: of attention; a divisor of `hidden`.
        vocabulary: different tokens.
        optimizer: adam, adamw, momentum or sgd.
        dtype: float32, float16 or bfloat16, of weights, activations and optimizer state alike.
        one_operator: modules whose calls are one operator each, see `capture_training_step`.
    """

    name: str
    family: str
    head: str
    batch: int
    micro_batches: int
    sequence: int | None = None
    positions: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocabulary: int | None = None
    optimizer: str = "adam"
    dtype: str = "float32"
    one_operator: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        with refused_in(f"graph {self.name}"):
            if self.batch % self.micro_batches:
                reason = f"{self.micro_batches} does not divide the batch of {self.batch}"
                raise InputError(reason, field="micro_batches")
            if self.hidden and self.heads and self.hidden % self.heads:
                reason = f"{self.heads} does not divide hidden = {self.hidden}"
                raise InputError(reason, field="heads")
            require_one_of(self.optimizer, _OPTIMIZERS, field="optimizer")
            require_one_of(self.dtype, _DTYPES, field="dtype")

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.batch // self.micro_batches


_IMAGES, _MASKED, _CAUSAL, _PAIRS = "classification", "masked_lm", "causal_lm", "seq2seq_lm"
_PUBLISHED = (
    ZooModel("resnet50", "resnet", _IMAGES, 128, 4),
    ZooModel("vgg19", "vgg", _IMAGES, 64, 4),
    #        samples, parts, tokens, positions, layers, hidden, heads, vocabulary
    ZooModel("vit_base", "vit", _IMAGES, 64, 4, None, None, 12, 768, 12),
    ZooModel("bert_base", "bert", _MASKED, 32, 4, 128, 512, 12, 768, 12, 30_522),
    ZooModel("bert_large", "bert", _MASKED, 32, 8, 128, 512, 24, 1024, 16, 30_522),
    ZooModel("gpt2", "gpt", _CAUSAL, 16, 4, 512, 1024, 12, 768, 12, 50_257),
    ZooModel("gpt2_medium", "gpt", _CAUSAL, 16, 8, 512, 1024, 24, 1024, 16, 50_257),
    ZooModel("gpt2_large", "gpt", _CAUSAL, 8, 8, 512, 1024, 36, 1280, 20, 50_257),
    ZooModel("gpt2_xl", "gpt", _CAUSAL, 8, 8, 512, 1024, 48, 1600, 25, 50_257),
    ZooModel("t5_small", "t5", _PAIRS, 32, 4, 128, None, 6, 512, 8, 32_128),
    ZooModel("llama_7b", "llama", _CAUSAL, 8, 8, 512, 2048, 32, 4096, 32, 32_000),
    ZooModel("moe", "moe", _CAUSAL, 16, 4, 256, 1024, 12, 768, 12, 32_000),
)
# A family has the sizes of its smallest model where no others are asked for.
_FAMILIES = (replace(m, name=m.family) for m in reversed(_PUBLISHED) if m.hidden)
ZOO: Mapping[str, ZooModel] = {model.name: model for model in (*_PUBLISHED, *_FAMILIES)}


class ZooSizes(TypedDict, total=False):
    """Sizes of a transformer; `ZooModel` says what the keys mean."""

    layers: int | None
    hidden: int | None
    heads: int | None
    vocabulary: int | None


class ZooShape(ZooSizes, total=False):
    """What is asked of a model; `ZooModel` says what the keys mean."""

    batch: int | None
    sequence: int | None
    micro_batches: int | None
    head: str | None
    optimizer: str | None
    dtype: str | None
    one_operator: Sequence[str] | None


def zoo_model(name: str, **shape: Unpack[ZooShape]) -> ZooModel:
    """A model of the zoo, with its own defaults for whatever is left out or None.

    Of another width it has as many heads as are as wide as its own.

    Raises:
        InputError: an unknown name or key, or a value that the model cannot have.
    """
    require_one_of(name, ZOO, file="zoo", field="name")
    own = ZOO[name]
    given: dict[str, Any] = {key: value for key, value in shape.items() if value is not None}
    with refused_in(f"graph {name}"):
        for key, value in given.items():
            require_one_of(key, ZooShape.__annotations__)
            if getattr(own, key) is None:
                raise InputError(f"has no {key}", field=key)
            if isinstance(getattr(own, key), int):
                read_count(value, key=key)
        if own.hidden and own.heads and "hidden" in given:
            given = {"heads": max(1, given["hidden"] * own.heads // own.hidden), **given}
        given["one_operator"] = tuple(given.get("one_operator", ()))
        model = replace(own, **given)
        if own.positions and model.sequence and model.sequence > own.positions:
            if name != model.family:
                reason = f"{model.sequence} exceeds the model's {own.positions} positions"
                raise InputError(reason, field="sequence")
            model = replace(model, positions=model.sequence)
        bare = () if model.family == "moe" else ("none",)
        require_one_of(model.head, (own.head, *bare), field="head")
    return model
