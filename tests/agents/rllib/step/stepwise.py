"""`meshwright/Placement-v0` as a subject: the smallest one that decides step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.rllib.step.lanes import Decisions, StepSubject
from agents.rllib.step.moves import kicked
from agents.rllib.step.subjects import PLACER


class PlacementSubject(StepSubject):
    """Decisions: `device` (G,)."""

    agents: Sequence[str] = (PLACER,)

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        return bool(info["placed"] == len(env.group_device))

    def decisions(self, env: Any) -> Decisions:
        return {"device": env.group_device}

    def restart(
        self, env: Any, near: Decisions, other: Decisions, rng: np.random.Generator
    ) -> dict[str, Any]:
        assert self.restarts is not None
        return {"start": kicked(near["device"], env.able, self.restarts.kick, rng)}
