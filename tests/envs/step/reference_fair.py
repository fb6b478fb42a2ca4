"""A slow fair step: every subflow by itself, exact rates, everything scanned at every event."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from reference_step import Played, transfers_of

from envs.hardware.network import NO_CHANNEL
from envs.step.problem import StepProblem

SMALL = 1e-12  # relative: what is left of a transfer when its end and another event coincide


def paths_of(problem: StepProblem, i: int, j: int, multipath: bool) -> list[tuple[int, ...]]:
    """The links of every path that a transfer from device i to device j takes."""
    topology = problem.topology
    if is_tabulated(problem):
        return [(int(topology.send_port[i, j]), int(topology.receive_port[i, j]))]
    network = topology.network
    pair = i * topology.num_devices + j
    rows = list(range(network.pair_ptr[pair], network.pair_ptr[pair + 1]))
    if not multipath:
        if network.path_channel[rows[0]] != NO_CHANNEL:
            route = topology.port_names[topology.send_port[i, j]].split()[0]
            nic = [network.channel_source_nic[network.path_channel[row]] for row in rows]
            rows = [row for row, name in zip(rows, nic, strict=True) if name.split()[0] == route]
        rows = [rows[j % len(rows)]]
    return [tuple(network.path_links[network.path_ptr[r] : network.path_ptr[r + 1]]) for r in rows]


def is_tabulated(problem: StepProblem) -> bool:
    apart = ~np.eye(problem.topology.num_devices, dtype=bool)
    return bool(np.isinf(problem.topology.bandwidth[apart]).any())


def max_min(capacity, subflows: list[tuple[int, ...]]) -> list[float]:
    """The rate of every subflow over its links: the tightest link is shared, then taken away."""
    many = Counter(subflows)  # over the same links at the same rate
    room = {link: Fraction(float(capacity[link])) for links in many for link in links}
    rate: dict[tuple[int, ...], Fraction] = {}
    while len(rate) < len(many):
        crowd = Counter()
        for links in many.keys() - rate.keys():
            crowd.update(dict.fromkeys(links, many[links]))
        level, tight = min((room[link] / count, link) for link, count in crowd.items())
        for links in many.keys() - rate.keys():
            if tight in links:
                rate[links] = level
                for link in links:
                    room[link] -= level * many[links]
    return [float(rate[links]) for links in subflows]


def play_fair(problem: StepProblem, device, order, multipath: bool, weight=None) -> Played:
    """Everything moves forward in time together, from event to event.

    A transfer of weight w is w transfers of 1 / w of its bytes.
    """
    graph, topology = problem.graph, problem.topology
    n = graph.num_operators
    tabulated = is_tabulated(problem)
    capacity = np.ones(topology.num_ports) if tabulated else topology.network.link_capacity
    position = {int(op): p for p, op in enumerate(order)}
    start, finish = [None] * n, [None] * n
    inputs = [[t for t in range(graph.num_tensors) if op in graph.consumers(t)] for op in range(n)]
    there = {}  # (tensor, device) -> when it came
    queues = {d: [int(op) for op in order if device[op] == d] for d in range(topology.num_devices)}
    moving = []  # [tensor, source, target, began, latency to go, bytes to go, paths]
    sent, log, now = set(), [], 0.0
    while True:
        changed = True
        while changed:
            changed = False
            for d, queue in queues.items():
                if queue and finish[queue[0]] is not None and finish[queue[0]] <= now:
                    queue.pop(0)
                    changed = True
                if queue and start[queue[0]] is None:
                    op = queue[0]
                    if all((t, d) in there for t in inputs[op]):
                        start[op] = now
                        finish[op] = now + problem.op_seconds[op, d]
                        changed = True
            for op in range(n):
                if op in sent or finish[op] is None or finish[op] > now:
                    continue
                sent.add(op)
                changed = True
                d = int(device[op])
                there |= {(t, d): now for t in range(graph.num_tensors) if graph.producer[t] == op}
                for _, tensor, target in transfers_of(problem, op, device, position):
                    link = topology.link_class[d, target]
                    seconds = problem.transfer_seconds[tensor, link]
                    wait = min(seconds, topology.class_latency[link])
                    speed = 1.0 if tabulated else topology.class_bandwidth[link]
                    volume = (seconds - wait) * speed if seconds > 0 else 0.0
                    ways = paths_of(problem, d, target, multipath)
                    ways = ways * (1 if weight is None else int(weight[d, target]))
                    moving.append([tensor, d, target, now, wait, volume, ways])
            for move in [m for m in moving if m[4] <= 0 and m[5] <= 0]:
                moving.remove(move)
                there[move[0], move[2]] = now
                log.append((*move[:4], now))
                changed = True
        draining = [m for m in moving if m[4] <= 0]
        rates = iter(max_min(capacity, [way for m in draining for way in m[6]]))
        speed = [sum(next(rates) for _ in m[6]) for m in draining]
        coming = [f for f in finish if f is not None and f > now]
        coming += [now + m[4] for m in moving if m[4] > 0]
        coming += [now + m[5] / rate for m, rate in zip(draining, speed, strict=True)]
        if not coming:
            return Played(start, finish, log)
        then = min(coming)
        for move in moving:
            if move[4] > 0:
                move[4] -= then - now
                move[4] = 0.0 if move[4] <= SMALL * then else move[4]
        for move, rate in zip(draining, speed, strict=True):
            move[5] -= (then - now) * rate
            move[5] = 0.0 if move[5] <= SMALL * then * rate else move[5]
        now = then
