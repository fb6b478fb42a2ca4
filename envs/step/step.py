"""Simulate one training step of a placed graph, and what communication models have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.step.kernel import Log, Scratch, StepArrays, play, relabel, scratch, step_arrays
from envs.step.order import OneFOneB, OrderRule, Rule, sort_by_key
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline


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


@dataclass(frozen=True)
class Ports:
    """What a transfer holds while it lasts: its two ports, or nothing, since it takes no time.

    A `envs.step.step.Communication`.
    """

    name: str
    uses_ports: bool = True  # whether a transfer holds them, and takes time

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> StepSimulator:
        """The simulator of `problem`."""
        return StepSimulator(problem, communication=self, order_rule=order_rule)


_ONE_F_ONE_B = int(Rule.ONE_F_ONE_B)

SINGLE_PORT = Ports("single_port", uses_ports=True)
NO_COMMUNICATION = Ports("none", uses_ports=False)


class StepSimulator:
    """Plays plans of one problem; the durations are facts of the problem, the rules stand here.

    A device runs its operators in the order of the plan, each as soon as its inputs have arrived
    and the device is free. A tensor is sent once per receiving device, when its producer has
    ended. Under `SINGLE_PORT` a transfer from i to j holds send port `topology.send_port[i, j]`
    and receive port `topology.receive_port[i, j]`, full duplex, one transfer at a time each, for
    `transfer_seconds[tensor, link_class[i, j]]`; ports serve transfers by (producer's position,
    first consumer's position, tensor). Transfers of zero duration hold no port. Under
    `NO_COMMUNICATION` transfers take no time. Transfers overlap compute.

    Not thread safe: each thread makes its own. Copies and pickles freely.
    """

    def __init__(
        self,
        problem: StepProblem,
        *,
        communication: Ports = SINGLE_PORT,
        order_rule: OrderRule | None = None,
    ) -> None:
        self.problem = problem
        self.communication = communication
        self.order_rule: OrderRule = order_rule if order_rule is not None else OneFOneB()
        self.arrays: StepArrays = step_arrays(problem)
        self.scratch: Scratch = scratch(self.arrays, self._num_ports)

    def order(self, device: IntArray) -> IntArray:
        """(N,) the order the rule gives to placement `device` (N,)."""
        return self.order_rule(self.problem.graph, device)

    def step_time(self, device: IntArray, order: IntArray | None = None) -> float:
        """Seconds of one step of placement `device` (N,); without `order` the rule decides."""
        return float(self.step_times(np.asarray(device)[None, :], order)[0])

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or as the rule decides."""
        devices = np.ascontiguousarray(devices, dtype=np.int64)
        seconds = np.empty(len(devices))
        if order is not None:
            _play_all(self.arrays, self.scratch, np.asarray(order, np.int64), devices, seconds)
        elif isinstance(self.order_rule, OneFOneB):
            _play_all_one_f_one_b(self.arrays, self.scratch, devices, seconds)
        else:
            for index, device in enumerate(devices):
                seconds[index] = self.step_time(device, self.order(device))
        return seconds

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,), with its peak memory."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        order = self.order(device) if order is None else np.asarray(order, np.int64)
        log = self._log()
        _play_logged(self.arrays, self.scratch, order, device, log)
        return self._timeline(device, log)

    def _log(self) -> Log:
        n, uses = len(self.arrays.op_seconds), len(self.arrays.use_op)
        return Log(
            op_start=np.empty(n),
            op_finish=np.empty(n),
            moves=np.zeros(1, np.int64),
            moved=np.empty((uses, 3), dtype=np.int64),
            moved_time=np.empty((uses, 2)),
        )

    def _timeline(self, device: IntArray, log: Log) -> Timeline:
        moves = log.moves[0]
        return Timeline.of(
            self.problem, device, log.op_start, log.op_finish, *log.moved[:moves].T,
            *log.moved_time[:moves].T,
        )  # fmt: skip

    @property
    def _num_ports(self) -> int:
        return self.problem.topology.num_ports if self.communication.uses_ports else 0


@compiled_inner
def use_order(arrays: StepArrays, work: Scratch) -> None:
    """Relabel the graph by `work.order`, ready for `step_time_in_order`."""
    relabel(work.order, arrays.use_ptr, arrays.use_op, arrays.use_tensor, arrays.use_slot,
            work.position, work.use_ptr, work.use_op, work.use_tensor, work.use_slot)  # fmt: skip


@compiled_inner
def step_time_in_order(
    arrays: StepArrays, work: Scratch, device: IntArray, log: Log | None = None
) -> float:
    """Seconds of placement `device` (N,) in the order `use_order` was called for."""
    for p in range(len(device)):
        work.device[p] = device[work.order[p]]
    seconds: float = play(
        work.device, work.order, arrays.op_seconds, work.use_ptr, work.use_op, work.use_tensor,
        work.use_slot, arrays.transfer_seconds, arrays.link_class, arrays.send_port,
        arrays.receive_port, work.ready, work.device_free, work.port_free, work.arrival,
        work.stamp, work.ticket[0], log,
    )  # fmt: skip
    work.ticket[0] += len(device)
    return seconds


@compiled_inner
def step_time_one_f_one_b(arrays: StepArrays, work: Scratch, device: IntArray) -> float:
    """Seconds of placement `device` (N,) in its 1F1B order."""
    sort_by_key(_ONE_F_ONE_B, device, arrays.phase, arrays.micro_batch, arrays.num_micro_batches,
                arrays.use_ptr, arrays.use_op, work.key, work.depth, work.by_depth,
                work.order)  # fmt: skip
    use_order(arrays, work)
    seconds: float = step_time_in_order(arrays, work, device)
    return seconds


@compiled
def _play_all(
    arrays: StepArrays, work: Scratch, order: IntArray, devices: IntArray, seconds: FloatArray
) -> None:
    work.order[:] = order
    use_order(arrays, work)
    for b in range(len(devices)):
        seconds[b] = step_time_in_order(arrays, work, devices[b])


@compiled
def _play_all_one_f_one_b(
    arrays: StepArrays, work: Scratch, devices: IntArray, seconds: FloatArray
) -> None:
    for b in range(len(devices)):
        seconds[b] = step_time_one_f_one_b(arrays, work, devices[b])


@compiled
def _play_logged(
    arrays: StepArrays, work: Scratch, order: IntArray, device: IntArray, log: Log
) -> None:
    work.order[:] = order
    use_order(arrays, work)
    step_time_in_order(arrays, work, device, log)
