"""Transfers of tensors and the ports that serve them, in a constraint program."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from agents.placement.constraint_program.operators import OperatorVariables

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Transfer:
    """A tensor on its way to one device, if it goes there: variables and literals."""

    tensor: int
    producer: int  # operator
    target: int  # device
    readers: tuple[int, ...]  # consumers that may be on the target while the producer is not
    start: int
    end: int
    goes: dict[int, int]  # source device: "it goes there from this device"
    length: dict[int, int]  # source device: units


@dataclass(frozen=True)
class _Turn:
    """A producer's use of a port."""

    first: int  # variable, not after the start of any of its transfers
    last: int  # variable, not before the end of any
    held: tuple[int, ...]  # literals without which the two mean nothing


class TransferVariables:
    """Every tensor goes once to each device that has consumers of it, and its producer not.

    All consumers there wait for it. A transfer that takes time holds its send and its receive port.
    Ports serve the producers by position; the transfers of one producer by the position of the
    first consumer on the target, then by tensor.

    Args:
        operators: those that produce and consume.
        seconds: (T, L) units of each tensor on each link class.
    """

    def __init__(self, operators: OperatorVariables, seconds: IntArray) -> None:
        self._operators = operators
        self._program = operators.program
        self._seconds = seconds
        self.all: list[Transfer] = []
        self.holds: dict[int, dict[int, int]] = defaultdict(dict)  # port, transfer: "it holds it"
        self._first: dict[Transfer, int] = {}
        self._served: dict[tuple[int, int], int] = {}
        graph = operators.problem.graph
        for tensor in range(graph.num_tensors):
            for target in range(operators.problem.topology.num_devices):
                self._add_transfer(tensor, target)
        self._add_ports()

    def _add_transfer(self, tensor: int, target: int) -> None:
        operators, program = self._operators, self._program
        graph, link = operators.problem.graph, operators.problem.topology.link_class
        u = int(graph.producer[tensor])
        sources = {s: on for s, on in operators.place.of(u).items() if s != target}
        readers = [
            v for v in graph.consumers(tensor).tolist()
            if target in operators.place.of(v) and not operators.together(u, v)
        ]  # fmt: skip
        if not readers or not sources:
            return
        wanted = program.either([operators.place.of(v)[target] for v in readers])
        goes = {s: program.both(on, wanted) for s, on in sources.items()}
        length = {s: int(self._seconds[tensor, link[s, target]]) for s in sources}
        start, end = (program.integer(0, operators.horizon) for _ in range(2))
        durations = [(goes[s], -length[s]) for s in goes]
        program.add_linear([(end, 1), (start, -1), *durations], lower=0, upper=0)
        program.add_order(operators.end[u], start)
        for v in readers:
            program.add_order(end, operators.start[v], when=[operators.place.of(v)[target]])
        self.all.append(Transfer(tensor, u, target, tuple(readers), start, end, goes, length))

    def _add_ports(self) -> None:
        topology = self._operators.problem.topology
        users: dict[int, dict[int, dict[int, list[int]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )  # port, producer, transfer: literals of which one makes it hold the port
        for index, transfer in enumerate(self.all):
            for s, goes in transfer.goes.items():
                if transfer.length[s] > 0:
                    for end in (topology.send_port, topology.receive_port):
                        at = int(end[s, transfer.target])
                        users[at][transfer.producer][index].append(goes)
        for port, producers in users.items():
            self._add_serving(port)
            turns = {u: self._turn(port, transfers) for u, transfers in producers.items()}
            for u, x in combinations(turns, 2):
                before = self._operators.before(u, x)
                self._add_turns(turns[u], turns[x], before)
                self._add_turns(turns[x], turns[u], ~before)

    def _add_serving(self, port: int) -> None:
        """One transfer at a time through `port`."""
        topology = self._operators.problem.topology
        intervals = [
            self._program.fixed_interval(transfer.start, transfer.length[s], goes)
            for transfer in self.all
            for s, goes in transfer.goes.items()
            if transfer.length[s] > 0
            and port in (topology.send_port[s, transfer.target],
                         topology.receive_port[s, transfer.target])
        ]  # fmt: skip
        self._program.add_no_overlap(intervals)

    def _add_turns(self, first: _Turn, second: _Turn, when: int) -> None:
        if when != ~self._program.true:
            given = [when, *first.held, *second.held]
            self._program.add_order(first.last, second.first, when=given)

    def _turn(self, port: int, users: dict[int, list[int]]) -> _Turn:
        """A producer's use of `port` for the transfers `users`."""
        program = self._program
        held = {index: program.either(literals) for index, literals in users.items()}
        self.holds[port].update(held)
        turns = {
            index: _Turn(self.all[index].start, self.all[index].end, (literal,))
            for index, literal in held.items()
        }
        for a, b in combinations(sorted(held), 2):
            before = self.served_before(a, b)
            self._add_turns(turns[a], turns[b], before)
            self._add_turns(turns[b], turns[a], ~before)
        if len(turns) == 1:
            return next(iter(turns.values()))
        first, last = (program.integer(0, self._operators.horizon) for _ in range(2))
        for turn in turns.values():
            program.add_order(first, turn.first, when=turn.held)
            program.add_order(turn.last, last, when=turn.held)
        return _Turn(first, last, ())

    def served_before(self, a: int, b: int) -> int:
        """The literal "transfer a is served before b", by number, if they hold the same port."""
        if a > b:
            return ~self.served_before(b, a)
        program, one, other = self._program, self.all[a], self.all[b]
        if one.producer != other.producer:
            return self._operators.before(one.producer, other.producer)
        if (a, b) in self._served:
            return self._served[a, b]
        if len(one.readers) == len(other.readers) == 1:
            v, y = one.readers[0], other.readers[0]
            literal = program.true if v == y else self._operators.before(v, y)
        else:
            for v, y in combinations(sorted({*one.readers, *other.readers}), 2):
                self._operators.before(v, y)  # so that no two of them have the same position
            literal = program.boolean()
            first, second = self._first_position(one), self._first_position(other)
            # at equal positions one consumer reads both, and the smaller tensor goes first
            program.add_order(first, second, when=[literal])
            program.add_order(second, first, gap=1, when=[~literal])
        self._served[a, b] = literal
        return literal

    def _first_position(self, transfer: Transfer) -> int:
        """The variable of the position of the first consumer that is on the target."""
        program, operators = self._program, self._operators
        if len(transfer.readers) == 1:
            return operators.position[transfer.readers[0]]
        if transfer not in self._first:
            first = program.integer(0, len(operators.position) - 1)
            chosen = [program.boolean() for _ in transfer.readers]
            for v, choice in zip(transfer.readers, chosen, strict=True):
                there, position = operators.place.of(v)[transfer.target], operators.position[v]
                program.add_clause([~choice, there])
                program.add_clause([~there, *chosen])
                program.add_order(first, position, when=[there])
                program.add_order(position, first, when=[choice])
            self._first[transfer] = first
        return self._first[transfer]
