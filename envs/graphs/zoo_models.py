"""The models of the zoo, by their configurations alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from envs.errors import InputError, refused_in, require_one_of
from envs.units import read_count

DTYPES = ("float32", "float16", "bfloat16")
OPTIMIZERS = ("adam", "adamw", "momentum", "sgd")


@dataclass(frozen=True)
class ZooModel:
    """One training step of a model of the zoo.

    Attributes:
        batch: samples of the whole step, all micro-batches together.
        sequence: tokens per sample; None for a model of images (224 x 224 pixels, 1000 classes).
        micro_batches: equal parts the batch is split into.
        heads: the heads it can have; "none" is the bare model under a mean-square loss.
        head: the one it has.
        max_sequence: longest sequence the model has positions for; None: no limit.
        optimizer: one of `OPTIMIZERS`.
        dtype: one of `DTYPES`, of weights, activations and optimizer state alike.
        one_operator: modules whose calls are one operator each, see `capture_training_step`.

    Raises:
        InputError: a value that the model cannot have, naming the alternatives.
    """

    name: str
    batch: int
    sequence: int | None
    micro_batches: int
    heads: tuple[str, ...]
    head: str
    max_sequence: int | None = None
    optimizer: str = "adam"
    dtype: str = "float32"
    one_operator: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        with refused_in(f"graph {self.name}"):
            for field in ("batch", "micro_batches", "sequence"):
                if getattr(self, field) is not None:
                    read_count(getattr(self, field), key=field)
            if self.batch % self.micro_batches:
                told = f"{self.micro_batches} does not divide the batch of {self.batch}"
                raise InputError(told, field="micro_batches")
            if self.max_sequence is not None and (self.sequence or 0) > self.max_sequence:
                told = f"{self.sequence} exceeds the model's {self.max_sequence} positions"
                raise InputError(told, field="sequence")
            require_one_of(self.head, self.heads, field="head")
            require_one_of(self.optimizer, OPTIMIZERS, field="optimizer")
            require_one_of(self.dtype, DTYPES, field="dtype")

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.batch // self.micro_batches


def _text(
    name: str, batch: int, sequence: int, micro_batches: int, head: str, limit: int | None
) -> ZooModel:
    return ZooModel(name, batch, sequence, micro_batches, (head, "none"), head, limit)


def _image(name: str, batch: int, micro_batches: int) -> ZooModel:
    return ZooModel(name, batch, None, micro_batches, ("classification", "none"), "classification")


ZOO: Mapping[str, ZooModel] = {
    model.name: model
    for model in (
        _image("resnet50", 128, 4),
        _image("vgg19", 64, 4),
        _image("vit_base", 64, 4),
        _text("bert_base", 32, 128, 4, "masked_lm", 512),
        _text("bert_large", 32, 128, 8, "masked_lm", 512),
        _text("gpt2", 16, 512, 4, "causal_lm", 1024),
        _text("gpt2_medium", 16, 512, 8, "causal_lm", 1024),
        _text("gpt2_large", 8, 512, 8, "causal_lm", 1024),
        _text("gpt2_xl", 8, 512, 8, "causal_lm", 1024),
        _text("t5_small", 32, 128, 4, "seq2seq_lm", None),
        _text("llama_7b", 8, 512, 8, "causal_lm", 2048),
        ZooModel("moe", 16, 256, 4, ("causal_lm",), "causal_lm", 1024),
    )
}


class ZooShape(TypedDict, total=False):
    """The shape that is asked of a model; `ZooModel` says what the keys mean."""

    batch: int | None
    sequence: int | None
    micro_batches: int | None
    head: str | None
    optimizer: str | None
    dtype: str | None
    one_operator: Sequence[str] | None


def zoo_model(name: str, **shape: Unpack[ZooShape]) -> ZooModel:
    """A model of the zoo, with its own defaults for whatever is left out or None.

    Raises:
        InputError: an unknown name, key or value.
    """
    require_one_of(name, ZOO, file="zoo", field="name")
    model = ZOO[name]
    for key in shape:
        require_one_of(key, ZooShape.__annotations__, file=f"graph {name}")
    given: dict[str, Any] = {key: value for key, value in shape.items() if value is not None}
    if "sequence" in given and model.sequence is None:
        raise InputError(
            "a model of images has no sequence", file=f"graph {name}", field="sequence"
        )
    if "one_operator" in given:
        given["one_operator"] = tuple(given["one_operator"])
    return dataclasses.replace(model, **given)
