"""The mixed-integer program of a placement: who is where, and what that loads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from agents.linear_program import LinearProgram
from agents.step.grouping import GroupedProblem, interchangeable
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import Phase
from envs.hardware.servers import host_link
from envs.step.problem import OFFLOAD, RECOMPUTE

Terms = list[tuple[ArrayLike, ArrayLike]]  # columns and their coefficients

_MARGIN = 1e-3  # relative, by which what overflowed must shrink: more than HiGHS's tolerances
_ORDERED = 64  # groups, the first ones, whose places tell interchangeable devices apart


class AssignmentModel:
    """Where each of G groups goes on D devices, what it costs in load and memory.

    Minimise T (`finish`), in seconds / `scale`, subject to

    * load: T >= seconds of the groups on d, for every device d;
    * memory: state on d, and what `live_bytes` says it keeps of a micro-batch, <= capacity of d.

    Where the problem allows memory moves, a group may take its live bytes off the memory of its
    device: by computing its forward pass again, which adds to the load, or by way of the host:

    * host: T >= seconds that what goes to the host of d takes, one way.

    Co-location holds by construction. Of devices that can change places without a difference, the
    later one holds one of the first groups only if the earlier one holds a group before it.

    Variables: x[g, d] = 1 (`place`): group g is on device d; by memory move, 1 (`moves`): group g
    is on device d and makes that move.
    """

    def __init__(self, grouped: GroupedProblem) -> None:
        self.grouped = grouped
        self.live = live_bytes(grouped)
        self.program = LinearProgram()
        finite = np.where(grouped.allowed, grouped.seconds, 0.0)
        self.scale = float(finite.max(axis=1).sum()) or 1.0
        self.finish = self.program.add_columns(1, cost=1.0)
        self.place, *moves = (
            self.program.add_columns(grouped.seconds.shape, upper=grouped.allowed, integer=True)
            for _ in ("", *grouped.problem.memory_moves)
        )
        self.moves = dict(zip(grouped.problem.memory_moves, moves, strict=True))
        self._add_assignment(finite)
        self._add_moves()
        self._break_symmetry()

    def devices(self, solution: FloatArray) -> IntArray:
        """(G,) device of each group in a solution of the program."""
        return np.asarray(solution[self.place].argmax(axis=1), dtype=np.int64)

    def add_overflow(self, device: IntArray, excess: FloatArray) -> None:
        """Less on every device whose peak memory exceeds its capacity by `excess` (D,) bytes.

        The peak is taken to be the state of the groups on the device in `device` (G,) and as many
        times their live bytes as that takes: that set of groups, and any with more, is ruled out.
        Without live bytes it is taken to be in proportion to the state, and groups without
        state count alike. A memory move takes the live bytes of its group off.
        """
        for d in np.flatnonzero(excess > 0.0).tolist():
            mine = device == d
            size, freed = self.grouped.state, np.zeros(len(self.live))
            capacity = float(self.grouped.problem.capacity[d])
            if self.live[mine].any():
                beyond = max(capacity + float(excess[d]) - float(size[mine].sum()), 0.0)
                freed = beyond / self.live[mine].sum() * self.live
                size = size + freed
            size = size if size[mine].any() else mine.astype(np.float64)
            share = size / size[mine].sum()
            limit = capacity / (capacity + float(excess[d])) * (1.0 - _MARGIN)
            moved = self._moved(d, -freed / size[mine].sum())
            self.program.add_row([(self.place[:, d], share), *moved], upper=limit)

    def _add_assignment(self, seconds: FloatArray) -> None:
        capacity = self.grouped.problem.capacity
        self.program.add_rows(len(self.place), [(self.place, 1.0)], lower=1.0, upper=1.0)
        for d in range(len(capacity)):
            load: Terms = [(self.finish, 1.0), (self.place[:, d], -seconds[:, d] / self.scale)]
            if RECOMPUTE in self.moves:
                again = self._forward_seconds()[:, d] / self.scale
                load.append((self.moves[RECOMPUTE][:, d], -again))
            self.program.add_row(load, lower=0.0)
            if np.isfinite(capacity[d]):
                unit = max(float(capacity[d]), 1.0)
                held = self.place[:, d], (self.grouped.state + self.live) / unit
                moved = self._moved(d, -self.live / unit)
                self.program.add_row([held, *moved], upper=capacity[d] / unit)

    def _moved(self, device: int, freed: FloatArray) -> Terms:
        """Terms of what each group takes off `device` by each of its moves, `freed` (G,)."""
        return [(columns[:, device], freed) for columns in self.moves.values()]

    def _add_moves(self) -> None:
        """A group makes one move at most, where it is; what is sent to hosts takes time."""
        if self.moves:
            moved: Terms = [(columns.ravel(), -1.0) for columns in self.moves.values()]
            self.program.add_rows(self.place.size, [(self.place.ravel(), 1.0), *moved], lower=0.0)
        if OFFLOAD in self.moves:
            problem = self.grouped.problem
            for d in range(self.place.shape[1]):
                speed = host_link(problem.topology, d).bandwidth * self.scale
                away = self.grouped.live * problem.graph.num_micro_batches / speed
                self.program.add_row(
                    [(self.finish, 1.0), (self.moves[OFFLOAD][:, d], -away)], lower=0.0
                )

    def _forward_seconds(self) -> FloatArray:
        """(G, D) of the forward pieces of each group; 0 where one is not supported."""
        problem, fusion = self.grouped.problem, self.grouped.fusion
        forward = (problem.graph.phase == Phase.FORWARD)[:, None] & np.isfinite(problem.op_seconds)
        seconds = np.where(forward, problem.op_seconds, 0.0)
        return sum_rows(seconds, fusion.piece_group, fusion.num_groups)

    def _break_symmetry(self) -> None:
        for d in range(self.place.shape[1] - 1):
            alike = interchangeable(self.grouped.problem, d, d + 1)
            for group in range(min(self.grouped.num_groups, _ORDERED) if alike else 0):
                earlier = self.place[:group, d]
                self.program.add_row([(self.place[group, d + 1], 1.0), (earlier, -1.0)], upper=0.0)


class PlacementModel(AssignmentModel):
    """`AssignmentModel` with what the placement costs in traffic.

    * port: T >= seconds of all transfers through it, a tensor once per receiving device.

    `order.OrderModel` adds the order.

    Variables: z[u, v, s, d] = x[u, s] x[v, d] (`together`) for groups that exchange a tensor, exact
    by the transportation equalities sum_d z[u, v, s, d] = x[u, s] and
    sum_s z[u, v, s, d] = x[v, d]; of a tensor for several groups, the largest z (`sent`).
    """

    def __init__(self, grouped: GroupedProblem) -> None:
        super().__init__(grouped)
        self._pairs: dict[tuple[int, int], IntArray] = {}
        self._sent: dict[tuple[int, tuple[int, ...]], IntArray] = {}
        self._add_ports()

    def together(self, u: int, v: int) -> IntArray:
        """(D, D) columns z[u, v, s, d], with u != v."""
        if u > v:
            return self.together(v, u).T
        if (u, v) not in self._pairs:
            devices = self.place.shape[1]
            columns = self.program.add_columns((devices, devices), upper=1.0)
            for group, lines in ((u, columns), (v, columns.T)):
                self.program.add_rows(
                    devices, [(lines, 1.0), (self.place[group], -1.0)], lower=0.0, upper=0.0
                )
            self._pairs[u, v] = columns
        return self._pairs[u, v]

    def sent(self, home: int, targets: tuple[int, ...]) -> IntArray:
        """(D, D) columns: a tensor of `home` for `targets`, other groups, goes from s to d."""
        if (home, targets) not in self._sent:
            columns = self.together(home, targets[0])
            if len(targets) > 1:
                pairs = [self.together(home, target) for target in targets]
                columns = self.program.add_columns(columns.shape, upper=1.0)
                apart = ~np.eye(len(columns), dtype=np.bool_)
                for pair in pairs:
                    self.program.add_rows(
                        int(apart.sum()), [(columns[apart], 1.0), (pair[apart], -1.0)], lower=0.0
                    )
            self._sent[home, targets] = columns
        return self._sent[home, targets]

    def moving(self, tensors: Sequence[int], targets: tuple[int, ...], pairs: BoolArray) -> Terms:
        """Terms of the seconds that `tensors` travel for `targets`, from s to d in `pairs` (D, D).

        The tensors are those of one group, the targets other groups; in seconds / `scale`.
        """
        problem = self.grouped.problem
        home = int(self.grouped.fusion.piece_group[problem.graph.producer[tensors[0]]])
        total = problem.transfer_seconds[list(tensors)].sum(axis=0) / self.scale
        cost = total[problem.topology.link_class]
        return [(self.sent(home, targets)[pairs], cost[pairs])]

    def _targets(self, tensor: int) -> tuple[int, ...]:
        """The groups other than its producer's that a tensor is for."""
        graph, group = self.grouped.problem.graph, self.grouped.fusion.piece_group
        targets = np.unique(group[graph.consumers(tensor)])
        return tuple(targets[targets != group[graph.producer[tensor]]].tolist())

    def _add_ports(self) -> None:
        topology, graph = self.grouped.problem.topology, self.grouped.problem.graph
        bundles: dict[tuple[int, tuple[int, ...]], list[int]] = {}  # tensors, by group and targets
        home = self.grouped.fusion.piece_group[graph.producer].tolist()
        for tensor, group in enumerate(home):
            if targets := self._targets(tensor):
                bundles.setdefault((group, targets), []).append(tensor)
        apart = ~np.eye(topology.num_devices, dtype=np.bool_)
        load: list[Terms] = [[] for _ in range(topology.num_ports)]
        for (_, targets), tensors in bundles.items():
            for ports in (topology.send_port, topology.receive_port):
                for port in np.unique(ports[apart]):
                    used = apart & (ports == port)
                    load[port] += negative(self.moving(tensors, targets, used))
        for terms in load:
            if terms:
                self.program.add_row([(self.finish, 1.0), *terms], lower=0.0)


def live_bytes(grouped: GroupedProblem) -> FloatArray:
    """(G,) bytes of the first micro-batch that live together in any order, by producing group.

    They are what stands before its last forward piece (the loss) and is read behind it.
    """
    graph = grouped.problem.graph
    forward = np.flatnonzero((graph.micro_batch == 0) & (graph.phase == Phase.FORWARD))
    before, behind = np.zeros((2, graph.num_operators), dtype=np.bool_)
    before[forward[-1:]] = behind[forward[-1:]] = True
    edges = graph.edges
    for u, v, _ in edges[np.argsort(edges[:, 1], kind="stable")].tolist():
        behind[v] |= behind[u]
    for u, v, _ in edges[np.argsort(-edges[:, 0], kind="stable")].tolist():
        before[u] |= before[v]
    behind[forward[-1:]] = False
    kept = np.unique(edges[before[edges[:, 0]] & behind[edges[:, 1]], 2])
    home = grouped.fusion.piece_group[graph.producer[kept]]
    return sum_rows(graph.tensor_bytes[kept], home, grouped.num_groups)


def negative(terms: Terms) -> Terms:
    """`terms` with the opposite sign."""
    return [(columns, -np.asarray(values)) for columns, values in terms]
