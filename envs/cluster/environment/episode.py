"""`SchedulingEpisode`: the jobs of an instance, decided by one scheduler or by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from envs.cluster.environment import play_kernel
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.features import HIGH, gangs, gaps, neighbours
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.observation import Buffers, ClusterGraph, ClusterObservation
from envs.cluster.environment.observe_kernel import CLUSTER_WIDTH, PEER_BASE, observe, summarise
from envs.cluster.environment.play_kernel import FORWARDED, PASSED_WIDTH, PREEMPTED
from envs.cluster.environment.routing import first_that_holds
from envs.cluster.environment.views import Bookkeeping, job_profiles, view_of
from envs.cluster.interference.rates import RateModel
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE, Overheads

NOTHING_PASSED = [0.0] * PASSED_WIDTH


class SchedulingEpisode:
    """A simulator, and S schedulers who each own some of its nodes and have a queue.

    Args:
        instance: what it is about.
        owner: (nodes,) scheduler of every node; all have at least one.
        home: (J,) scheduler to whose queue every job comes.
        bounds: of what a scheduler owns.
        observation: builds what schedulers see.
        actions: what they may do.
        rates: how fast jobs run where they run.
        overheads: what stopping costs.
        forwards: how often a job may be forwarded.
        forward_s: seconds for which it is then on its way.
        keep_runs: whether the simulator keeps a log.
        begin: puts the fresh simulator where the episode begins, and tells the bookkeeping what it
            has missed; None: at the first event.

    Raises:
        InputError: the cluster exceeds the bounds, or a job does not fit where it comes to.
    """

    def __init__(
        self,
        instance: ClusterInstance,
        owner: NDArray[np.int32],
        home: NDArray[np.int32],
        bounds: ClusterBounds,
        observation: ClusterObservation,
        actions: ClusterActions,
        *,
        rates: RateModel,
        overheads: Overheads,
        forwards: int = 0,
        forward_s: float = 0.0,
        keep_runs: bool = False,
        begin: Callable[[ClusterSimulator, Bookkeeping], None] | None = None,
    ) -> None:
        cluster, trace = instance.cluster, instance.trace
        self.instance, self.observation = instance, observation
        self.simulator = ClusterSimulator(
            cluster,
            trace,
            rates=rates,
            overheads=overheads,
            incidents=instance.incidents,
            keep_runs=keep_runs,
        )
        schedulers = int(owner.max()) + 1
        parts = [np.flatnonzero(owner == scheduler) for scheduler in range(schedulers)]
        for nodes in parts:
            bounds.check_fits(cluster, nodes)
        tables = self.simulator.tables
        self.views = [
            view_of(cluster, tables, part, s, bounds.gpus) for s, part in enumerate(parts)
        ]
        self.sizes = observation.table._replace(most_forwards=forwards)
        window, running, peers = self.sizes.window, self.sizes.running, self.sizes.peers
        self.action_table = actions.table(bounds, window, running, peers)
        self.profiles = job_profiles(
            cluster,
            trace,
            tables,
            self.simulator.state.jobs["types"],
            bounds.gpu_types,
        )
        self.forward_s, self.most_forwards = forward_s, forwards
        self._owner, self._largest, self._cluster_gpus = owner, bounds.gpus, cluster.num_gpus
        self._summaries = np.zeros((schedulers, PEER_BASE + bounds.gpu_types))
        self._passed = np.zeros((schedulers, PASSED_WIDTH))
        holds = self._holds()
        near = neighbours(trace, self.sizes.history)
        gang = gangs(trace) if self.sizes.history else np.zeros(0, np.int32)
        self.book = Bookkeeping(
            home=first_that_holds(trace.name, home, holds),
            there=np.zeros(len(trace)),
            forwards=np.zeros(len(trace), np.int32),
            holds=holds,
            window=np.full((schedulers, window), NONE, np.int32),
            shown=np.full((schedulers, running), NONE, np.int32),
            row=np.full(len(trace), NONE, np.int32),
            near=near,
            gap=gaps(trace, near),
            took=np.zeros(len(gang)),
            gang=gang,
            finished=np.zeros((int(gang.max(initial=-1)) + 2, 3)),
        )
        adviser = observation.adviser
        self.advice = None if adviser is None else adviser.begin(self)
        if begin is None:
            self.wait()  # for the first event
        else:
            begin(self.simulator, self.book)

    @property
    def schedulers(self) -> int:
        return len(self.views)

    @property
    def ended(self) -> bool:
        return self.simulator.done

    def act(self, scheduler: int, action: int) -> int:
        """Carry out an allowed action; STARTED, FORWARDED, PREEMPTED or, without effect, WAITED."""
        self.simulator.lengthen_log()
        return int(
            play_kernel.act(
                *self.simulator.compiled,
                self.book,
                self.views[scheduler],
                self.action_table,
                self.forward_s,
                action,
            )
        )

    def wait(self) -> bool:
        """Let time pass to the next event or for the longest wait; False: nothing is to come."""
        self.simulator.lengthen_log()
        return bool(
            play_kernel.wait(
                *self.simulator.compiled,
                self.book,
                self.action_table.longest_wait_s,
                self._passed,
            )
        )

    def passed(self, scheduler: int, outcome: int, waited: bool, allowed: bool) -> dict[str, float]:
        """The terms of `ClusterReward`, by what went by for the jobs of a scheduler."""
        integrals = self._passed[scheduler].tolist() if waited else NOTHING_PASSED
        unfinished, unfinished_gpus, inverse_work, queued, held = integrals
        return {
            "jct": -unfinished,
            "gpu_jct": -unfinished_gpus,
            "slowdown": -inverse_work,
            "queueing": -queued,
            "utilisation": held / max(self.views[scheduler].gpus, 1),
            "preemptions": -float(outcome == PREEMPTED),
            "forwards": -float(outcome == FORWARDED),
            "not_allowed": -float(not allowed),
        }

    def facts(self) -> dict[str, float]:
        """Where the episode stands, as numbers for `info`."""
        clock = self.simulator.state.clock[0]
        return {
            "now_s": float(clock["now"]),
            "jobs": len(self.instance.trace),
            "arrived": int(clock["arrived"]),
            "pending": int(clock["pending"]),
            "running": int(clock["running"]),
            "finished": int(clock["finished"]),
            "free_gpus": int(clock["free"]),
        }

    def summarise(self) -> None:
        """Work out what schedulers show each other."""
        state = self.simulator.state
        summarise(state, self.book, self._owner, self._largest, self._summaries)

    def shared_state(self, graphs: Sequence[ClusterGraph]) -> NDArray[np.float32]:
        """(S * (16 + 7 + T),) what all schedulers know together, scheduler by scheduler.

        After each one's cluster_features comes what it shows the others (peer_features), its GPUs
        as a share of all GPUs of the cluster.

        Args:
            graphs: what the schedulers see now, after `summarise`.
        """
        rows = np.empty((self.schedulers, CLUSTER_WIDTH + self._summaries.shape[1]), np.float32)
        for row, graph in zip(rows, graphs, strict=True):
            row[:CLUSTER_WIDTH] = graph["cluster_features"]
        shown = rows[:, CLUSTER_WIDTH:]
        np.minimum(self._summaries, HIGH, out=shown, casting="same_kind")
        shown[:, 0] = self._summaries[:, 0] / self._cluster_gpus
        return rows.reshape(-1)

    def observe(self, scheduler: int) -> tuple[ClusterGraph, NDArray[np.int8]]:
        """What a scheduler sees and which actions are allowed: fresh arrays."""
        buffers = self.observation.buffers()
        mask = np.zeros(self.action_table.size, np.int8)
        self.fill(scheduler, buffers, mask)
        return self.observation.graph(buffers), mask

    def fill(self, scheduler: int, buffers: Buffers, mask: NDArray[np.int8]) -> None:
        """The same, written into memory that is all zero: one observation and (A,) flags."""
        observe(
            self.simulator.state,
            self.book,
            self.views[scheduler],
            self.profiles,
            self._summaries,
            self.action_table,
            self.sizes,
            *buffers,
            mask,
        )
        if self.advice is not None:
            self.observation.advised(buffers)[0] = self.advice.action(self, scheduler)

    def _holds(self) -> NDArray[np.int8]:
        """(J, S) 1: some server group of the scheduler can hold the job when nothing runs."""
        state = self.simulator.state
        holds = np.zeros((self.schedulers, len(state.jobs)), np.int8)
        for view, column in zip(self.views, holds, strict=True):
            play_kernel.holding(state, self.action_table, view, column)
        return np.ascontiguousarray(holds.T)
