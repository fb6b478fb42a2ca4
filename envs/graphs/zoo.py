"""The zoo: training steps of well-known models, by their configurations alone.

Nothing is downloaded, no weight is allocated; captured graphs are kept on disk. The modules
themselves are in `zoo_modules`, which alone imports torch and transformers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.graphs.storage import load_graph, save_graph

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


_LOG = logging.getLogger(__name__)
CAPTURE_VERSION = 1  # raised with every change of what capturing gives
_PACKAGES = ("torch", "transformers")


def default_folder() -> Path:
    """`$MESHWRIGHT_CACHE`, or `~/.cache/meshwright/graphs`."""
    chosen = os.environ.get("MESHWRIGHT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "meshwright" / "graphs"


def cache_key(key: Mapping[str, object]) -> str:
    """SHA-256 of `key`, of `CAPTURE_VERSION` and of the versions of torch and transformers.

    `key` holds JSON values and says everything else that the graph depends on.
    """
    packages = {package: version(package) for package in _PACKAGES}
    parts = {"key": key, "packages": packages, "capture": CAPTURE_VERSION}
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def cached_graph(
    key: Mapping[str, object], build: Callable[[], OpGraph], folder: Path | None = None
) -> OpGraph:
    """The graph of `key`: read from `folder`, or built and written there.

    An entry that is truncated or damaged is never used: it is built again, with a warning. A
    folder that cannot be written costs only the saving of time, and a warning.

    Args:
        key: JSON mapping that determines the graph.
        folder: where the entries are; `default_folder()` if none is given.
    """
    folder = default_folder() if folder is None else folder
    digest = cache_key(key)
    path = folder / f"{digest}.npz"
    if path.exists():
        try:
            return load_graph(path)
        except (InputError, OSError) as error:
            _LOG.warning("damaged cache entry is built again: %s", error)
    graph = build()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path, {"key": dict(key), "cache_key": digest})
    except OSError as error:
        _LOG.warning("graph could not be cached: %s", error)
    return graph


def zoo_model(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    micro_batches: int | None = None,
    head: str | None = None,
    optimizer: str | None = None,
    dtype: str | None = None,
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
    }
    changes = {field: value for field, value in given.items() if value is not None}
    return dataclasses.replace(model, **changes)


def zoo_graph(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    micro_batches: int | None = None,
    head: str | None = None,
    optimizer: str | None = None,
    dtype: str | None = None,
    folder: Path | None = None,
) -> OpGraph:
    """The training step of a model of the zoo, from the disk cache in `folder` where possible.

    Arguments left out have the model's own defaults (`ZOO`); `ZooModel` says what they mean.

    Raises:
        InputError: an unknown name or a value the model cannot have.
    """
    model = zoo_model(
        name,
        batch=batch,
        sequence=sequence,
        micro_batches=micro_batches,
        head=head,
        optimizer=optimizer,
        dtype=dtype,
    )
    return cached_graph(dataclasses.asdict(model), partial(capture_zoo_model, model), folder)


def capture_zoo_model(model: ZooModel) -> OpGraph:
    """Trace the training step, without the cache."""
    from envs.graphs.zoo_modules import capture

    return capture(model)
