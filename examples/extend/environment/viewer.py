"""Draw the layers of an episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envs.frame import new_frame, pixels
from examples.extend.environment.types import Layers


def layers_frame(layers: Layers, kept: Sequence[bool]) -> NDArray[np.uint8]:
    """(320, 640, 3) a bar of bytes for each layer: kept, computed again, or still to be decided."""
    figure = new_frame()
    axes = figure.add_subplot()
    colours = ["#4477aa" if keep else "#ee6677" for keep in kept]
    axes.bar(range(len(layers.nbytes)), layers.nbytes,
             color=colours + ["#cccccc"] * (len(layers.nbytes) - len(kept)))  # fmt: skip
    axes.set_title(f"{sum(kept)} of {len(kept)} layers keep their activations")
    return pixels(figure)
