"""The policies of a team: one for the placer, one shared by all allocators."""

from __future__ import annotations

from dataclasses import dataclass

from models.architecture import Architecture


@dataclass(frozen=True)
class TeamConfig:
    """What a person chooses about the policies of `meshwright/Joint-v0`.

    Attributes:
        placer: decides where the groups of the step run.
        allocator: decides on bandwidth, for each server the same weights.
    """

    placer: Architecture
    allocator: Architecture
