"""What an episode decides about."""

from __future__ import annotations

from dataclasses import dataclass

from envs.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Layers:
    """The L layers of one training step, first to last."""

    seconds: FloatArray  # (L,) to compute each a second time
    nbytes: FloatArray  # (L,) its activations
    room: float  # bytes for all activations that are kept
