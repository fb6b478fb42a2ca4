"""What was exported decides: `load_decider(folder)` needs no torch, no Ray and no simulator.

    decider = load_decider("unknown_durations")
    decision = decider.decide(state)

A cluster's scheduler is told the state of a live cluster (`agents.cluster.live`), a placement
policy a graph and a topology (`agents.placement.live`): plain data by `decider.schema`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from agents.cluster.shipped import scheduler_folder
from agents.decision import Decider
from envs.errors import InputError
from models.export.checkpoint import CLUSTER, PLACEMENT, SPEC_FILE, load_checkpoint


def decider_kind(checkpoint: str | Path) -> str:
    """What the policy of a checkpoint decides on: "cluster" or "placement".

    Raises:
        InputError: it is neither a folder nor shipped, a file in it is damaged, or it decides on
            something else.
    """
    folder = scheduler_folder(str(checkpoint))
    kind = load_checkpoint(folder).observation_kind
    if kind in (CLUSTER, PLACEMENT):
        return kind
    told = f"{kind!r} is unknown (known: {CLUSTER}, {PLACEMENT})"
    raise InputError(told, file=folder / SPEC_FILE, field="observation_kind")


def load_decider(checkpoint: str | Path, **limits: int | None) -> Decider:
    """The decider of a checkpoint folder, or of a shipped scheduler by its name.

    Args:
        checkpoint: folder or name.
        limits: of one decision, as `agents.cluster.live.ClusterDecider` or
            `agents.placement.live.PlacementDecider` lists them.

    Raises:
        InputError: as `decider_kind`, or there is no such limit.
    """
    made: Callable[..., Decider]
    if decider_kind(checkpoint) == CLUSTER:
        from agents.cluster.live import ClusterDecider as made  # noqa: N813
    else:
        from agents.placement.live import PlacementDecider as made  # noqa: N813
    known = [
        name for name in inspect.signature(made).parameters if "most" in name or name == "window"
    ]
    for name in limits:
        if name not in known:
            raise InputError(f"is unknown (known: {', '.join(known)})", field=name)
    folder = str(scheduler_folder(str(checkpoint)))
    return made(folder, **limits)
