"""A slow fair step: every subflow by itself, at exact rates."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from reference_step import Move, Played, flows, play_moves

from envs.hardware.network import NO_CHANNEL
from envs.step.problem import StepProblem


def paths_of(problem: StepProblem, i: int, j: int, multipath: bool) -> list[tuple[int, ...]]:
    """The links of every path that a transfer from device i to device j takes."""
    topology = problem.topology
    if is_tabulated(problem):
        return [(int(topology.send_port[i, j]), int(topology.receive_port[i, j]))]
    network = topology.network
    pair = i * topology.num_devices + j
    rows = list(network.paths_of(pair))
    if not multipath:
        if network.path_channel[rows[0]] != NO_CHANNEL:
            route = topology.port_names[topology.send_port[i, j]].split()[0]
            nic = [network.channel_source_nic[network.path_channel[row]] for row in rows]
            rows = [row for row, name in zip(rows, nic, strict=True) if name.split()[0] == route]
        rows = [rows[j % len(rows)]]
    return [tuple(network.links_on(r)) for r in rows]


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
    """A transfer of weight w is w transfers of 1 / w of its bytes."""
    topology = problem.topology
    tabulated = is_tabulated(problem)
    capacity = np.ones(topology.num_ports) if tabulated else topology.network.link_capacity
    moves = []
    for op, d, tensor, target, link, seconds in flows(problem, device, order):
        wait = min(seconds, topology.class_latency[link])
        speed = 1.0 if tabulated else topology.class_bandwidth[link]
        moves.append(Move(tensor, d, target, op, wait, (seconds - wait) * speed))

    def rates(flowing):
        ways = [
            paths_of(problem, move.source, move.target, multipath)
            * (1 if weight is None else int(weight[move.source, move.target]))
            for move in flowing
        ]
        rate = iter(max_min(capacity, [way for own in ways for way in own]))
        return [sum(next(rate) for _ in own) for own in ways]

    return play_moves(problem, device, order, moves, rates)
