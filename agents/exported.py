"""What was exported decides: `load_decider(folder)` needs no torch, no Ray and no simulator.

    decider = load_decider("unknown_durations")
    decision = decider.decide(state)

A cluster's scheduler is given the state of a live cluster (`agents.cluster.live`), a placement
policy a graph and a topology (`agents.placement.live`), a policy of any other environment what its
agent observes: plain data by `decider.schema`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.cluster.shipped import scheduler_folder, shipped_schedulers
from agents.decision import Decider, Decision, StateError, form
from agents.placement.shipped import placer_folder, shipped_placers
from envs.errors import InputError, meant
from models.artifacts import check_folder, read_json_object
from models.export.checkpoint import CLUSTER, SPEC_FILE
from models.export.placer import KIND as PLACER
from models.export.policy import KIND as POLICY
from models.export.policy import OnnxPolicy

PLACEMENT, ENVIRONMENT = "placement", "environment"


@form
class LiveObservation(TypedDict):
    """What an agent of an environment observes."""

    observation: dict[str, Any]
    """every array by its name, as lists"""


@form
class Act(TypedDict):
    """The most probable action."""

    action: Literal["act"]
    value: Any
    """a number, or a list of them"""


@form
class ActionAnswer(TypedDict):
    """What the agent does."""

    kind: Literal["meshwright.action"]
    schema_version: Literal[1]
    actions: list[Act]


class EnvironmentDecider(Decider):
    """Decides on observations by the policy of a folder of `models.export.policy`.

    Args:
        checkpoint: the folder.

    Raises:
        InputError: the folder is not one of these.
    """

    kind = ENVIRONMENT

    def __init__(self, checkpoint: str) -> None:
        self.policy = OnnxPolicy(checkpoint)
        super().__init__(
            (LiveObservation, "What an agent observes"), (ActionAnswer, "What the agent does")
        )

    @property
    def example(self) -> dict[str, Any]:
        shapes = self.policy.observation.items()
        arrays = {name: np.ones(about["shape"], about["dtype"]) for name, about in shapes}
        return {"observation": {name: array.tolist() for name, array in arrays.items()}}

    def _decide(self, state: LiveObservation) -> Decision:
        try:
            with self._lock:
                made = self.policy.decide(state["observation"])
        except InputError as error:
            raise StateError((("observation", str(error.record)), error.message)) from error
        actions = [{"action": "act", "value": np.asarray(made).tolist()}]
        content = {"kind": "meshwright.action", "schema_version": 1, "actions": actions}
        return Decision(actions, content)


def decider_kind(checkpoint: str | Path) -> str:
    """What the policy of a checkpoint decides on: "cluster", "placement" or "environment".

    Raises:
        InputError: it is neither a folder nor shipped.
    """
    return _found(checkpoint)[0]


def load_decider(checkpoint: str | Path, **limits: int | None) -> Decider:
    """The decider of a checkpoint folder, or of a shipped policy by its name.

    Args:
        checkpoint: folder or name.
        limits: of one decision, as `agents.cluster.live.ClusterDecider` or
            `agents.placement.live.PlacementDecider` lists them.

    Raises:
        InputError: as `decider_kind`, a file in it is damaged, or there is no such limit.
    """
    made: Callable[..., Decider]
    kind, folder = _found(checkpoint)
    if kind == CLUSTER:
        from agents.cluster.live import ClusterDecider as made  # noqa: N813
    elif kind == PLACEMENT:
        from agents.placement.live import PlacementDecider as made  # noqa: N813
    else:
        made = EnvironmentDecider
    known = [
        name for name in inspect.signature(made).parameters if "most" in name or name == "window"
    ]
    for name in limits:
        if name not in known:
            raise InputError(f"is unknown (known: {', '.join(known)})", field=name)
    return made(str(folder), **limits)


def _found(checkpoint: str | Path) -> tuple[str, Path]:
    """What it decides on, and its folder."""
    name = str(checkpoint)
    placer = name in shipped_placers() and not Path(name).is_dir()
    known = (*shipped_schedulers(), *shipped_placers())
    if name not in known and len(Path(name).parts) == 1 and not Path(name).is_dir():
        reason = f"{meant(name, known)}shipped: {', '.join(known)}"
        raise InputError(f"{name!r} is neither a folder nor shipped ({reason})", field="checkpoint")
    folder = placer_folder(name) if placer else scheduler_folder(name)
    check_folder(folder)
    kind = read_json_object(folder / SPEC_FILE).get("kind")
    return {PLACER: PLACEMENT, POLICY: ENVIRONMENT}.get(str(kind), CLUSTER), folder
