"""The models of the zoo, by their configurations alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.errors import InputError

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
        for field in ("batch", "micro_batches", "sequence"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise self._error(field, f"{value!r} is not a positive integer")
        if self.batch % self.micro_batches:
            raise self._error(
                "micro_batches", f"{self.micro_batches} does not divide the batch of {self.batch}"
            )
        if self.max_sequence is not None and (self.sequence or 0) > self.max_sequence:
            raise self._error(
                "sequence", f"{self.sequence} exceeds the model's {self.max_sequence} positions"
            )
        for field, choices in (
            ("head", self.heads), ("optimizer", OPTIMIZERS), ("dtype", DTYPES),
        ):  # fmt: skip
            if getattr(self, field) not in choices:
                raise self._error(
                    field, f"{getattr(self, field)!r} is none of {', '.join(choices)}"
                )

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.batch // self.micro_batches

    def _error(self, field: str, message: str) -> InputError:
        return InputError(message, file=f"graph {self.name}", field=field)


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


def zoo_model(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    micro_batches: int | None = None,
    head: str | None = None,
    optimizer: str | None = None,
    dtype: str | None = None,
    one_operator: Sequence[str] | None = None,
) -> ZooModel:
    """A model of the zoo, with its own defaults for whatever is left out.

    Raises:
        InputError: an unknown name or a value the model cannot have.
    """
    if name not in ZOO:
        raise InputError(f"{name!r} is none of {', '.join(ZOO)}", file="zoo", field="name")
    model = ZOO[name]
    if sequence is not None and model.sequence is None:
        raise InputError(
            "a model of images has no sequence", file=f"graph {name}", field="sequence"
        )
    given: dict[str, Any] = {
        "batch": batch,
        "sequence": sequence,
        "micro_batches": micro_batches,
        "head": head,
        "optimizer": optimizer,
        "dtype": dtype,
        "one_operator": None if one_operator is None else tuple(one_operator),
    }
    changes = {field: value for field, value in given.items() if value is not None}
    return dataclasses.replace(model, **changes)
