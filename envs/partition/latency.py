"""`LatencyProblem`: the time of one sample through accelerators that are called by a host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.partition.problem import HostTraffic, cycle, host_of
from envs.step.plans import Placement
from envs.step.problem import StepProblem


@dataclass(frozen=True, eq=False)
class LatencyProblem:
    """Minimise when the last operator ends, each accelerator being called once.

    All operators on an accelerator are one call. It waits until every message it reads is there;
    then it receives them, computes, and sends what others read, one after another; everything it
    made is available when the call ends. On the host CPU each operator runs as soon as its inputs
    are available, any number of them at once, and messages between the host's operators are free.
    An accelerator whose operators both feed and wait for another device's cannot be one call: a
    placement must be acyclic after each accelerator has been contracted to a point. Co-location,
    support and capacity are as everywhere. Tarnawski, Phanishayee, Devanur, Mahajan, Nina
    Paravecino, "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020,
    section 4 (q = 1).
    """

    step: StepProblem

    @cached_property
    def host(self) -> int:
        """The device that is the host CPU, NONE where no device is."""
        return host_of(self.step.topology)

    @cached_property
    def traffic(self) -> HostTraffic:
        """The messages, and how long each accelerator is busy with each of them."""
        return HostTraffic.of(self.step, self.host)

    def objective(self, device: IntArray) -> float:
        """Seconds until the last operator ends; inf when unsupported or not in single calls."""
        return float(self.finish(device).max(initial=0.0))

    def finish(self, device: IntArray) -> FloatArray:
        """(N,) seconds when what each operator makes is available; inf as in `objective`."""
        n, count = self.step.graph.num_operators, self.step.topology.num_devices
        seconds = self.step.op_seconds[np.arange(n), device]
        block = self._blocks(device)
        duration = np.bincount(block, weights=seconds, minlength=count + n).astype(np.float64)
        duration[:count] += self.traffic.busy_seconds(device)
        return _longest_paths(duration, self._arcs(block))[block]

    def violations(self, device: IntArray) -> list[str]:
        """What is wrong with placement `device` (N,): those of `Placement`, and single calls."""
        found = Placement(device).violations(self.step)
        if found:
            return found
        names = [d.name for d in self.step.topology.devices]
        names += [repr(name) for name in self.step.graph.op_names]
        ring = cycle(len(names), self._arcs(self._blocks(device)))
        if ring:
            route = " -> ".join(names[b] for b in [*ring, ring[0]])
            found.append(f"needs more than one call of a device: data goes round {route}")
        return found

    def _blocks(self, device: IntArray) -> IntArray:
        """(N,) what runs as one: the device 0..D-1, or D + operator on the host."""
        count = self.step.topology.num_devices
        return np.where(device == self.host, count + np.arange(len(device)), device)

    def _arcs(self, block: IntArray) -> IntArray:
        """(A, 2) dependencies between different blocks."""
        arcs: IntArray = np.unique(block[self.step.graph.edges[:, :2]], axis=0)
        return np.asarray(arcs[arcs[:, 0] != arcs[:, 1]])


def _longest_paths(duration: FloatArray, arcs: IntArray) -> FloatArray:
    """(B,) end of each block, started when all before it have ended; inf on and behind cycles."""
    count = len(duration)
    order = np.argsort(arcs[:, 0], kind="stable")
    ptr = np.searchsorted(arcs[order, 0], np.arange(count + 1)).tolist()
    following = arcs[order, 1].tolist()
    waiting = np.bincount(arcs[:, 1], minlength=count).tolist()
    length = duration.tolist()
    start, end = [0.0] * count, [np.inf] * count
    ready = [b for b in range(count) if not waiting[b]]
    while ready:
        b = ready.pop()
        end[b] = start[b] + length[b]
        for k in range(ptr[b], ptr[b + 1]):
            c = following[k]
            start[c] = max(start[c], end[b])
            waiting[c] -= 1
            if not waiting[c]:
                ready.append(c)
    return np.array(end)
