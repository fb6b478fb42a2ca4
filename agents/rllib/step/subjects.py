"""What is learned step by step: how bandwidth is shared, alone or with where a step runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.rllib.config import Training
from agents.rllib.step.lanes import Decisions, StepSubject, one_architecture
from agents.rllib.step.moves import crossed, exchanged, kicked
from envs.errors import InputError
from models.architecture import Architecture
from models.step.allocator import TeamConfig

PLACER, ALLOCATOR = "placer", "allocator"  # those of a team: placer, allocator_0, allocator_1, ...


class JointSubject(StepSubject):
    """`meshwright/Joint-v0`; decisions: `device` (G,) and `levels` (S, S) of the pipes.

    The placer has a module of its own; allocators share one, or have one each, called as they are.
    Every group stands somewhere at all times, so that every state is a whole plan.

    A start near a plan is the fastest of `Restarts.draws`, each drawn by one or two changes, half
    of them after a crossing with another plan; the levels are those of the plan. A change moves a
    run of up to `kick` groups to a random device or, half of the time, exchanges two devices within
    a run of up to twice as many.
    """

    team = True
    margin = 0.01  # fused pieces rank plans about so well, and the order is chosen on all operators

    def __init__(self, env: Any, training: Training) -> None:
        super().__init__(env, training)
        self.agents = tuple(env.possible_agents)

    def module_of(self, agent: str) -> str:
        return agent if agent == PLACER or self.parameters == "separate" else ALLOCATOR

    def architectures(self, model: Any) -> dict[str, Architecture]:
        if not isinstance(model, TeamConfig):
            raise InputError(f"{type(model).__name__} is no team: take model=joint", field="model")
        return {
            self.module_of(agent): one_architecture(
                model.placer if agent == PLACER else model.allocator
            )
            for agent in self.agents
        }

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        return True

    def decisions(self, env: Any) -> Decisions:
        return {"device": env.group_device, "levels": env.levels}

    def restart(
        self, env: Any, near: Decisions, other: Decisions, rng: np.random.Generator
    ) -> dict[str, Any]:
        assert self.restarts is not None
        placement, levels = near["device"], near["levels"]
        draws = range(self.restarts.draws)
        drawn = np.array([self._drawn(env, placement, other["device"], rng) for _ in draws])
        seconds = env.step_times(drawn, levels)
        seconds[(drawn == placement).all(axis=1)] = np.inf  # the plan itself is no other start
        return {"start": drawn[int(seconds.argmin())], "levels": levels}

    def _drawn(
        self,
        env: Any,
        placement: NDArray[np.int64],
        other: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """(G,) a placement near `placement`."""
        assert self.restarts is not None
        if rng.random() < 0.5:
            placement = crossed(placement, other, env.able, rng)
        for _ in range(int(rng.integers(1, 3))):
            change = kicked if rng.random() < 0.5 else exchanged
            placement = change(placement, env.able, self.restarts.kick, rng)
        return placement


class BandwidthSubject(StepSubject):
    """`meshwright/Bandwidth-v0`, discrete or continuous; decisions: `rate` (P, C) bytes/s."""

    agents: Sequence[str] = (ALLOCATOR,)
    looks_ahead = False

    def __init__(self, env: Any, training: Training) -> None:
        if training.restarts is not None and training.restarts.share > 0.0:
            message = "every phase gets its bandwidth once, from the first on: null it must be"
            raise InputError(message, field="restarts")
        super().__init__(env, training)

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        return bool(info["phase"] == info["phases"])

    def decisions(self, env: Any) -> Decisions:
        return {"rate": np.stack([allocation.rate for allocation in env.allocations])}
