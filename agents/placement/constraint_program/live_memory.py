"""Live tensors on devices, in a constraint program."""

from __future__ import annotations

import numpy as np

from agents.placement.constraint_program.operators import OperatorVariables
from agents.placement.constraint_program.placement import whole_bytes
from agents.placement.constraint_program.transfers import Transfer, TransferVariables


def add_live_memory(operators: OperatorVariables, transfers: TransferVariables) -> bool:
    """State and live tensors fit every device at all times, as `envs.step.timeline` counts.

    Returns whether they might have overflowed any.

    A tensor is live on its producer's device from the producer's start until producer, consumers
    there and departing transfers have ended; a copy from the start of its transfer until the
    consumers there have ended. In a program whose times are rounded down, what overlaps overlaps
    in any schedule that rounds to it.
    """
    graph, program = operators.problem.graph, operators.program
    place = operators.place
    of_tensor: list[list[Transfer]] = [[] for _ in range(graph.num_tensors)]
    for transfer in transfers.all:
        of_tensor[transfer.tensor].append(transfer)
    limited = False
    for d, capacity in enumerate(operators.problem.capacity.tolist()):
        if graph.state_bytes.sum() + graph.tensor_bytes.sum() <= capacity:
            continue
        limited = True
        sizes, room = whole_bytes(np.concatenate([place.state, graph.tensor_bytes]), capacity)
        state, live = sizes[: place.num_atoms].tolist(), sizes[place.num_atoms :].tolist()
        free = program.integer(0, room)
        held = [(on[d], state[a]) for a, on in enumerate(place.by_atom) if d in on]
        program.add_linear([(free, 1), *held], upper=room)
        intervals: list[int] = []
        demands: list[int] = []
        for tensor in np.flatnonzero(live).tolist():
            lives = _lives(operators, of_tensor[tensor], tensor, d)
            intervals += lives
            demands += [live[tensor]] * len(lives)
        program.add_cumulative(intervals, demands, free)
    return limited


def _lives(
    operators: OperatorVariables, transfers: list[Transfer], tensor: int, d: int
) -> list[int]:
    """The intervals in which `tensor`, that goes by `transfers`, is live on device d."""
    program, place = operators.program, operators.place
    u = int(operators.problem.graph.producer[tensor])
    found: list[int] = []
    if d in place.of(u):
        home = place.of(u)[d]
        end = program.integer(0, operators.horizon)
        program.add_order(operators.end[u], end)
        for transfer in transfers:
            if d in transfer.goes:
                program.add_order(transfer.end, end, when=[transfer.goes[d]])
        for v in operators.problem.graph.consumers(tensor).tolist():
            if d in place.of(v):
                program.add_order(operators.end[v], end, when=[home, place.of(v)[d]])
        found.append(_interval(operators, operators.start[u], end, home))
    for transfer in transfers:
        if transfer.target == d:
            arrives = program.either(list(transfer.goes.values()))
            end = program.integer(0, operators.horizon)
            program.add_order(transfer.end, end, when=[arrives])
            for v in transfer.readers:
                program.add_order(operators.end[v], end, when=[arrives, place.of(v)[d]])
            found.append(_interval(operators, transfer.start, end, arrives))
    return found


def _interval(operators: OperatorVariables, start: int, end: int, present: int) -> int:
    size = operators.program.integer(0, operators.horizon)
    return operators.program.interval(start, size, end, present)
