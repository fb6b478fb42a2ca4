"""A step whose bandwidth between servers is allocated phase by phase."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.network.pipes import check_bandwidth
from envs.step.order import OneFOneB, OrderRule
from envs.step.phased_kernel import (
    PhasedArrays,
    PhasedState,
    backlog,
    phased_arrays,
    play_phase,
)
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class PhasedStep:
    """One step under way: played up to the beginning of a phase, waiting for its rates.

    Made by `PhasedSimulator.begin`. Copies and pickles freely; copies share nothing that changes.

    Attributes:
        begins: (P,) first position of each phase.
        traffic: (P, S, S) bytes that the operators of each phase send from server to server.
    """

    def __init__(
        self,
        problem: StepProblem,
        device: IntArray,
        begins: IntArray,
        arrays: PhasedArrays,
        state: PhasedState,
    ) -> None:
        self.problem = problem
        self.begins = begins
        self._device = device
        self._arrays = arrays
        self._state = state
        servers = problem.topology.num_servers
        self.traffic: FloatArray = arrays.traffic.reshape(len(begins), servers, servers)

    @property
    def num_phases(self) -> int:
        """P."""
        return len(self.begins)

    @property
    def phase(self) -> int:
        """The phase that `advance` plays next; P at the end of the step."""
        return int(self._state.counts[1])

    @property
    def done(self) -> bool:
        """Whether all phases have been played."""
        return self.phase == self.num_phases

    @property
    def now(self) -> float:
        """Seconds until `phase` begins; of the whole step when done. inf: that never happens."""
        return float(self._state.begin_time[self.phase])

    @property
    def backlog(self) -> FloatArray:
        """(S, S) bytes that operators of former phases have yet to send at `now`."""
        left: FloatArray = backlog(self._arrays, self._state)
        return left.reshape(self.traffic.shape[1:])

    @property
    def pending(self) -> FloatArray:
        """(S, S) bytes to send from `now` to the end of `phase`: its traffic and the backlog.

        Operators of the phase that run ahead of its beginning may have sent some of it already, at
        the former rates.
        """
        return self.backlog if self.done else self.backlog + self.traffic[self.phase]

    def advance(self, pipes: FloatArray) -> float:
        """Play the next phase with `pipes` (S, S) bytes/s; returns the seconds it took.

        The rates hold from `now` on, also for the transfers under way. A transfer never runs faster
        than the slowest link between its devices and their NICs.

        Raises:
            InputError: the step is done, or the rates have another shape, are negative or no
                numbers.
        """
        if self.done:
            raise InputError(f"all {self.num_phases} phases have been played")
        pipes = np.ascontiguousarray(pipes, dtype=np.float64)
        shape = self.traffic.shape[1:]
        if pipes.shape != shape or not np.all(pipes >= 0.0):
            raise InputError(f"needs {shape} rates, none of them negative", field="pipes")
        phase, before = self.phase, self.now
        last = len(self._device) if phase + 1 == self.num_phases else int(self.begins[phase + 1])
        self._state.rates[phase] = pipes.ravel()
        play_phase(self._arrays, self._state, int(self.begins[phase]), last)
        return self.now - before if np.isfinite(before) else np.inf

    def copy(self) -> PhasedStep:
        """An independent step in the same state."""
        state = self._state.copy()
        return PhasedStep(self.problem, self._device, self.begins, self._arrays, state)

    def timeline(self) -> Timeline:
        """Everything that happened.

        Raises:
            InputError: phases remain.
        """
        if not self.done:
            raise InputError(f"{self.num_phases - self.phase} phases remain")
        arrays, state = self._arrays, self._state
        moved = np.flatnonzero(state.move_start >= 0.0)
        tensor = arrays.use_tensor[moved].astype(np.int64)
        source = arrays.device[arrays.producer[moved]].astype(np.int64)
        destination = arrays.device[arrays.use_op[moved]].astype(np.int64)
        start, finish = np.empty_like(state.op_start), np.empty_like(state.op_start)
        start[arrays.order], finish[arrays.order] = state.op_start, state.op_finish
        return Timeline.of(
            self.problem, self._device, start, finish, tensor, source, destination,
            state.move_start[moved], state.move_finish[moved],
        )  # fmt: skip


class PhasedSimulator:
    """Plays plans through pipes between the servers whose rates change with the phases of a step.

    Devices, ports inside the servers and the order of service are those of
    `envs.step.step.StepSimulator` on `envs.step.allocated.allocated_problem`: the pipe
    from one server to another serves its transfers one after another, each for its latency and
    then until its bytes have drained at the pipe's rate. Phase p begins when all operators at
    positions before `begins[p]` of the order have ended; from then on the pipes have the rates of
    that phase, and a transfer under way goes on at the new rate. With one phase nothing differs
    from the static allocation.

    A transfer that takes no longer than its latency holds its pipe for that time and moves nothing.

    Raises:
        InputError: the topology has no bandwidth between some servers, only tabulated times.
    """

    def __init__(self, problem: StepProblem, *, order_rule: OrderRule | None = None) -> None:
        check_bandwidth(problem.topology)
        self.problem = problem
        self.order_rule: OrderRule = order_rule if order_rule is not None else OneFOneB()

    def begin(
        self, device: IntArray, order: IntArray | None = None, begins: IntArray | None = None
    ) -> PhasedStep:
        """The step of placement `device` (N,) before its first phase.

        Args:
            order: (N,) operators, first to last; without it the rule decides.
            begins: (P,) first position of each phase: 0, then rising; without it one phase.

        Raises:
            InputError: `begins` is something else.
        """
        device = np.ascontiguousarray(device, dtype=np.int64)
        if order is None:
            order = self.order_rule(self.problem.graph, device)
        begins = np.zeros(1, np.int64) if begins is None else np.array(begins, dtype=np.int64)
        n = len(device)
        if len(begins) == 0 or begins[0] != 0 or begins[-1] >= n or np.any(np.diff(begins) <= 0):
            raise InputError(f"must be 0, then rise, below {n}", field="begins")
        arrays = phased_arrays(self.problem, device, np.asarray(order, dtype=np.int64), begins)
        return PhasedStep(self.problem, device, begins, arrays, PhasedState.fresh(arrays))

    def run(
        self,
        device: IntArray,  # (N,)
        order: IntArray | None,  # (N,)
        begins: IntArray,  # (P,)
        pipes: FloatArray,  # (P, S, S) bytes/s
    ) -> Timeline:
        """The whole step, its rates given in advance."""
        step = self.begin(device, order, begins)
        for rates in pipes:
            step.advance(rates)
        return step.timeline()
