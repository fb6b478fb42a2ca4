"""A slow step through pipes with changing rates: everything moves forward in time together."""

from __future__ import annotations

import numpy as np
from reference_step import Played, transfers_of

from envs.step.problem import StepProblem

SMALL = 1e-12  # relative: what is left of a transfer when its end and another event coincide


def play_phased(
    problem: StepProblem, device, order, begins, pipes
) -> tuple[Played, list[float], list[np.ndarray]]:
    """The step, when each phase began, and the bytes (S, S) that former phases had yet to send.

    `pipes` (P, S, S) are all positive.
    """
    graph, topology = problem.graph, problem.topology
    n, server = graph.num_operators, topology.server
    inner = topology.network.inner_bandwidth
    position = {int(op): p for p, op in enumerate(order)}
    queues = {}  # what a device, a pair of ports or a pipe serves, in order
    for op in order:
        queues.setdefault(("device", int(device[op])), []).append(int(op))
    moves = []  # tensor, source, target, producer, ports
    for op in order:
        for _, tensor, target in transfers_of(problem, op, device, position):
            d = int(device[op])
            if server[d] != server[target]:
                ports = {("pipe", int(server[d]), int(server[target]))}
            else:
                ports = {
                    ("port", int(topology.send_port[d, target])),
                    ("port", int(topology.receive_port[d, target])),
                }
            seconds = problem.transfer_seconds[tensor, topology.link_class[d, target]]
            if seconds > 0:
                for port in ports:
                    queues.setdefault(port, []).append(len(moves))
            else:
                ports = set()
            moves.append((tensor, d, target, int(op), ports))
    start, finish = [None] * n, [None] * n
    began, ended = [None] * len(moves), [None] * len(moves)
    wait, left = [0.0] * len(moves), [0.0] * len(moves)  # latency and bytes to go
    due = [0.0] * len(moves)  # when transfers inside a server end
    now, phase, begun = 0.0, 0, [0.0]
    behind = [np.zeros((topology.num_servers, topology.num_servers))]

    def rate_of(move):
        _, d, target, _, _ = moves[move]
        return min(pipes[phase][server[d]][server[target]], inner[d, target])

    while True:
        changed = True
        while changed:  # everything that happens now
            changed = False
            while phase + 1 < len(begins) and all(
                finish[op] is not None and finish[op] <= now for op in order[: begins[phase + 1]]
            ):
                phase += 1
                begun.append(now)
                behind.append(np.zeros_like(behind[0]))
                for k, (tensor, d, target, op, _) in enumerate(moves):
                    if server[d] != server[target] and position[op] < begins[phase]:
                        link = topology.link_class[d, target]
                        lasting = problem.transfer_seconds[tensor, link]
                        moving = max(0.0, lasting - topology.class_latency[link])
                        whole = moving * topology.class_bandwidth[link]
                        rest = whole if began[k] is None else left[k]
                        behind[-1][server[d], server[target]] += rest
            for op in order:
                mine = queues["device", int(device[op])]
                here = all(
                    finish[graph.producer[t]] is not None and finish[graph.producer[t]] <= now
                    if device[graph.producer[t]] == device[op]
                    else any(
                        m[0] == t and m[2] == device[op] and ended[k] is not None
                        for k, m in enumerate(moves)
                    )
                    for t in range(graph.num_tensors)
                    if op in graph.consumers(t)
                )
                if start[op] is None and mine[0] == op and here:
                    start[op] = now
                    finish[op] = now + problem.op_seconds[op, device[op]]
                if finish[op] is not None and finish[op] <= now and mine and mine[0] == op:
                    mine.pop(0)
                    changed = True
            for k, (tensor, d, target, op, ports) in enumerate(moves):
                sendable = finish[op] is not None and finish[op] <= now
                if began[k] is None and sendable and all(queues[port][0] == k for port in ports):
                    began[k] = now
                    link = topology.link_class[d, target]
                    seconds = problem.transfer_seconds[tensor, link]
                    due[k] = now + seconds
                    if server[d] != server[target] and seconds > 0:
                        wait[k] = min(seconds, topology.class_latency[link])
                        left[k] = (seconds - wait[k]) * topology.class_bandwidth[link]
                        due[k] = None
                    changed = True
                over = due[k] is not None and due[k] <= now
                if (
                    began[k] is not None
                    and ended[k] is None
                    and (over if due[k] is not None else wait[k] <= 0 and left[k] <= 0)
                ):
                    ended[k] = now
                    for port in ports:
                        queues[port].pop(0)
                    changed = True
        coming = [f for f in finish if f is not None and f > now]
        active = []
        for k in range(len(moves)):
            if began[k] is not None and ended[k] is None:
                if due[k] is not None:
                    coming.append(due[k])
                else:
                    active.append(k)
                    coming.append(now + (wait[k] if wait[k] > 0 else left[k] / rate_of(k)))
        if not coming:
            break
        then = min(coming)
        for k in active:
            if wait[k] > 0:
                wait[k] -= then - now
                if wait[k] <= SMALL * then:
                    wait[k] = 0.0
            else:
                left[k] -= (then - now) * rate_of(k)
                if left[k] <= SMALL * max(1.0, then) * rate_of(k):
                    left[k] = 0.0
        now = then
    log = [(m[0], m[1], m[2], began[k], ended[k]) for k, m in enumerate(moves)]
    return Played(start, finish, log), begun, behind
