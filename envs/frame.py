"""What `render_mode="rgb_array"` returns of every environment: a figure of 640 x 320 pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN, DPI = 8.0, 4.0, 80


def new_frame() -> Figure:
    """An empty figure that no window shows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, layout="constrained")


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """(320, 640, 3) the figure, drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), dtype=np.uint8)[:, :, :3].copy()
