"""Schedules in which nothing is put off, in a constraint program."""

from __future__ import annotations

from agents.placement.constraint_program.operators import OperatorVariables
from agents.placement.constraint_program.transfers import TransferVariables

_MEETINGS = 50_000  # pairs of transfers on a port


def add_no_delay(operators: OperatorVariables, transfers: TransferVariables, slack: int) -> None:
    """Every operator and transfer starts at most `slack` units after something it had to wait for.

    An operator waits for the operators before it on its device and for the tensors that arrive
    there; a transfer for its producer and for the transfers before it on its ports. With slack 0
    the times are those of the simulator. Where times are rounded down, a schedule without delay
    may have one unit of it after rounding: an end is the rounded start plus the rounded duration.

    Adds nothing where too many transfers may meet on ports.
    """
    if sum(len(held) ** 2 for held in transfers.holds.values()) > _MEETINGS:
        return
    for v in range(len(operators.start)):
        _add_operator(operators, transfers, v, slack)
    for index in range(len(transfers.all)):
        _add_transfer(operators, transfers, index, slack)


def _add_operator(
    operators: OperatorVariables, transfers: TransferVariables, v: int, slack: int
) -> None:
    program, here = operators.program, operators.place.of(v)
    first = program.boolean()
    program.add_linear([(operators.start[v], 1)], upper=slack, when=[first])
    reasons = [first]
    for u in range(len(operators.start)):
        there = operators.place.of(u)
        if u == v or not there.keys() & here.keys():
            continue
        before = operators.before(u, v)
        if before == ~program.true:
            continue
        reason = program.boolean()
        program.add_clause([~reason, before])
        for d, on in here.items():
            program.add_clause([~reason, ~on, *([there[d]] if d in there else [])])
        program.add_order(operators.start[v], operators.end[u], gap=-slack, when=[reason])
        reasons.append(reason)
    for transfer in transfers.all:
        if v in transfer.readers:
            reason = program.boolean()
            program.add_clause([~reason, here[transfer.target]])
            program.add_clause([~reason, *transfer.goes.values()])
            program.add_order(operators.start[v], transfer.end, gap=-slack, when=[reason])
            reasons.append(reason)
    program.add_clause(reasons)


def _add_transfer(
    operators: OperatorVariables, transfers: TransferVariables, index: int, slack: int
) -> None:
    program, transfer = operators.program, transfers.all[index]
    at_once = program.boolean()
    program.add_order(transfer.start, operators.end[transfer.producer], gap=-slack, when=[at_once])
    reasons = [at_once]
    for held in transfers.holds.values():
        for other, literal in held.items():
            if index not in held or other == index:
                continue
            before = transfers.served_before(other, index)
            if before == ~program.true:
                continue
            reason = program.boolean()
            for needed in (before, literal, held[index]):
                program.add_clause([~reason, needed])
            program.add_order(transfer.start, transfers.all[other].end, gap=-slack, when=[reason])
            reasons.append(reason)
    for goes in transfer.goes.values():
        program.add_clause([~goes, *reasons])
