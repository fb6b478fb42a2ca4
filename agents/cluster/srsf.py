"""Shortest remaining service first."""

from __future__ import annotations

from agents.cluster.shortest_remaining import ShortestRemaining


class SRSF(ShortestRemaining):
    """The jobs with the fewest GPU-seconds left run (Tiresias, NSDI 2019, section 4.2)."""

    name = "srsf"
    times_gpus = True
