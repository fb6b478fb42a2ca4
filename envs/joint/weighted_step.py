"""`WeightedStep`: a fused training step under a placement and pipe weights that both may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envs.graphs.contraction import Fusion
from envs.hardware.network import Network
from envs.joint.look_ahead import changed_step_times, crossings_of, find_crossings
from envs.joint.shares import pipe_rates, shares_of
from envs.step.order import OrderRule
from envs.step.pipe_times import piped_problem, set_pipe_rates
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.weighted_allocation import weighted_allocation

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class MakeSimulator(Protocol):
    """Makes the simulator of a problem, which gives bare placements their order."""

    def __call__(
        self, problem: StepProblem, *, order_rule: OrderRule | None = None
    ) -> StepSimulator:
        """The simulator of `problem`."""


class WeightedStep:
    """Simulates the pieces of a fusion through pipes whose weights are 2^(level x step).

    Args:
        problem: every operator.
        fusion: its groups.
        top: levels go from -top to top.
        step: octaves from a level to the next.
        simulator: plays a problem; a `StepSimulator` by default.
        order_rule: gives a placement its order; 1F1B by default.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """

    def __init__(
        self,
        problem: StepProblem,
        fusion: Fusion,
        top: int,
        step: float,
        simulator: MakeSimulator = StepSimulator,
        order_rule: OrderRule | None = None,
    ) -> None:
        self.network: Network = problem.topology.network
        servers = self.network.num_servers
        self.top = top
        self._shares = shares_of(self.network, step)
        self.level: IntArray = np.zeros((servers, servers), dtype=np.int64)
        self.rate: FloatArray = np.zeros((servers, servers))  # bytes/s
        pipe_rates(self._shares, self.level.ravel(), self.rate.ravel())
        piped = piped_problem(problem, self.rate, fusion)
        self.problem: StepProblem = piped.problem  # the pieces, at equal weights
        self._table = piped.table
        self.equal_rate: FloatArray = self.rate.copy()  # (S, S) bytes/s at equal weights
        own = replace(piped.problem, transfer_seconds=piped.problem.transfer_seconds.copy())
        self.simulator = simulator(own, order_rule=order_rule)
        self.crossings = crossings_of(self.simulator.arrays, servers)
        self._fixed_total = piped.table.fixed.sum(axis=0)  # (L,)
        self._bytes_total = piped.table.nbytes.sum(axis=0)  # (L,)

    @property
    def allocation(self) -> BandwidthAllocation:
        """The rates of the channels at the present levels."""
        weight = np.exp2(self.level * self._shares.step).ravel()
        return weighted_allocation(self.network, weight[self._shares.pipe])

    @property
    def class_seconds(self) -> FloatArray:
        """(L,) seconds all tensors together would take on each link class."""
        table = self._table
        given = np.minimum(self.rate.ravel()[np.maximum(table.pipe, 0)], table.inner)
        moving = np.divide(
            self._bytes_total, given, out=np.zeros_like(given), where=self._bytes_total > 0
        )
        return np.asarray(self._fixed_total + moving)

    def set_levels(self, level: IntArray) -> None:
        """Give the pipes `level` (S, S) and the rates that follow."""
        self.level[:] = level
        pipe_rates(self._shares, self.level.ravel(), self.rate.ravel())
        set_pipe_rates(self._table, self.rate.ravel(), self.simulator.arrays.transfer_seconds)

    def play(self, device: IntArray) -> tuple[float, IntArray]:
        """Seconds of placement `device` (N,) at the present rates, and (N,) its order."""
        order = self.simulator.order(device)
        return self.simulator.step_time(device, order), order

    def look(
        self, device: IntArray, order: IntArray | None = None, turn: int | None = None
    ) -> FloatArray:
        """Find the crossings of placement `device` (N,) and what every change of a level does.

        Args:
            device: the placement.
            order: (N,) in which it is played, whatever the levels; that of the simulator if None.
            turn: the only server whose pipes are changed, or None for all.

        Returns:
            (S, S, 2) step time in seconds with the level of a pipe one higher, one lower; inf where
            there is no such level.
        """
        arrays, servers = self.simulator.arrays, len(self.level)
        if order is None:
            order = self.simulator.order(device)
        asked = np.full((servers, servers), turn is None)
        if turn is not None:
            asked[turn] = True
        find_crossings(arrays, self._table, device, self.crossings)
        seconds = np.empty((servers * servers, 2))
        changed_step_times(
            arrays, self.simulator.scratch, self._table, self._shares, self.crossings, device,
            order, self.level.ravel(), self.top, asked.ravel(),
            self.rate.ravel(), np.empty(servers * servers), seconds,
        )  # fmt: skip
        return seconds.reshape(servers, servers, 2)

    def alone_rate(self) -> FloatArray:
        """(S, S) bytes/s each pipe would have if no other had any; 0 on the diagonal."""
        pipe = self._shares.pipe
        alone = np.zeros(self.rate.size)
        for number in np.unique(pipe):
            allocation = weighted_allocation(self.network, (pipe == number).astype(np.float64))
            alone[number] = allocation.rate.sum()
        return alone.reshape(self.rate.shape)
