"""A placed and ordered step as a function of the rates of the pipes between its servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.bandwidth.convex_program.path_kernel import NOTHING, Ways, longest_path
from envs.errors import InputError
from envs.network.pipes import check_bandwidth, pipe_of_pairs
from envs.step.kernel import StepArrays, relabel, step_arrays
from envs.step.plans import Plan
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.uint32]

PATH_ROUNDING = 1e-11  # relative; covers the sums along a path of a hundred thousand nodes
_ROUNDING = 1e-9  # relative; what a transfer may be faster than its latency by


@dataclass(frozen=True, eq=False)
class Path:
    """The longest path of a step: `seconds` = `constant` + sum of `volume` times slowness.

    For any other slowness x (J,) the same path takes `constant + volume @ x`, and no step is
    shorter than any of its paths.
    """

    seconds: float
    constant: float  # seconds: operators, latencies, transfers inside servers
    volume: FloatArray  # (J,) bytes through each crossing


class PipedStep:
    """The step of `plan` when its transfers between servers go through pipes.

    A *crossing* is what transfers through the same pipe with the same slowest link beside it have
    in common: one that gets B bytes/s of its pipe and no more than `inner` bytes/s elsewhere has a
    *slowness* of max(1 / B, 1 / inner) seconds per byte, which is convex in B. A plan fixes the
    sequence of every device, pipe and port, hence an acyclic graph of operators and transfers
    whose longest path is the step. The step is therefore convex in the rates, and does not grow
    with any of them.

    Raises:
        InputError: there is no bandwidth between some servers, or a tensor takes less than the
            latency of its way.
    """

    def __init__(self, problem: StepProblem, plan: Plan) -> None:
        topology = problem.topology
        network = topology.network
        d, servers = topology.num_devices, topology.num_servers
        self.problem = problem
        self.plan = plan
        self.network = network
        self.num_servers = servers
        apart, pipe = pipe_of_pairs(topology)
        keys = np.stack([pipe[apart], network.inner_bandwidth[apart]], axis=1)
        known, which = np.unique(keys, axis=0, return_inverse=True)
        crossing = np.full((d, d), NOTHING)
        crossing[apart] = which.ravel()
        self.pipe: IntArray = known[:, 0].astype(np.int64)  # (J,) source * servers + destination
        self.inner: FloatArray = known[:, 1].copy()  # (J,) bytes/s
        ports = topology.num_ports
        self._arrays: StepArrays = step_arrays(problem)
        self._slots = int(self._arrays.use_slot.max(initial=0)) + 1
        self._ways = Ways(
            transfer_seconds=self._arrays.transfer_seconds,
            link_class=self._arrays.link_class,
            class_latency=topology.class_latency,
            class_bandwidth=topology.class_bandwidth,
            crossing=crossing,
            send_port=np.where(apart, ports + 2 * pipe, topology.send_port),
            receive_port=np.where(apart, ports + 2 * pipe + 1, topology.receive_port),
        )
        self._ports = ports + 2 * servers * servers
        self._check(apart)
        self._by_position(plan.order)
        self._device = plan.placement.device[plan.order].astype(np.uint32)

    @property
    def num_crossings(self) -> int:
        """J."""
        return len(self.pipe)

    def slowness(self, pipes: FloatArray) -> FloatArray:
        """(J,) seconds per byte at the rates `pipes` (S, S) in bytes/s; inf at rate 0."""
        with np.errstate(divide="ignore"):
            found: FloatArray = 1.0 / np.minimum(pipes.ravel()[self.pipe], self.inner)
        return found

    def longest_path(self, slowness: FloatArray) -> Path:
        """The longest path at `slowness` (J,), none negative."""
        volume = np.zeros(self.num_crossings)
        seconds, constant = longest_path(
            self._device, self._order, self._arrays.op_seconds, self._use_ptr, self._use_op,
            self._use_tensor, self._use_slot, self._ways, self._ports, self._slots, slowness,
            volume,
        )  # fmt: skip
        return Path(seconds, constant, volume)

    def _by_position(self, order: IntArray) -> None:
        a, n = self._arrays, len(order)
        self._order: IndexArray = order.astype(np.uint32)
        self._use_ptr: IndexArray = np.zeros(n + 1, dtype=np.uint32)
        self._use_op, self._use_tensor, self._use_slot = (
            np.zeros(len(a.use_op), dtype=np.uint32) for _ in range(3)
        )
        relabel(self._order, a.use_ptr, a.use_op, a.use_tensor, a.use_slot,
                np.zeros(n, dtype=np.uint32), self._use_ptr, self._use_op, self._use_tensor,
                self._use_slot)  # fmt: skip

    def _check(self, apart: NDArray[np.bool_]) -> None:
        topology = self.problem.topology
        check_bandwidth(topology)
        for kind in np.unique(topology.link_class[apart]):
            name = topology.class_names[kind]
            seconds = self.problem.transfer_seconds[:, kind]
            floor = topology.class_latency[kind] * (1.0 - _ROUNDING)
            short = np.flatnonzero((seconds > 0.0) & (seconds < floor))
            if len(short):
                raise InputError(
                    f"tensor {short[0]} takes {seconds[short[0]]:.6g} s on link class {name!r}, "
                    f"whose latency alone is {topology.class_latency[kind]:.6g} s",
                    file=f"graph {self.problem.graph.name}",
                )
