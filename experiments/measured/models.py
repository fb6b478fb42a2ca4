"""Transformers whose times were measured: their sizes, their kernels, and what these sum up to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from types import MappingProxyType
from typing import Any

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError, require_one_of
from envs.graphs.kernels import Kernels
from envs.graphs.transformer import (
    FAMILIES,
    Execution,
    Part,
    TransformerSize,
    kernels_of_part,
    parameters_of,
    parts_of,
    sums_of,
)
from envs.hardware.devices import DeviceSpec
from envs.hybrid.links import usual_link
from envs.network.allreduce import LINKS, Link, allreduce_seconds

KernelSeconds = Callable[[Kernels, DeviceSpec], FloatArray]


def _size(family: str, hidden: int, layers: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return {
        "family": family, "hidden": hidden, "layers": layers, "heads": heads,
        "vocabulary": vocabulary,
    }  # fmt: skip


# Sizes by the names of measured tables; vocabularies are those of Hugging Face's configs.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "bert_base": _size("bert", 768, 12, 12, 30522),
    "bert_large": _size("bert", 1024, 24, 16, 30522),
    "gpt2": _size("gpt", 768, 12, 12, 50257),
    "gpt2_medium": _size("gpt", 1024, 24, 16, 50257),
    "gpt2_large": _size("gpt", 1280, 36, 20, 50257),
    "gpt2_xl": _size("gpt", 1600, 48, 25, 50257),
    "gpt3_xl": _size("gpt", 3072, 24, 24, 50257),
    "gpt3_27": _size("gpt", 2560, 32, 32, 50257),
    "opt_13": _size("opt", 2048, 24, 32, 50272),
    "opt_27": _size("opt", 2560, 32, 32, 50272),
    "opt_67": _size("opt", 4096, 32, 32, 50272),
    "switchxl4": {
        **_size("switch", 1024, 24, 32, 32128), "head_size": 128, "feed_forward": 16384,
        "experts": 4,
    },
}  # fmt: skip
_FAMILIES = {
    **{word: word for word in ("opt", "llama", "bert", "t5", "mixtral", "switch", "gpt")},
    "megatron": "gpt", "mt_nlg": "gpt",
}  # fmt: skip
INFERENCE, FUSED, TRAINING = "inference", "fused inference", "training"
MODES = (INFERENCE, FUSED, TRAINING, "fused training")
NO_OTHERS: Mapping[str, str] = MappingProxyType({})


class NotPricedError(Exception):
    """What a measured row ran is not known well enough; the text says why."""


def known_as(text: str) -> str:
    """A name in lower case with underscores, as tables differ in them."""
    return re.sub(r"[\s.-]+", "_", text.strip().lower())


def named_size(name: str, sequence: int) -> TransformerSize:
    """A model by its name.

    Raises:
        InputError: no such model.
    """
    require_one_of(known_as(name), tuple(MODELS), field="model")
    return TransformerSize(**MODELS[known_as(name)], sequence=sequence)


def family_of(name: str) -> str:
    """The family that a model is called by.

    Raises:
        InputError: none.
    """
    found = next((word for word in _FAMILIES if word in known_as(name)), None)
    if found is None:
        reason = f"{name!r} is of no known family (known: {', '.join(FAMILIES)})"
        raise InputError(reason, field="model")
    return _FAMILIES[found]


def mode_of(text: str) -> str:
    """A mode by its name.

    Raises:
        InputError: no such mode.
    """
    mode = known_as(text).replace("_", " ")
    require_one_of(mode, MODES, field="mode")
    return mode


@dataclass(frozen=True)
class Server:
    """Devices of one kind, by what joins them."""

    device: DeviceSpec
    seconds_of: KernelSeconds
    links: Mapping[str, str] = field(
        default_factory=dict
    )  # beside the usual ones; also by `device/number`

    def link(self, devices: int) -> Link:
        """Of so many devices.

        Raises:
            InputError: `links` names an unknown one, or none is known.
        """
        name = self.device.name
        own = self.links.get(f"{name}/{devices}", self.links.get(name))
        found = own or usual_link(self.device)
        require_one_of(found, tuple(LINKS), field="links")
        return LINKS[found]

    def summed(self, size: float, devices: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return float(allreduce_seconds(size, devices, self.link(devices)))

    def layer(
        self, size: TransformerSize, part: Part, samples: int, execution: Execution
    ) -> FloatArray:
        """(2,) seconds forward and backward; devices that share the layer sum its activations.

        The loss takes three sums of a number for each token.
        """
        passes = kernels_of_part(size, part, samples, execution)
        found = np.array([self.seconds_of(kernels, self.device).sum() for kernels in passes])
        if execution.tensor > 1:
            activations = execution.element_bytes * samples * size.sequence * size.hidden
            found += np.array(sums_of(part)) * self.summed(activations, execution.tensor)
            if part is Part.HEAD and execution.training:
                found[0] += 3 * self.summed(4.0 * samples * size.sequence, execution.tensor)
        return found


@dataclass(frozen=True)
class Parallel:
    """How devices share a model: data, tensor or pipeline parallelism."""

    kind: str  # "", dp, tp or pp
    devices: int = 1
    micro_batches: int = 0  # of pp; 0: as many as stages, or fewer so that all are equal

    @classmethod
    def of(cls, text: str) -> Parallel:
        """From dp4, tp4, pp4 or pp4_8: pipeline parallelism with eight micro-batches.

        Raises:
            NotPricedError: it has another form.
        """
        name = known_as(text)
        if name in {"", "none", "1"}:
            return cls("")
        found = re.fullmatch(r"([dtp])(?:p|ata|ensor|ipeline)?_?(\d+)(?:_(\d+))?", name)
        if found is None or not int(found[2]):
            raise NotPricedError(f"parallel {text!r} is none of dp<n>, tp<n>, pp<n>[_<micro>]")
        return cls(f"{found[1]}p", int(found[2]), int(found[3] or 0))


def model_seconds(
    size: TransformerSize, mode: str, batch: int, parallel: Parallel, execution: Execution,
    server: Server,
) -> FloatArray:  # fmt: skip
    """(2,) seconds forward and backward of a whole model; backward is 0 but in training.

    The batch is that of all devices. In data parallelism each takes its share, and gradients are
    summed after the backward pass in float32. In tensor parallelism devices share every layer. In
    pipeline parallelism each has as many blocks, the first the embedding and the last the head; a
    pass of all micro-batches takes that of one through all stages and, for each further one, the
    slowest stage. Activations travel at the link's bandwidth.

    Raises:
        NotPricedError: the batch has no equal shares.
    """
    training, n = mode.endswith(TRAINING), parallel.devices
    execution = replace(execution, training=training, fused=mode.startswith("fused"))
    if parallel.kind == "tp":
        execution = replace(execution, tensor=n)
    shares = {"dp": n, "pp": parallel.micro_batches or gcd(n, batch)}.get(parallel.kind, 1)
    if batch % shares:
        raise NotPricedError(f"a batch of {batch} has no {shares} equal shares")
    parts = parts_of(size)
    known = {
        part: server.layer(size, part, batch // shares, execution) for part in dict.fromkeys(parts)
    }
    layers = np.array([known[part] for part in parts])
    found: FloatArray = layers.sum(axis=0)
    if parallel.kind == "pp":
        stage = np.clip((np.arange(len(parts)) - 1) * n // (len(parts) - 2), 0, n - 1)
        stages = np.array([layers[stage == number].sum(axis=0) for number in range(n)])
        sent = execution.element_bytes * batch / shares * size.sequence * size.hidden
        link = server.link(n)
        hop = sent / link.bandwidth + link.hop_s
        found = found + (n - 1) * hop + (shares - 1) * (stages.max(axis=0) + hop)
    if not training:
        found[1] = 0.0
        return found
    if parallel.kind == "dp":
        gradients = 4.0 * sum(parameters_of(size, part) for part in parts)
        found[1] += server.summed(gradients, n)
    return found
