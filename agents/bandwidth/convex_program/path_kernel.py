"""The longest path of a step whose transfers between servers go through pipes, compiled.

The step is that of `envs.step.kernel.play` on `envs.step.allocated.allocated_problem`.
With the plan fixed every resource serves its users in a fixed sequence, so the step is a fixed
acyclic graph of operators and transfers, and only the transfers through pipes have weights that
depend on the rates.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from envs.step.kernel import FloatArray, IndexArray, IntArray

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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _walk_back(node: int, nodes: Nodes, volume: FloatArray) -> float:
    """Adds up the path that ends with `node`; returns its fixed seconds."""
    fixed = 0.0
    while node != NOTHING:
        fixed += nodes.fixed[node]
        if nodes.through[node] != NOTHING:
            volume[nodes.through[node]] += nodes.moved[node]
        node = nodes.cause[node]
    return fixed
