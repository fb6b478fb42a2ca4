"""Transfers of tensors and the ports that serve them, in a constraint program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from agents.constraint_program.program import (
    ConstraintProgram,
    OperatorVariables,
    TimeScale,
    whole_bytes,
)
from agents.step.grouping import canonical
from envs.arrays import IntArray
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator


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
        """One transfer at a time through each port; producers take turns."""
        topology, program = self._operators.problem.topology, self._program
        users: dict[int, dict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )  # port, transfer: from which devices it holds the port
        for index, transfer in enumerate(self.all):
            for s, length in transfer.length.items():
                if length > 0:
                    for end in (topology.send_port, topology.receive_port):
                        users[int(end[s, transfer.target])][index].append(s)
        for port, transfers in users.items():
            intervals = []
            producers: dict[int, dict[int, list[int]]] = defaultdict(dict)
            for index, sources in transfers.items():
                transfer = self.all[index]
                for s in sources:
                    interval = (transfer.start, transfer.length[s], transfer.goes[s])
                    intervals.append(program.fixed_interval(*interval))
                producers[transfer.producer][index] = [transfer.goes[s] for s in sources]
            program.add_no_overlap(intervals)
            turns = {u: self._turn(port, literals) for u, literals in producers.items()}
            for u, x in combinations(turns, 2):
                self._add_turns(turns[u], turns[x], self._operators.before(u, x))

    def _add_turns(self, first: _Turn, second: _Turn, before: int) -> None:
        """The first before the second where literal `before` is true, else after it."""
        for when, one, other in ((before, first, second), (~before, second, first)):
            if when != ~self._program.true:
                given = [when, *one.held, *other.held]
                self._program.add_order(one.last, other.first, when=given)

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
            self._add_turns(turns[a], turns[b], self.served_before(a, b))
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
    program, here, start = operators.program, operators.place.of(v), operators.start[v]
    first = program.boolean()
    program.add_linear([(start, 1)], upper=slack, when=[first])
    reasons = [first]
    for u in range(len(operators.start)):
        there = operators.place.of(u)
        if u == v or not there.keys() & here.keys():
            continue
        before = operators.before(u, v)
        if before == ~program.true:
            continue
        meet = [[~on, *([there[d]] if d in there else [])] for d, on in here.items()]
        reasons.append(_reason(program, [[before], *meet], operators.end[u], start, slack))
    for transfer in transfers.all:
        if v in transfer.readers:
            arrives = [[here[transfer.target]], list(transfer.goes.values())]
            reasons.append(_reason(program, arrives, transfer.end, start, slack))
    program.add_clause(reasons)


def _add_transfer(
    operators: OperatorVariables, transfers: TransferVariables, index: int, slack: int
) -> None:
    program, transfer = operators.program, transfers.all[index]
    reasons = [_reason(program, [], operators.end[transfer.producer], transfer.start, slack)]
    for held in transfers.holds.values():
        for other, literal in held.items():
            if index not in held or other == index:
                continue
            before = transfers.served_before(other, index)
            if before == ~program.true:
                continue
            meet = [[before], [literal], [held[index]]]
            end = transfers.all[other].end
            reasons.append(_reason(program, meet, end, transfer.start, slack))
    for goes in transfer.goes.values():
        program.add_clause([~goes, *reasons])


def _reason(
    program: ConstraintProgram, clauses: Sequence[Sequence[int]], end: int, start: int, slack: int
) -> int:
    """The literal "starts when that ends, for all `clauses` are true"."""
    reason = program.boolean()
    for clause in clauses:
        program.add_clause([~reason, *clause])
    program.add_order(start, end, gap=-slack, when=[reason])
    return reason


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
        size = program.integer(0, operators.horizon)
        found.append(program.interval(operators.start[u], size, end, home))
    for transfer in transfers:
        if transfer.target == d:
            arrives = program.either(list(transfer.goes.values()))
            end = program.integer(0, operators.horizon)
            program.add_order(transfer.end, end, when=[arrives])
            for v in transfer.readers:
                program.add_order(operators.end[v], end, when=[arrives, place.of(v)[d]])
            size = program.integer(0, operators.horizon)
            found.append(program.interval(transfer.start, size, end, arrives))
    return found


class MakespanModel:
    """The least step time of the plans of `problem` under `single_port`, in units of `scale`.

    Devices and ports follow one permutation of the operators, as in the simulator
    (`OperatorVariables`, `TransferVariables`). The times of the model may be later than the
    simulator's, which starts everything as soon as it can, never sooner: played, a solution of
    value T takes at most T, and every plan of at most `horizon` units is a solution of the value
    that it takes.

    Where live tensors can overflow a device, its cumulative memory is limited. A solution may still
    overflow when it is played sooner than in the model: `forbid_delay` and `forbid` are then to
    rule it out.

    Args:
        problem: at least one operator.
        scale: how times become integers; where it rounds down, so does the optimum.
        horizon: units, the largest step time of interest.
        lower: units, below which no step time is.
    """

    def __init__(self, problem: StepProblem, scale: TimeScale, horizon: int, lower: int) -> None:
        seconds = scale.within(problem.op_seconds, horizon)
        moves = scale.within(problem.transfer_seconds, horizon)
        self.program = ConstraintProgram()
        self._operators = OperatorVariables(self.program, problem, seconds, horizon, lower)
        self._transfers = TransferVariables(self._operators, moves)
        self.program.minimize(self._operators.finish)
        # whether live tensors can overflow a device
        self.tight = add_live_memory(self._operators, self._transfers)
        self._slack = 0 if scale.exact else 1
        self._rounded = replace(
            problem,
            op_seconds=seconds.astype(np.float64),
            transfer_seconds=moves.astype(np.float64),
        )

    @property
    def watched(self) -> list[int]:
        """The variables that `plan` reads."""
        return [*self._operators.position, *self._operators.place.watched]

    def plan(self, values: Sequence[int]) -> Plan:
        """The plan of a solution, given the values of `watched`."""
        n = len(self._operators.position)
        order = np.argsort(np.array(values[:n]), kind="stable")
        return Plan(Placement(self._operators.place.devices(values[n:])), order)

    def set_hint(self, plan: Plan) -> None:
        """Start the search from `plan`."""
        operators = self._operators
        device = canonical(plan.placement.device, operators.place.classes)
        played = StepSimulator(self._rounded).run(device, plan.order)
        position = np.argsort(plan.order)
        hint = operators.place.hint(device)
        for variables, numbers in (
            (operators.start, played.op_start),
            (operators.end, played.op_finish),
            (operators.position, position),
        ):
            hint.update(zip(variables, numbers.astype(np.int64).tolist(), strict=True))
        hint[operators.finish] = int(played.op_finish.max())
        for literal in operators.order_literals(position):
            hint[literal if literal >= 0 else ~literal] = int(literal >= 0)
        moved = {
            (tensor, target): (begin, end)
            for tensor, target, begin, end in zip(
                played.transfer_tensor.tolist(),
                played.transfer_destination.tolist(),
                played.transfer_start.astype(np.int64).tolist(),
                played.transfer_finish.astype(np.int64).tolist(),
                strict=True,
            )
        }
        for transfer in self._transfers.all:
            done = int(played.op_finish[transfer.producer])
            key = (transfer.tensor, transfer.target)
            hint[transfer.start], hint[transfer.end] = moved.get(key, (done, done))
        self.program.set_hint(hint)

    def forbid_delay(self) -> None:
        """Nothing starts later than it can, but for the rounding.

        Makes the program larger, and often slower to solve.
        """
        add_no_delay(self._operators, self._transfers, self._slack)

    def forbid(self, plan: Plan) -> None:
        """Rule out `plan` and all that play alike.

        These have the same placement, and order alike all pairs of operators that may meet on a
        device or on a port.
        """
        place = self._operators.place.literals(plan.placement.device)
        alike = [*place, *self._operators.order_literals(np.argsort(plan.order))]
        self.program.add_clause([~literal for literal in alike])
