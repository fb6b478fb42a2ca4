"""A slow step through pipes whose rates change with the phases."""

from __future__ import annotations

import numpy as np
from reference_step import Move, Played, flows, play_moves

from envs.step.problem import StepProblem


def play_phased(
    problem: StepProblem, device, order, begins, pipes
) -> tuple[Played, list[float], list[np.ndarray]]:
    """The step, when each phase began, and the bytes (S, S) that former phases had yet to send.

    `pipes` (P, S, S) are all positive.
    """
    topology = problem.topology
    server, inner = topology.server, topology.network.inner_bandwidth
    position = {int(op): p for p, op in enumerate(order)}
    moves = []
    for op, d, tensor, target, link, seconds in flows(problem, device, order):
        send, receive = topology.send_port[d, target], topology.receive_port[d, target]
        wait, queues = seconds, {("port", int(send)), ("port", int(receive))}
        if server[d] != server[target]:
            wait = min(seconds, topology.class_latency[link])
            queues = {("pipe", int(server[d]), int(server[target]))}
        left = (seconds - wait) * topology.class_bandwidth[link]
        moves.append(Move(tensor, d, target, op, wait, left, queues if seconds > 0 else set()))
    begun, behind = [0.0], [np.zeros((topology.num_servers, topology.num_servers))]

    def look(now, ended):
        while len(begun) < len(begins) and ended.issuperset(order[: begins[len(begun)]].tolist()):
            rest = np.zeros_like(behind[0])
            for move in moves:
                if position[move.op] < begins[len(begun)]:
                    rest[server[move.source], server[move.target]] += move.left
            begun.append(now)
            behind.append(rest)

    def rates(flowing):
        given = pipes[len(begun) - 1]
        ends = [(move.source, move.target) for move in flowing]
        return [min(given[server[a]][server[b]], inner[a, b]) for a, b in ends]

    return play_moves(problem, device, order, moves, rates, look), begun, behind
