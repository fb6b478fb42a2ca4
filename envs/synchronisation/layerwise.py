"""Training with a collective for every layer: measured layers of models, and iterations of them.

The layers are those of a simulator of SwitchML's authors (Ho, *Efficient and Scalable Deep Learning
Through In-Network Aggregation*, KAUST 2023): per layer the elements of its gradient and the times
of its forward pass, backward pass and update on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.synchronisation.plan import ELEMENT
from envs.text_table import RowChecks, read_table

PICOSECOND = 1e-12
JITTER = 0.02  # standard deviation of a time over its mean, in the authors' simulator
_TIMES = ("forward_ps", "backward_ps", "update_ps")
_COLUMNS = ("gpu", "model", "layer", "elements", *_TIMES)

# Bytes of some gradients to the seconds that summing each over all workers takes.
Collective = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class LayeredModel:
    """L layers in the order of the forward pass; the gradient of one is summed as a whole."""

    name: str
    elements: IntArray  # (L,)
    forward: FloatArray  # (L,) seconds
    backward: FloatArray  # (L,) seconds
    update: FloatArray  # (L,) seconds, after the gradient is summed; others do not wait for it

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.elements)

    @property
    def sizes(self) -> FloatArray:
        """(L,) bytes of the gradients."""
        return self.elements.astype(np.float64) * ELEMENT


def read_layered_models(path: str | Path, gpu: str) -> dict[str, LayeredModel]:
    """The models in a CSV file with a header, by name, as measured on `gpu`.

    Columns: gpu, model, layer (0, 1, ... in rows that ascend), elements, forward_ps, backward_ps,
    update_ps.

    Raises:
        InputError: naming file, line and field; a GPU that the file does not hold.
    """
    table = read_table(path, _COLUMNS)
    checks = RowChecks(table)
    layer = checks.whole("layer")
    turn = pl.DataFrame(table.columns).select(pl.int_range(pl.len()).over("gpu", "model"))
    checks.reject(layer != turn.to_series().to_numpy(), "layer", "does not follow the layer before")
    elements = checks.whole("elements", 1)
    times = np.stack([checks.whole(name) for name in _TIMES]) * PICOSECOND
    checks.finish(strict=True)
    gpus = table.columns["gpu"]
    own = np.flatnonzero((gpus == gpu).to_numpy())
    if not len(own):
        known = ", ".join(sorted(set(gpus)))
        raise InputError(f"holds no layers of {gpu!r}, only of {known}", file=path, field="gpu")
    named, models = table.columns["model"].gather(own), {}
    for model in named.unique(maintain_order=True):
        rows = own[(named == model).to_numpy()]
        models[model] = LayeredModel(model, elements[rows], *times[:, rows])
    return models


def training_seconds(
    model: LayeredModel,
    collective: Collective,
    iterations: int,
    workers: int = 1,
    jitter: float = 0.0,
    seeds: Sequence[int] = (0,),
) -> FloatArray:
    """(seeds,) seconds from the first forward pass to the last update on the last worker.

    Backward passes go from the last layer to the first. A layer's gradient is ready when its
    backward pass is done on every worker; gradients are summed one after another in that order. The
    update follows; the next iteration's forward pass of the layer waits for it.

    Args:
        jitter: standard deviation of every time of every worker, over its mean; times are normal.
    """
    took = collective(model.sizes)
    drawn = np.stack(
        [
            np.random.default_rng(seed).standard_normal((iterations, 3, model.num_layers, workers))
            for seed in seeds
        ],
        axis=-2,
    )  # (iterations, 3, L, seeds, W)
    drawn = np.maximum(0.0, 1.0 + jitter * drawn)
    mean = np.stack([model.forward, model.backward, model.update])
    times = drawn * mean[None, :, :, None, None]
    updated = np.zeros((model.num_layers, len(seeds), workers))
    now = np.zeros((len(seeds), workers))
    network = np.zeros(len(seeds))  # when it is free
    for forward, backward, update in times:
        for layer in range(model.num_layers):
            now = np.maximum(now, updated[layer]) + forward[layer]
        for layer in reversed(range(model.num_layers)):
            now = now + backward[layer]
            network = np.maximum(network, now.max(axis=1)) + took[layer]
            updated[layer] = network[:, None] + update[layer]
    ends: FloatArray = np.maximum(updated.max(axis=(0, 2)), now.max(axis=1))
    return ends
