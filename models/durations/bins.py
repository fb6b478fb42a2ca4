"""What a posterior over remaining work is, without its network: bins, settings, and its folder.

The folder is durations.safetensors, the weights, and spec.json, the columns of their input, the
bins, the settings, origin and sha256. Reading it needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.cluster.environment.duration_features import (
    MEANS_WIDTH,
    NEAR_WIDTH,
    OWN_WIDTH,
    columns,
)
from envs.errors import InputError
from models.artifacts import read_checked_spec, read_settings, read_weights

FloatRows = NDArray[np.float32]

SHORTEST_S, LONGEST_S, EDGES = 30.0, 60 * 86_400.0, 25
BINS = EDGES + 1
SELF_WIDTH = OWN_WIDTH + MEANS_WIDTH
EVIDENCE_WIDTH = 3  # columns of what a finished neighbour says beside its own
ALIKE = (0.02, 0.2)  # differences of logarithms below which times are alike
SPREADS = (0.004, 0.03, 0.2)  # of the logarithm of the work of a job, to that of one it copies
SHORTEST_WORK_S = 1e-3  # less counts as that in logarithms
FAR = 60.0  # deviations beyond which nothing is left of a logistic distribution
LEAST_CHANCE = 1e-9  # of a bin, so that its logarithm is finite


def upper_edges_s() -> FloatArray:
    """(25,) upper edges of all bins but the last, in seconds: 30 s to 60 days, evenly in log."""
    return np.exp(np.linspace(math.log(SHORTEST_S), math.log(LONGEST_S), EDGES))


def middles() -> FloatArray:
    """(26,) ln of seconds in the middle of every bin, those at the ends as wide as the others."""
    edges = np.log(upper_edges_s())
    half = (edges[1] - edges[0]) / 2
    return np.concatenate([edges - half, edges[-1:] + half])


def gittins_tables() -> tuple[FloatRows, FloatRows]:
    """(26, 25) chance to finish by every edge, and mean seconds spent by then, of every bin.

    Within a bin remaining times are evenly spread; those in the last are above all edges.
    """
    upper = upper_edges_s()
    lower = np.concatenate([[0.0], upper])  # of all 26 bins
    below = np.arange(BINS)[:, None] <= np.arange(EDGES)
    middle = np.concatenate([(lower[:-1] + upper) / 2, [0.0]])
    spent = np.where(below, middle[:, None], upper)
    return below.astype(np.float32), spent.astype(np.float32)


@bounded
@dataclass(frozen=True)
class DurationConfig:
    """What a person chooses about the posterior and how it is fitted.

    Attributes:
        history: neighbours K on both sides.
        hidden: width of a neighbour's state.
        readout: width of the last hidden layer.
        heads: of the attention over neighbours.
        dropout: share of the last hidden layer left out in training.
        stretch: in training all times of a job are multiplied by one factor, log-uniform from
            1 / stretch to `stretch`: how fast the next cluster's users are is unknown.
        epochs: passes over the rows.
        batch: rows per step.
        learning_rate: at first; falls linearly to 0.
        weight_decay: AdamW's.
    """

    history: Count = 12
    hidden: Count = 32
    readout: Count = 128
    heads: Count = 2
    dropout: Annotated[float, Ge(0.0), Lt(1.0)] = 0.1
    stretch: Annotated[float, Ge(1.0)] = 5.0
    epochs: Count = 6
    batch: Count = 512
    learning_rate: Positive = 0.001
    weight_decay: NonNegative = 0.01

    def layers(self) -> dict[str, tuple[int, int]]:
        """Numbers that each linear layer of the network gives and takes, by its name."""
        hidden, seen = self.hidden, NEAR_WIDTH + EVIDENCE_WIDTH + SELF_WIDTH + 1
        return {
            "own": (hidden, SELF_WIDTH),
            "near": (hidden, seen),
            "near_again": (hidden, hidden),
            "attention": (self.heads, hidden),
            "readout": (self.readout, (1 + self.heads) * hidden),
            "bins": (BINS, self.readout),
            "copies": (hidden, hidden),
            "copies_again": (len(SPREADS), hidden),
            "no_copy": (1, self.readout),
        }


MOST_HISTORY = 1024  # neighbours; each has columns of its own
KIND, SCHEMA_VERSION = "meshwright.durations", 1
WEIGHTS_FILE, SPEC_FILE = "durations.safetensors", "spec.json"


def read_durations(folder: Path) -> tuple[DurationConfig, dict[str, FloatRows]]:
    """The settings and the weights in a folder that `models.durations.network` wrote.

    Raises:
        InputError: naming the file that is missing, damaged, of another kind or version, or about
            other columns or bins than those of today.
    """
    path = folder / SPEC_FILE
    spec = read_checked_spec(folder, KIND, SCHEMA_VERSION, [WEIGHTS_FILE])
    config = read_settings(path, DurationConfig)
    if config.history > MOST_HISTORY:
        message = f"{config.history} is more than {MOST_HISTORY}"
        raise InputError(message, file=path, field="config.history")
    for key, value in (
        ("history", config.history),
        ("columns", columns(config.history)),
        ("bins", upper_edges_s().tolist()),
    ):
        if spec.get(key) != value:
            raise InputError("is not what rows and bins are made of today", file=path, field=key)
    expected: dict[str, tuple[int, ...]] = {}
    for name, shape in config.layers().items():
        expected |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return config, read_weights(folder / WEIGHTS_FILE, lambda found: expected)
