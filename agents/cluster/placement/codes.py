"""Numbers by which compiled code knows the placement rules."""

from __future__ import annotations

from typing import Protocol

from agents.cluster.policy import PlacementRule

COUNT, YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT, RANDOM, SPREAD, LEAST_INTERFERENCE = range(8)


class CompiledRule(PlacementRule, Protocol):
    """A placement rule that `choose.choose` knows."""

    code: int


COUNTED = frozenset({COUNT, RANDOM, SPREAD})  # a job fits as soon as enough GPUs are free
PACKED = frozenset({YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT})  # on nodes of equal size
