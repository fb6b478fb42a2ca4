"""Shortest remaining time first."""

from __future__ import annotations

from agents.cluster.shortest_remaining import ShortestRemaining


class SRTF(ShortestRemaining):
    """The jobs with the fewest seconds left run."""

    name = "srtf"
    times_gpus = False
