"""Slow, obvious simulators in plain Python: what the compiled ones must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

SMALL = 1e-12  # relative: what is left of a transfer when its end and another event coincide


@dataclass
class Played:
    start: list[float]
    finish: list[float]
    transfers: list[tuple[int, int, int, float, float]]  # tensor, source, destination, times

    @property
    def step_time(self) -> float:
        return max(self.finish, default=0.0)


def log_of(timeline: Timeline) -> list[tuple[int, int, int, float, float]]:
    """The transfers of a timeline, as `Played` has them."""
    columns = ("tensor", "source", "destination", "start", "finish")
    return list(zip(*(getattr(timeline, f"transfer_{c}").tolist() for c in columns), strict=True))


def transfers_of(problem: StepProblem, op: int, device, position) -> list[tuple[int, int, int]]:
    """(first consumer's position, tensor, receiving device) of every transfer op causes."""
    found = {}
    for tensor in range(problem.graph.num_tensors):
        if problem.graph.producer[tensor] != op:
            continue
        for consumer in problem.graph.consumers(tensor):
            if device[consumer] != device[op]:
                key = (tensor, int(device[consumer]))
                found[key] = min(found.get(key, len(position)), int(position[consumer]))
    return sorted((first, tensor, target) for (tensor, target), first in found.items())


def play_in_order(problem: StepProblem, device, order, ports: bool = True) -> Played:
    """Resources serve in a static sequence: every op and transfer waits for its predecessors."""
    graph, topology = problem.graph, problem.topology
    position = {int(op): p for p, op in enumerate(order)}
    start = [0.0] * graph.num_operators
    finish = [0.0] * graph.num_operators
    arrived = {}  # (tensor, device) -> time
    device_free = [0.0] * topology.num_devices
    send_free = {}
    log = []
    for op in order:
        d = device[op]
        inputs = [
            arrived[tensor, d]
            for tensor in range(graph.num_tensors)
            if op in graph.consumers(tensor)
        ]
        start[op] = max([device_free[d], *inputs])
        finish[op] = start[op] + problem.op_seconds[op, d]
        device_free[d] = finish[op]
        for tensor in range(graph.num_tensors):
            if graph.producer[tensor] == op:
                arrived[tensor, d] = finish[op]
        for _, tensor, target in transfers_of(problem, op, device, position):
            seconds = problem.transfer_seconds[tensor, topology.link_class[d, target]]
            begin = end = finish[op]
            if ports and seconds > 0:
                s, r = topology.send_port[d, target], topology.receive_port[d, target]
                begin = max(finish[op], send_free.get(s, 0.0), send_free.get(r, 0.0))
                end = begin + seconds
                send_free[s] = send_free[r] = end
            arrived[tensor, target] = end
            log.append((tensor, int(d), target, begin, end))
    return Played(start, finish, log)


def _seconds(problem: StepProblem, tensor, source, target, ports: bool) -> float:
    link = problem.topology.link_class[source, target]
    return problem.transfer_seconds[tensor, link] if ports else 0.0


def play_ready(problem: StepProblem, device, order, ports: bool = True) -> Played:
    """Whoever is ready goes, best position first; scanned anew at every instant."""
    graph, topology = problem.graph, problem.topology
    n = graph.num_operators
    position = {int(op): p for p, op in enumerate(order)}
    start, finish = [None] * n, [None] * n
    inputs = [[] for _ in range(n)]
    for tensor in range(graph.num_tensors):
        for consumer in graph.consumers(tensor):
            inputs[consumer].append(tensor)
    have = set()  # (tensor, device) that are there
    todo = []  # transfers not started: (producer position, first consumer, tensor, source, target)
    running = []  # (end, "op", op) or (end, "transfer", tensor, source, target, seconds)
    busy_ports = set()
    busy_devices = set()
    log = []
    now = 0.0
    while True:
        coming = any(_seconds(problem, *entry[2:], ports) == 0 for entry in todo)
        for op in sorted(range(n), key=position.__getitem__):
            if coming:  # at this very instant: who is ready is known when it has come
                break
            d = device[op]
            is_ready = all((tensor, d) in have for tensor in inputs[op])
            if start[op] is None and is_ready and d not in busy_devices:
                start[op], finish[op] = now, now + problem.op_seconds[op, d]
                busy_devices.add(d)
                running.append((finish[op], "op", op))
        for entry in sorted(todo):
            _, _, tensor, source, target = entry
            seconds = _seconds(problem, tensor, source, target, ports)
            held = {topology.send_port[source, target], topology.receive_port[source, target]}
            if seconds > 0 and held & busy_ports:
                continue
            if seconds > 0:
                busy_ports |= held
            todo.remove(entry)
            log.append((tensor, int(source), int(target), now, now + seconds))
            running.append((now + seconds, "transfer", tensor, source, target, held, seconds))
        if not running:
            return Played(start, finish, log)
        now = min(entry[0] for entry in running)
        for entry in [entry for entry in running if entry[0] == now]:
            running.remove(entry)
            if entry[1] == "op":
                op = entry[2]
                busy_devices.discard(device[op])
                for tensor in range(graph.num_tensors):
                    if graph.producer[tensor] == op:
                        have.add((tensor, device[op]))
                for first, tensor, target in transfers_of(problem, op, device, position):
                    todo.append((position[op], first, tensor, int(device[op]), target))
            else:
                _, _, tensor, _, target, held, seconds = entry
                have.add((tensor, target))
                if seconds > 0:
                    busy_ports -= held


@dataclass
class Move:
    """A transfer whose bytes flow at a rate, once its latency is over."""

    tensor: int
    source: int
    target: int
    op: int  # that must have ended
    wait: float  # seconds to go
    left: float  # bytes to go
    queues: set = field(default_factory=set)  # of what it holds while it lasts, in turn
    began: float | None = None
    ended: float | None = None


def flows(problem: StepProblem, device, order):
    """(operator, its device, tensor, receiving device, class of the link, seconds), in `order`."""
    position = {int(op): p for p, op in enumerate(order)}
    for op in order.tolist():
        d = int(device[op])
        for _, tensor, target in transfers_of(problem, op, device, position):
            link = problem.topology.link_class[d, target]
            yield op, d, tensor, target, link, problem.transfer_seconds[tensor, link]


def play_moves(problem: StepProblem, device, order, moves, rates, look=lambda now, ended: None):
    """The step in which everything moves forward in time together, from event to event.

    Args:
        moves: every `Move`, in the order in which queues serve them.
        rates: bytes/s of each of some moves that flow beside each other, not all 0.
        look: what sees the seconds and the operators that have ended, at every event.
    """
    n = problem.graph.num_operators
    start, finish, there = [None] * n, [None] * n, set()
    waiting = {d: [int(op) for op in order if device[op] == d] for d in set(device.tolist())}
    lines = {}
    for move in moves:
        for queue in move.queues:
            lines.setdefault(queue, []).append(move)
    inputs = [[] for _ in range(n)]
    for u, op, tensor in problem.graph.edges.tolist():
        inputs[op].append((u, tensor))
    now = 0.0
    while True:
        changed = True
        while changed:  # everything that happens now
            changed = False
            ended = {op for op in range(n) if finish[op] is not None and finish[op] <= now}
            look(now, ended)
            for d, queue in waiting.items():
                if queue and queue[0] in ended:
                    queue.pop(0)
                    changed = True
                op = queue[0] if queue else None
                if op is not None and start[op] is None and all(
                    u in ended if device[u] == d else (tensor, d) in there
                    for u, tensor in inputs[op]
                ):  # fmt: skip
                    start[op], finish[op] = now, now + problem.op_seconds[op, d]
                    changed = True
            for move in moves:
                if move.began is None and move.op in ended and all(
                    lines[queue][0] is move for queue in move.queues
                ):  # fmt: skip
                    move.began, changed = now, True
                if move.began is not None and move.ended is None and move.wait + move.left <= 0:
                    move.ended, changed = now, True
                    there.add((move.tensor, move.target))
                    for queue in move.queues:
                        lines[queue].pop(0)
        under_way = [move for move in moves if move.began is not None and move.ended is None]
        late = [move for move in under_way if move.wait > 0]
        flowing = [move for move in under_way if move.wait <= 0]
        speed = dict(zip(map(id, flowing), rates(flowing), strict=True))
        coming = [f for f in finish if f is not None and f > now]
        coming += [now + move.wait for move in late]
        coming += [now + move.left / speed[id(move)] for move in flowing]
        if not coming:
            log = [(m.tensor, m.source, m.target, m.began, m.ended) for m in moves]
            return Played(start, finish, log)
        then = min(coming)
        for move in late:
            move.wait -= then - now
            move.wait = 0.0 if move.wait <= SMALL * then else move.wait
        for move in flowing:
            move.left -= (then - now) * speed[id(move)]
            if move.left <= SMALL * max(1.0, then) * speed[id(move)]:
                move.left = 0.0
        now = then


def peak_memory(problem: StepProblem, device, played: Played) -> list[float]:
    """Sample the live bytes right after every start; intervals are half open."""
    graph = problem.graph
    spans = []  # (device, from, to, bytes)
    for tensor in range(graph.num_tensors):
        producer = graph.producer[tensor]
        home = device[producer]
        ends = [played.finish[producer]]
        ends += [played.finish[c] for c in graph.consumers(tensor) if device[c] == home]
        for moved, _, target, begin, end in played.transfers:
            if moved == tensor:
                ends.append(end)
                there = [played.finish[c] for c in graph.consumers(tensor) if device[c] == target]
                spans.append((target, begin, max(end, *there), graph.tensor_bytes[tensor]))
        spans.append((home, played.start[producer], max(ends), graph.tensor_bytes[tensor]))
    peaks = []
    for d in range(problem.topology.num_devices):
        resident = sum(graph.state_bytes[op] for op in range(len(device)) if device[op] == d)
        times = {begin for place, begin, _, _ in spans if place == d} | {0.0}
        peaks.append(
            resident
            + max(
                sum(size for place, a, b, size in spans if place == d and a <= time < b)
                for time in times
            )
        )
    return peaks
