"""Annealing walks over partitions: what the max-load and the latency search have of their own."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agents.placement.lower_bound import longest_paths
from agents.placement.partitioning.atoms import IntArray, PartitionAtoms
from agents.placement.partitioning.bound import max_load_bound
from agents.placement.partitioning.kernel import Loads, Proposal, anneal_loads
from agents.placement.partitioning.latency_kernel import Calls, anneal_latency
from envs.errors import InputError
from envs.graphs.op_graph import NONE
from envs.partition.latency import LatencyProblem
from envs.partition.max_load import MaxLoadProblem
from envs.partition.problem import PartitionProblem

_FORBIDDEN = 1e3  # seconds of an atom where it is not allowed, in seconds of all atoms
_BALANCE = 0.3  # weight of all work against the latency, times the temperature
_LEAST = 1e-15  # seconds: a scale, where nothing takes any time
_LARGEST_CLUSTER = 256  # atoms that move together
_ROUNDING = 1e-12  # relative; covers the rounding of sums
_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


class PartitionWalk(Protocol):
    """Walks over placements of atoms by random moves and keeps the best that fits."""

    atoms: PartitionAtoms
    arcs: IntArray  # (P, 2) operators: a start is a line along these
    best: NDArray[np.uint32]  # (A,)
    chunk: int  # moves that take a few milliseconds
    bound_takes_time: bool  # whether `bound` gains from seconds

    @property
    def value(self) -> float:
        """Seconds of `best`; inf: nothing that fits yet."""

    def stand(self, device: IntArray) -> None:
        """Go on from placement `device` (A,)."""

    def keep(self, device: IntArray, seconds: float) -> None:
        """Take `device` (A,), whose objective is `seconds`, for the best so far."""

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves; `temperature` is a relative change of the objective."""

    def bound(self, seconds: float) -> float:
        """A lower bound on the objective, worked out within `seconds`; 0: what needs no time."""


class _Walk:
    """What the walks share: state, scratch, and the units of the cost."""

    def __init__(self, problem: PartitionProblem, precedence: IntArray, seed: int) -> None:
        self.atoms = PartitionAtoms.build(problem, precedence)
        a, d = self.atoms.seconds.shape
        fastest = np.where(self.atoms.allowed, self.atoms.seconds, np.inf).min(axis=1)
        self._work = max(float(fastest[np.isfinite(fastest)].sum()), _LEAST)
        room = np.ascontiguousarray(problem.step.capacity, dtype=np.float64)
        self._traffic = self.atoms.traffic(room, _FORBIDDEN * self._work)
        self.best = np.zeros(a, dtype=np.uint32)
        self._least = np.array([np.inf])
        self._random = np.random.default_rng(seed)
        self._loads = Loads(
            device=np.zeros(a, dtype=np.uint32),
            readers=np.zeros((len(self.atoms.sender), d), dtype=np.int64),
            load=np.zeros(d),
            used=np.zeros(d),
            arcs=np.zeros((d, d), dtype=np.int64),
        )
        self._trial = Proposal(
            member=np.zeros(a + 1, dtype=np.uint32),
            goal=np.zeros(a + 1, dtype=np.uint32),
            origin=np.zeros(a + 1, dtype=np.uint32),
            mark=np.zeros(a, dtype=np.int64),
            ticket=np.zeros(1, dtype=np.int64),
        )
        self._charge = np.zeros(1)
        self._largest = max(2, min(a // 4, _LARGEST_CLUSTER))

    @property
    def value(self) -> float:
        """Seconds of `best`; inf: nothing that fits yet."""
        return float(self._least[0])

    def stand(self, device: IntArray) -> None:
        """Go on from placement `device` (A,)."""
        self._loads.device[:] = device

    def keep(self, device: IntArray, seconds: float) -> None:
        """Take `device` (A,), whose objective is `seconds`, for the best so far."""
        self.best[:] = device
        self._least[0] = seconds


class LoadWalk(_Walk):
    """The walk of a `MaxLoadProblem`, contiguous or not."""

    chunk = 4096
    bound_takes_time = True

    def __init__(self, problem: MaxLoadProblem, seed: int) -> None:
        super().__init__(problem, problem.precedence if problem.contiguous else _NO_PAIRS, seed)
        self.arcs = problem.precedence
        self._scale = self._work / len(self._traffic.room)

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves; `temperature` is a relative change of the loads' norm."""
        anneal_loads(
            self._traffic, self._loads, self._trial, self._scale, self._charge, temperature, steps,
            self._largest, self._random, self.best, self._least,
        )  # fmt: skip

    def bound(self, seconds: float) -> float:
        """See `max_load_bound`."""
        return max_load_bound(self.atoms, self.value, seconds)


class LatencyWalk(_Walk):
    """The walk of a `LatencyProblem`."""

    chunk = 256
    bound_takes_time = False

    def __init__(self, problem: LatencyProblem, seed: int) -> None:
        super().__init__(problem, _NO_PAIRS, seed)
        step = problem.step
        self.arcs = step.graph.edges[:, :2]
        n, devices = step.op_seconds.shape
        on_host = step.op_seconds[:, problem.host] if problem.host != NONE else np.zeros(n)
        self._calls = Calls(
            atom=self.atoms.of.astype(np.uint32),
            host_seconds=np.where(np.isfinite(on_host), on_host, _FORBIDDEN * self._work),
            use_ptr=step.graph.use_ptr.astype(np.uint32),
            use=step.graph.use_op.astype(np.uint32),
            host=devices if problem.host == NONE else int(problem.host),
            block=np.zeros(n, dtype=np.uint32),
            following=np.zeros(n, dtype=np.int64),
            first=np.zeros(devices, dtype=np.int64),
            waiting=np.zeros(devices + n, dtype=np.int64),
            start=np.zeros(devices + n),
            stack=np.zeros(devices + n, dtype=np.uint32),
        )
        path = step.op_seconds.min(axis=1)
        head, tail = longest_paths(path, step.graph.use_ptr, step.graph.use_op)
        self._path = float((head + path + tail).max(initial=0.0)) * (1.0 - _ROUNDING)

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves; `temperature` is relative to the best latency so far."""
        scale = self.value if 0.0 < self.value < np.inf else self._work
        anneal_latency(
            self._traffic, self._calls, self._loads, self._trial, _BALANCE * temperature, scale,
            self._charge, temperature, steps, self._largest, self._random, self.best, self._least,
        )  # fmt: skip

    def bound(self, seconds: float) -> float:
        """The longest path with every operator on its fastest device; needs no time.

        Valid, since an accelerator's call takes at least the seconds of its operators on a path.
        """
        return self._path


def walk_of(problem: PartitionProblem, seed: int) -> PartitionWalk:
    """The walk of `problem`, at a placement that need not be feasible.

    Raises:
        InputError: `problem` is neither a `MaxLoadProblem` nor a `LatencyProblem`.
    """
    match problem:
        case MaxLoadProblem():
            return LoadWalk(problem, seed)
        case LatencyProblem():
            return LatencyWalk(problem, seed)
    raise InputError(f"cannot search {type(problem).__name__}", field="problem")
