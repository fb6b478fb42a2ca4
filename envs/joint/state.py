"""A training step between decisions: where its groups stand, how its pipes share the links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.joint.observation import AllocationState
from envs.joint.weighted_step import MakeSimulator, WeightedStep
from envs.placement.generator import PlacementInstance
from envs.placement.groups import GroupPlacement
from envs.placement.observation import PlacementState
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation


class JointState:
    """Placement and pipe levels of one instance, the step time they make, and the look-ahead.

    Args:
        top: levels go from -top to top.
        step: octaves of weight from a level to the next.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """

    def __init__(
        self,
        instance: PlacementInstance,
        top: int,
        step: float,
        simulator: MakeSimulator,
        order_rule: OrderRule | None,
    ) -> None:
        topology = instance.problem.topology
        self._given = instance.fused
        self.piped = WeightedStep(
            instance.problem, instance.fusion, top, step, simulator, order_rule
        )
        self.instance = replace(instance, fused=self.piped.problem)
        self.groups = GroupPlacement(self.piped.problem, instance.fusion)
        self._alone_rate = self.piped.alone_rate()
        self._server = topology.server
        self._devices_of = np.bincount(topology.server, minlength=topology.num_servers)  # (S,)

    def follows(self, instance: PlacementInstance) -> bool:
        """Take over `instance` if it is about the same fused problem; whether it is."""
        if instance.fused is not self._given:
            return False
        self.instance = replace(instance, fused=self.piped.problem)
        return True

    @property
    def allocation(self) -> BandwidthAllocation:
        """The rates of the channels."""
        return self.piped.allocation

    def start(self, devices: Any, levels: Any, length: int, turn: int | None) -> None:
        """Nothing decided: groups on `devices` (G,), pipes at `levels` (S, S).

        The first `length` groups are the current run; `turn` as in `advance`.

        Raises:
            InputError: either is not what it should be, or the step takes no time.
        """
        self.groups.start(devices)
        self.groups.look(0, length)
        shape, top = self.piped.level.shape, self.piped.top
        given = np.array(levels, dtype=np.int64)
        if given.shape != shape or (np.abs(given) > top).any():
            raise InputError(f"is not {shape} levels from {-top} to {top}", field="options.levels")
        self.piped.set_levels(given)
        self._play()
        self.reference = self.step_time  # seconds
        if not self.reference > 0.0:
            name = self.instance.fused.graph.name
            raise InputError("a step takes no time", file=f"graph {name}")
        self._look(turn)

    def decide(self, device: int, changes: list[int]) -> None:
        """Put the current run on `device` and change levels as the allocators' actions say.

        Action 0 keeps, 1 + i raises the pipe to the i-th other server, S + i lowers it; a level at
        its end stays.
        """
        before = self.groups.device.copy()
        self.groups.place(device)
        level, others = self.piped.level.copy(), len(changes) - 1
        for server, action in enumerate(changes):
            if action:
                lower, index = divmod(action - 1, others)
                other = index + (index >= server)
                changed = level[server, other] + (-1 if lower else 1)
                if abs(changed) <= self.piped.top:
                    level[server, other] = changed
        if (level != self.piped.level).any():
            self.piped.set_levels(level)
            self._play()
        elif (self.groups.device != before).any():
            self._play()

    def advance(self, group: int, length: int, turn: int | None) -> None:
        """Make the run of `length` groups from `group` the current one and look ahead.

        Of the allocators only that of server `turn` may act next, or all of them.
        """
        self.groups.look(group, length)
        self._look(turn)

    def finish(self, turn: int | None) -> FloatArray:
        """(D,) bytes of the simulated peak memory; looks ahead for the last observation."""
        self._look(turn)
        timeline = self.piped.simulator.run(self.groups.pieces, self._order)
        return timeline.peak_memory

    def placement_state(self) -> PlacementState:
        """What the placer's observation is made of."""
        return PlacementState(
            instance=self.instance,
            device=self.groups.device,
            placed=self.groups.placed,
            current=self.groups.current,
            used_bytes=self.groups.used,
            action_mask=self.groups.mask,
            candidate_s=self._candidate_s,
            reference_s=self.reference,
            length=self.groups.run.stop - self.groups.run.start,
        )

    def allocation_state(self, decided: float) -> AllocationState:
        """What the allocators' observations are made of; `decided`: share of the episode."""
        piped, groups = self.piped, self.groups
        shape = piped.level.shape
        compute = np.bincount(
            self._server, weights=groups.compute_seconds(), minlength=len(self._devices_of)
        )
        return AllocationState(
            level=piped.level,
            top=piped.top,
            rate=piped.rate,
            equal_rate=piped.equal_rate,
            alone_rate=self._alone_rate,
            seconds=piped.crossings.seconds.reshape(shape),
            nbytes=piped.crossings.nbytes.reshape(shape),
            transfers=piped.crossings.transfers.reshape(shape),
            changed_s=self._changed_s,
            step_time_s=self.step_time,
            reference_s=self.reference,
            compute_s=compute / self._devices_of,
            decided=decided,
            placed=float(groups.placed.mean()),
            current_server=int(self._server[groups.device[groups.current]]),
        )

    def _play(self) -> None:
        self.step_time, self._order = self.piped.play(self.groups.pieces)

    def _look(self, turn: int | None) -> None:
        """What the agents' actions would do: (D,) for the placer, (S, S, 2) for the allocators."""
        devices, variants = self.groups.variants()
        self._candidate_s = np.full(self.groups.able.shape[1], np.inf)
        moved = (variants != self.groups.pieces).any(axis=1)
        self._candidate_s[devices] = self.step_time
        self._candidate_s[devices[moved]] = self.piped.simulator.step_times(variants[moved])
        self._changed_s = self.piped.look(self.groups.pieces, self._order, turn)
