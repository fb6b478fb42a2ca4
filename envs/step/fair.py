"""The communication model `fair`: all transfers share the physical links at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.step.bottlenecks import Bottlenecks, bottlenecks
from envs.step.fair_kernel import fair_state, play_fair, rate_scratch
from envs.step.kernel import step_arrays
from envs.step.order import OneFOneB, OrderRule
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_UNRECORDED = np.zeros((4, 0))


class FairSimulator:
    """Plays plans of one problem whose transfers share the links of the network max-min fairly.

    Devices run their operators as under `envs.step.step.StepSimulator`. A tensor is sent
    once per receiving device, as soon as its producer has ended. The transfer waits for the latency
    of its link class; then it drains (seconds - latency) x bandwidth bytes, the figures of the
    class, over links that all transfers under way share: the rates are max-min fair at every
    instant (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). With `multipath` a
    transfer has a subflow on every path of its pair, fair by themselves, and drains at the sum of
    their rates; else it takes the path that leaves by the NIC of the pair's route, chosen by the
    receiving device where there are several. A transfer that takes no longer than its latency takes
    its time and moves nothing. Alone on one path a transfer takes its `transfer_seconds`.

    The order decides only who computes first: no port serves anyone before others.

    Not thread safe: each thread makes its own. Copies and pickles freely.

    Args:
        multipath: whether transfers take all paths of their pair.

    Raises:
        InputError: no path leads from a device to another one.
    """

    def __init__(
        self, problem: StepProblem, *, multipath: bool, order_rule: OrderRule | None = None
    ) -> None:
        self.problem = problem
        self.order_rule: OrderRule = order_rule if order_rule is not None else OneFOneB()
        self._arrays = step_arrays(problem)
        self._links: Bottlenecks = bottlenecks(problem.topology, multipath)
        self._latency = np.ascontiguousarray(problem.topology.class_latency, dtype=np.float64)
        self._state = fair_state(self._arrays)
        self._rates = rate_scratch(self._links)

    def order(self, device: IntArray) -> IntArray:
        """(N,) the order the rule gives to placement `device` (N,)."""
        return self.order_rule(self.problem.graph, device)

    def step_time(self, device: IntArray, order: IntArray | None = None) -> float:
        """Seconds of one step of placement `device` (N,); without `order` the rule decides."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        return self._play(device, order, _UNRECORDED)

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or as the rule decides."""
        return np.array([self.step_time(device, order) for device in devices])

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,), with its peak memory.

        A transfer starts when its producer ends and finishes when its last byte has arrived.
        """
        device = np.ascontiguousarray(device, dtype=np.int64)
        n, uses = len(device), len(self._arrays.use_op)
        times = np.full((4, max(n, uses)), np.inf)
        self._play(device, order, times)
        start, finish = times[0, :n].copy(), times[1, :n].copy()
        moved = np.flatnonzero(np.isfinite(times[2, :uses]))
        moved = moved[np.argsort(times[2, moved], kind="stable")]
        return Timeline.of(
            self.problem, device, start, finish, self._arrays.use_tensor[moved],
            device[self._state.producer[moved]], device[self._arrays.use_op[moved]],
            times[2, moved], times[3, moved],
        )  # fmt: skip

    def _play(self, device: IntArray, order: IntArray | None, times: FloatArray) -> float:
        order = self.order(device) if order is None else np.asarray(order, dtype=np.int64)
        seconds: float = play_fair(
            self._arrays, self._links, self._latency, self._state, self._rates, device, order,
            times,
        )  # fmt: skip
        return seconds


@dataclass(frozen=True)
class Fair:
    """All transfers under way share the links of the network max-min fairly.

    Args:
        multipath: whether a transfer takes all paths of its pair of devices, or one.
    """

    name: str
    multipath: bool

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> FairSimulator:
        """The simulator of `problem`."""
        return FairSimulator(problem, multipath=self.multipath, order_rule=order_rule)
