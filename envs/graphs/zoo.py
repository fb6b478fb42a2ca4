"""The zoo: training steps of well-known models, and of their families in sizes of one's own.

Nothing is downloaded, no weight is allocated; captured graphs are kept on disk. The modules
themselves are in `zoo_modules`, which alone imports torch and transformers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict, Unpack

from envs.errors import InputError, refused_in, require_one_of
from envs.graphs.op_graph import OpGraph
from envs.graphs.storage import load_graph, save_graph
from envs.units import read_count

_LOG = logging.getLogger(__name__)
CAPTURE_VERSION = 2  # raised with every change of what capturing gives
_PACKAGES = ("torch", "transformers")
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
                told = f"{self.micro_batches} does not divide the batch of {self.batch}"
                raise InputError(told, field="micro_batches")
            if self.hidden and self.heads and self.hidden % self.heads:
                told = f"{self.heads} does not divide hidden = {self.hidden}"
                raise InputError(told, field="heads")
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
                told = f"{model.sequence} exceeds the model's {own.positions} positions"
                raise InputError(told, field="sequence")
            model = replace(model, positions=model.sequence)
        bare = () if model.family == "moe" else ("none",)
        require_one_of(model.head, (own.head, *bare), field="head")
    return model


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


def zoo_graph(name: str, *, folder: Path | None = None, **shape: Unpack[ZooShape]) -> OpGraph:
    """The training step of a model of the zoo, from the disk cache in `folder` where possible.

    Raises:
        InputError: as `zoo_model`, which takes the same.
    """
    model = zoo_model(name, **shape)
    return cached_graph(asdict(model), partial(capture_zoo_model, model), folder)


def capture_zoo_model(model: ZooModel) -> OpGraph:
    """Trace the training step, without the cache."""
    from envs.graphs.zoo_modules import capture

    return capture(model)
