"""What was exported decides: `load_decider(folder)` needs no torch, no Ray and no simulator.

    decider = load_decider("unknown_durations")
    decision = decider.decide(state)

A cluster's scheduler is told the state of a live cluster (`agents.cluster.live`), a placement
policy a graph and a topology (`agents.placement.live`): plain data by `decider.schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agents.decision import Decider
from envs.errors import InputError
from models.export.checkpoint import CLUSTER, SPEC_FILE, load_checkpoint


def load_decider(
    checkpoint: str | Path, *, cluster_limits: Mapping[str, int] | None = None
) -> Decider:
    """The decider of a checkpoint folder, or of a shipped scheduler by its name.

    Args:
        checkpoint: folder or name.
        cluster_limits: the limits of `agents.cluster.live.ClusterDecider`, where it becomes one.

    Raises:
        InputError: it is neither, a file in it is damaged, or it decides on something else.
    """
    from agents.cluster.shipped import scheduler_folder

    folder = scheduler_folder(str(checkpoint))
    kind = load_checkpoint(folder).observation_kind
    if kind == CLUSTER:
        from agents.cluster.live import ClusterDecider

        return ClusterDecider(str(folder), **(cluster_limits or {}))
    told = f"is of kind {kind!r}, nothing here decides by that"
    raise InputError(told, file=folder / SPEC_FILE, field="observation_kind")
