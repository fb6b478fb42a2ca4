"""The `ready` discipline: what a dynamic runtime does instead of following a fixed order."""

from __future__ import annotations

import heapq

import numba
import numpy as np

from envs.step.arrays import FloatArray, IntArray, StepArrays
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline

_FINISH, _ARRIVE = 0, 1


class ReadySimulator(StepSimulator):
    """Like `StepSimulator`, but the order only ranks what is ready.

    At every instant first everything that ends then ends; then each idle device starts the ready
    operator (all inputs arrived) that stands first in the order, and each waiting transfer, by
    (producer's position, first consumer's position, tensor), starts if both its ports are free.
    Operators and transfers of zero duration end at the instant they start. An event queue of
    O((N + K) log N) with a scan over the waiting transfers, not the one-pass kernel.
    """

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N)."""
        return np.array([self.run(device, order).step_time for device in devices])

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,), ranked by `order` or the order rule."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        ranked = self.order(device) if order is None else np.asarray(order, np.int64)
        position = np.empty(len(ranked), dtype=np.int64)
        position[ranked] = np.arange(len(ranked))
        graph = self.problem.graph
        start, finish, moved, moved_time, count = _run(
            self.arrays,
            self._num_ports,
            device,
            ranked,
            position,
            np.bincount(graph.edges[:, 1], minlength=graph.num_operators),
        )
        return self._timeline(device, start, finish, moved[:count], moved_time[:count])


@numba.njit(cache=True, nogil=True)
def _run(
    arrays: StepArrays,
    num_ports: int,
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    position: IntArray,  # (N,)
    missing: IntArray,  # (N,) inputs that have not arrived; consumed
) -> tuple[FloatArray, FloatArray, IntArray, FloatArray, int]:
    """Starts, finishes (N,), transfers (C, 5), their times (C, 2) and how many there were."""
    n, devices = arrays.op_seconds.shape
    start, finish = np.zeros(n), np.zeros(n)
    moved = np.zeros((len(arrays.use_op), 5), dtype=np.int64)  # and: producer, holds ports
    moved_time = np.zeros((len(arrays.use_op), 2))
    count = 0
    idle = np.ones(devices, dtype=np.bool_)
    port_idle = np.ones(max(num_ports, 1), dtype=np.bool_)
    ready = [[n] for _ in range(devices)]  # heaps of positions; n is a sentinel
    waiting = [(n, n, n, n)]  # heap of (producer position, consumer position, tensor, device)
    events = [(-1.0, _ARRIVE, n)]  # heap of (time, what, operator or transfer)
    events.pop()
    for i in range(n):
        if missing[i] == 0:
            heapq.heappush(ready[device[i]], position[i])
    now = 0.0
    while True:
        # start what can start now
        for d in range(devices):
            if idle[d] and ready[d][0] < n:
                i = order[heapq.heappop(ready[d])]
                idle[d] = False
                start[i] = now
                finish[i] = now + arrays.op_seconds[i, d]
                heapq.heappush(events, (finish[i], _FINISH, i))
        held = [(n, n, n, n)]
        while waiting[0][0] < n:
            entry = heapq.heappop(waiting)
            source = device[order[entry[0]]]
            s, r = arrays.send_port[source, entry[3]], arrays.receive_port[source, entry[3]]
            link = arrays.link_class[source, entry[3]]
            seconds = float(arrays.transfer_seconds[entry[2], link]) if num_ports > 0 else 0.0
            if seconds > 0.0 and not (port_idle[s] and port_idle[r]):
                heapq.heappush(held, entry)
                continue
            if seconds > 0.0:
                port_idle[s] = False
                port_idle[r] = False
            moved[count, 0], moved[count, 1], moved[count, 2] = entry[2], source, entry[3]
            moved[count, 3], moved[count, 4] = order[entry[0]], seconds > 0.0
            moved_time[count, 0], moved_time[count, 1] = now, now + seconds
            heapq.heappush(events, (now + seconds, _ARRIVE, count))
            count += 1
        waiting = held
        if len(events) == 0:
            break
        # let everything that ends next end
        now = events[0][0]
        while len(events) > 0 and events[0][0] == now:
            _, what, index = heapq.heappop(events)
            if what == _FINISH:
                here = device[index]
                idle[here] = True
                for k in range(arrays.use_ptr[index], arrays.use_ptr[index + 1]):
                    c, t = arrays.use_op[k], arrays.use_tensor[k]
                    if device[c] == here:
                        missing[c] -= 1
                        if missing[c] == 0:
                            heapq.heappush(ready[here], position[c])
                        continue
                    first = n  # position of the first consumer of t over there
                    duty = True  # this use stands first for its (tensor, device)
                    for j in range(arrays.use_ptr[index], arrays.use_ptr[index + 1]):
                        same = arrays.use_tensor[j] == t
                        if same and device[arrays.use_op[j]] == device[c]:
                            duty = duty and j >= k
                            first = min(first, int(position[arrays.use_op[j]]))
                    if duty:
                        heapq.heappush(waiting, (position[index], first, t, device[c]))
            else:
                t, source, e = moved[index, 0], moved[index, 1], moved[index, 2]
                if moved[index, 4] == 1:
                    port_idle[arrays.send_port[source, e]] = True
                    port_idle[arrays.receive_port[source, e]] = True
                producer = moved[index, 3]
                for k in range(arrays.use_ptr[producer], arrays.use_ptr[producer + 1]):
                    c = arrays.use_op[k]
                    if arrays.use_tensor[k] == t and device[c] == e:
                        missing[c] -= 1
                        if missing[c] == 0:
                            heapq.heappush(ready[e], position[c])
    return start, finish, moved, moved_time, count
