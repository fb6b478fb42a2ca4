"""A placed and ordered step as a function of the rates of the pipes between its servers.

The step is that of `envs.step.kernel.play` on `envs.step.allocated.allocated_problem`.
With the plan fixed every resource serves its users in a fixed sequence, so the step is a fixed
acyclic graph of operators and transfers, and only the transfers through pipes have weights that
depend on the rates. Its longest path is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError
from envs.network.pipes import check_bandwidth, pipe_of_pairs
from envs.step.kernel import IndexArray, StepArrays, relabel, step_arrays
from envs.step.plans import Plan
from envs.step.problem import StepProblem

NOTHING = -1


class Ways(NamedTuple):
    """What transfers between D devices pass; pairs between servers hold the ports of a pipe."""

    transfer_seconds: FloatArray  # (T, L) at the bandwidth of the class
    link_class: IndexArray  # (D, D)
    class_latency: FloatArray  # (L,) seconds
    class_bandwidth: FloatArray  # (L,) bytes/s
    crossing: IntArray  # (D, D) 0..J-1 between servers, NOTHING inside one
    send_port: IntArray  # (D, D)
    receive_port: IntArray  # (D, D)


class Nodes(NamedTuple):
    """The acyclic graph: operators by position, behind them the transfers as they are sent."""

    fixed: FloatArray  # (N + U,) seconds besides the bytes through a crossing
    cause: IntArray  # (N + U,) the node whose end let this one begin, NOTHING at the start
    moved: FloatArray  # (N + U,) bytes through a crossing
    through: IntArray  # (N + U,) that crossing, NOTHING elsewhere


class Resources(NamedTuple):
    """When devices and ports are free, and the node that held them last."""

    device_free: FloatArray  # (D,)
    device_last: IntArray  # (D,)
    port_free: FloatArray  # (ports,)
    port_last: IntArray  # (ports,)


@compiled
def longest_path(
    device: IndexArray,  # (N,) by position
    order: IndexArray,  # (N,) operator at each position
    op_seconds: FloatArray,  # (N, D) by operator
    use_ptr: IndexArray,  # (N + 1,) by position
    use_op: IndexArray,  # (U,) consuming position
    use_tensor: IndexArray,  # (U,)
    use_slot: IndexArray,  # (U,)
    ways: Ways,
    num_ports: int,
    slots: int,
    slowness: FloatArray,  # (J,) seconds per byte through each crossing; inf: nothing passes
    volume: FloatArray,  # (J,) out, zero on entry: bytes of the path through each crossing
) -> tuple[float, float]:
    """Seconds of the step, and those seconds of its longest path that do not depend on the rates.

    The path is one of several where they are equally long.
    """
    n, d_count = op_seconds.shape
    size = n + len(use_op)
    nodes = Nodes(np.zeros(size), np.full(size, NOTHING), np.zeros(size), np.full(size, NOTHING))
    held = Resources(
        np.zeros(d_count), np.full(d_count, NOTHING), np.zeros(num_ports),
        np.full(num_ports, NOTHING),
    )  # fmt: skip
    ready = np.zeros(n)
    arrival = np.zeros((slots, d_count))
    carrier = np.full((slots, d_count), NOTHING)
    stamp = np.full((slots, d_count), NOTHING)
    count, last, end = n, NOTHING, -1.0
    for p in range(n):
        d = device[p]
        begin = ready[p]
        if held.device_free[d] > begin:
            begin, nodes.cause[p] = held.device_free[d], held.device_last[d]
        nodes.fixed[p] = op_seconds[order[p], d]
        finish = begin + nodes.fixed[p]
        held.device_free[d], held.device_last[d] = finish, p
        if finish > end:
            end, last = finish, p
        for k in range(use_ptr[p], use_ptr[p + 1]):
            c, slot = use_op[k], use_slot[k]
            e = device[c]
            at, node = finish, p
            if e != d:
                if stamp[slot, e] != p:
                    arrival[slot, e], carrier[slot, e] = _send(
                        p, finish, count, use_tensor[k], d, e, ways, slowness, nodes, held
                    )
                    stamp[slot, e] = p
                    count += 1
                at, node = arrival[slot, e], carrier[slot, e]
            if at > ready[c]:
                ready[c], nodes.cause[c] = at, node
    return max(end, 0.0), _walk_back(last, nodes, volume)


@compiled_inner
def _send(
    producer: int,
    finish: float,
    node: int,
    tensor: int,
    d: int,
    e: int,
    ways: Ways,
    slowness: FloatArray,
    nodes: Nodes,
    held: Resources,
) -> tuple[float, int]:
    """Sends a tensor from device d to e as `node`; returns its arrival and what brought it."""
    kind = ways.link_class[d, e]
    seconds = ways.transfer_seconds[tensor, kind]
    if seconds <= 0.0:
        return finish, producer
    j = ways.crossing[d, e]
    nodes.fixed[node] = seconds
    if j != NOTHING:
        latency = ways.class_latency[kind]
        moved = max(0.0, (seconds - latency) * ways.class_bandwidth[kind])
        nodes.fixed[node], nodes.moved[node], nodes.through[node] = latency, moved, j
        seconds = np.inf if slowness[j] == np.inf else latency + moved * slowness[j]
    s, r = ways.send_port[d, e], ways.receive_port[d, e]
    at, nodes.cause[node] = finish, producer
    if held.port_free[s] > at:
        at, nodes.cause[node] = held.port_free[s], held.port_last[s]
    if held.port_free[r] > at:
        at, nodes.cause[node] = held.port_free[r], held.port_last[r]
    at += seconds
    held.port_free[s], held.port_last[s] = at, node
    held.port_free[r], held.port_last[r] = at, node
    return at, node


@compiled_inner
def _walk_back(node: int, nodes: Nodes, volume: FloatArray) -> float:
    """Adds up the path that ends with `node`; returns its fixed seconds."""
    fixed = 0.0
    while node != NOTHING:
        fixed += nodes.fixed[node]
        if nodes.through[node] != NOTHING:
            volume[nodes.through[node]] += nodes.moved[node]
        node = nodes.cause[node]
    return fixed


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
