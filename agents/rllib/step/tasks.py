"""What a learner has to know of a kind of environment beyond its interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID

from envs.errors import InputError
from models.architecture import Architecture
from models.step.allocator import LOWER, RAISE, TeamConfig

Found = Mapping[str, NDArray[Any]]  # a plan as the arrays of its decisions, by name

PLACER, ALLOCATOR = "placer", "allocator"  # agents are called placer, allocator_0, allocator_1, ...


class Task(Protocol):
    """The plans of an environment, and who decides on them.

    `team` is whether several agents act, in a PettingZoo `ParallelEnv` with one reward for all;
    otherwise one acts in a Gymnasium environment. `looks_ahead` is whether agents see what the step
    would come to after each choice. `margin`, a share of the step time: a plan so much slower than
    the fastest before, in the environment, is still worth a simulation of every operator.
    """

    team: bool
    looks_ahead: bool
    margin: float

    def architectures(self, model: Any) -> dict[str, Architecture]:
        """The policy of every module, by its name.

        Raises:
            InputError: `model` is not what this task needs.
        """

    def module_of(self, agent: str) -> str:
        """The module that decides for `agent`."""

    def look_ahead(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.floating]:
        """(B, A) what each choice would come to, less being better, where the task looks ahead.

        Args:
            observation: the arrays of B observations of one module, stacked.
        """

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        """Whether the present state of `env`, which `info` tells of, is a whole plan."""

    def outcome(self, env: Any) -> tuple[float, bool]:
        """Step time in seconds on every operator, and whether the plan fits."""

    def plan(self, env: Any) -> Found:
        """The decisions of the present plan."""

    def restart(
        self, env: Any, plan: Found, other: Found, rng: np.random.Generator
    ) -> dict[str, Any]:
        """The options of a reset that starts near `plan`, with something of `other`, maybe itself.

        Raises:
            InputError: the environment cannot start from a plan.
        """


class PlacementTask:
    """`meshwright/Placement-v0`.

    The environment's `info` holds `placed`; `unwrapped.plan_outcome()` gives step time and
    feasibility of the present placement on every operator, `unwrapped.able` (G, D) which device can
    run which group, `unwrapped.group_device` (G,) where each stands.

    Args:
        kick: a start from a plan has a run of up to this many groups moved to a random device.
    """

    team = False
    looks_ahead = True
    margin = 0.0

    def __init__(self, kick: int) -> None:
        self.kick = kick

    def architectures(self, model: Any) -> dict[str, Architecture]:
        return {DEFAULT_MODULE_ID: one_architecture(model)}

    def module_of(self, agent: str) -> str:
        del agent
        return str(DEFAULT_MODULE_ID)

    def look_ahead(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.floating]:
        """The last feature of each device."""
        return observation["candidate_features"][:, :, -1]

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        return bool(info["placed"] == len(env.group_device))

    def outcome(self, env: Any) -> tuple[float, bool]:
        step_time, fits = env.plan_outcome()
        return float(step_time), bool(fits)

    def plan(self, env: Any) -> Found:
        """`device` (G,)."""
        return {"device": env.group_device}

    def restart(
        self, env: Any, plan: Found, other: Found, rng: np.random.Generator
    ) -> dict[str, Any]:
        return {"start": kicked(plan["device"], env.able, self.kick, rng)}


def one_architecture(model: Any) -> Architecture:
    """`model`, which must describe a single policy.

    Raises:
        InputError: it describes something else.
    """
    if not isinstance(model, Architecture):
        raise InputError(f"{type(model).__name__} is no policy of a single agent", field="model")
    return model


def kicked(
    placement: NDArray[np.int64],
    able: NDArray[np.bool_],
    longest: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with a run of 1 to `longest` consecutive groups on one random device.

    Groups of the run that the device cannot run, by `able` (G, D), stay where they are.
    """
    start = placement.copy()
    if longest > 0:
        first = int(rng.integers(len(start)))
        device = int(rng.integers(able.shape[1]))
        run = slice(first, first + int(rng.integers(1, longest + 1)))
        start[run] = np.where(able[run, device], device, start[run])
    return start


class JointTask(PlacementTask):
    """`meshwright/Joint-v0`: one module for the placer, one for all allocators.

    As `PlacementTask`; `unwrapped.levels` (S, S) are the levels of the pipes. Every group stands
    somewhere at all times, so that every state is a whole plan.

    Args:
        kick: a kick moves a run of up to this many groups to a random device or, half of the time,
            exchanges two devices within a run of up to twice as many.
        draws: a start from a plan is the fastest of this many, drawn by one or two kicks each,
            half of them after a crossing with another plan. The levels are those of the plan.
    """

    team = True
    margin = 0.01  # fused pieces rank plans about so well, and the order is chosen on all operators

    def __init__(self, kick: int, draws: int = 1) -> None:
        super().__init__(kick)
        self.draws = draws

    def architectures(self, model: Any) -> dict[str, Architecture]:
        if not isinstance(model, TeamConfig):
            raise InputError(f"{type(model).__name__} is no team: take model=joint", field="model")
        return {
            PLACER: one_architecture(model.placer),
            ALLOCATOR: one_architecture(model.allocator),
        }

    def module_of(self, agent: str) -> str:
        """The placer's own, or the one that the allocators share."""
        return PLACER if agent == PLACER else ALLOCATOR

    def look_ahead(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.floating]:
        """Of the placer as in placement; of an allocator 0 for keeping, and that of each change."""
        if "pipe_features" not in observation:
            return super().look_ahead(observation)
        pipes = observation["pipe_features"]
        keep = np.zeros((len(pipes), 1))
        return np.concatenate([keep, pipes[:, :, RAISE], pipes[:, :, LOWER]], axis=1)

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        return True

    def plan(self, env: Any) -> Found:
        """`device` (G,) and `levels` (S, S)."""
        return {"device": env.group_device, "levels": env.levels}

    def restart(
        self, env: Any, plan: Found, other: Found, rng: np.random.Generator
    ) -> dict[str, Any]:
        """From the fastest of the placements drawn around that of `plan`; its own is none."""
        placement, levels = plan["device"], plan["levels"]
        drawn = np.array([self._drawn(env, placement, other, rng) for _ in range(self.draws)])
        seconds = env.step_times(drawn, levels)
        seconds[(drawn == placement).all(axis=1)] = np.inf
        return {"start": drawn[int(seconds.argmin())], "levels": levels}

    def _drawn(
        self, env: Any, placement: NDArray[np.int64], other: Found, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """(G,) a placement near `placement`."""
        if rng.random() < 0.5:
            placement = crossed(placement, other["device"], env.able, rng)
        for _ in range(int(rng.integers(1, 3))):
            change = kicked if rng.random() < 0.5 else exchanged
            placement = change(placement, env.able, self.kick, rng)
        return placement


class BandwidthTask:
    """`meshwright/Bandwidth-v0`, discrete or continuous.

    The environment's `info` holds `phase` and `phases`; `unwrapped.plan_outcome()` gives step time
    and feasibility, `unwrapped.allocations` the rates of every phase.
    """

    team = False
    looks_ahead = False
    margin = 0.0

    def architectures(self, model: Any) -> dict[str, Architecture]:
        return {DEFAULT_MODULE_ID: one_architecture(model)}

    def module_of(self, agent: str) -> str:
        del agent
        return str(DEFAULT_MODULE_ID)

    def look_ahead(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.floating]:
        raise NotImplementedError

    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        return bool(info["phase"] == info["phases"])

    def outcome(self, env: Any) -> tuple[float, bool]:
        step_time, fits = env.plan_outcome()
        return float(step_time), bool(fits)

    def plan(self, env: Any) -> Found:
        """`rate` (P, C) bytes/s."""
        return {"rate": np.stack([allocation.rate for allocation in env.allocations])}

    def restart(
        self, env: Any, plan: Found, other: Found, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Impossible: an episode decides every phase once."""
        raise InputError("episodes about bandwidth start anew: 0 it must be", field="restart_share")


def exchanged(
    placement: NDArray[np.int64],
    able: NDArray[np.bool_],
    longest: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with two devices exchanged within a run of up to 2 x `longest` groups.

    Groups that the other device cannot run, by `able` (G, D), stay where they are. With one device
    nothing changes.
    """
    start = placement.copy()
    devices = able.shape[1]
    if longest > 0 and devices > 1:
        first = int(rng.integers(len(start)))
        run = slice(first, first + int(rng.integers(1, 2 * longest + 1)))
        one, other = rng.choice(devices, 2, replace=False)
        before = placement[run]
        start[run] = np.where((before == one) & able[run, other], other, start[run])
        start[run] = np.where((before == other) & able[run, one], one, start[run])
    return start


def crossed(
    placement: NDArray[np.int64],
    other: NDArray[np.int64],
    able: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with a random run of groups where `other` (G,) has them, devices renamed.

    The devices are renamed at random half of the time: plans that differ in the names of equal
    devices alone are one. Groups that the device then meant cannot run, by `able` (G, D), stay.
    """
    groups, devices = able.shape
    names = rng.permutation(devices) if rng.random() < 0.5 else np.arange(devices)
    first = int(rng.integers(groups))
    run = np.arange(first, int(rng.integers(first, groups)) + 1)
    there = names[other[run]]
    start = placement.copy()
    start[run] = np.where(able[run, there], there, start[run])
    return start
