"""What communication models and simulators have in common."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from envs.step.order import OrderRule
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Simulator(Protocol):
    """Plays plans of one problem under one communication model."""

    @property
    def problem(self) -> StepProblem:
        """Graph, topology and durations."""

    def order(self, device: IntArray) -> IntArray:
        """(N,) the order the simulator's rule gives to placement `device` (N,)."""

    def step_time(self, device: IntArray, order: IntArray | None = None) -> float:
        """Seconds of one step of placement `device` (N,); without `order` the rule decides."""

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or as the rule decides."""

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,), with its peak memory."""


@runtime_checkable
class Communication(Protocol):
    """How transfers share the network: makes the simulator of a problem."""

    @property
    def name(self) -> str:
        """What tables and files call it."""

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> Simulator:
        """The simulator of `problem`; `order_rule` gives an order to a bare placement."""
