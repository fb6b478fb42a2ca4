"""The jobs of an instance, decided by one scheduler or by several; how time passes for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.cluster.environment import actions as kernel
from envs.cluster.environment.actions import (
    FORWARDED,
    PREEMPTED,
    Bookkeeping,
    ClusterActions,
    IntArray,
    view_of,
)
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.observation import (
    ADVISED,
    HIGH,
    PEER_BASE,
    ClusterGraph,
    ClusterObservation,
    add_finished,
    arrays_of,
    gangs,
    gaps,
    job_profiles,
    minutes,
    neighbours,
    numbers_of,
    observe,
)
from envs.cluster.environment.routing import first_that_holds
from envs.cluster.interference.rates import RateModel, RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import NOTHING, advance
from envs.cluster.simulation.cluster_state import FINISHED, NONE, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, pasted

# columns of what passes in a wait, by scheduler: integrals over seconds of
UNFINISHED, UNFINISHED_GPUS, INVERSE_WORK, QUEUED, HELD = 0, 1, 2, 3, 4
PASSED_WIDTH = 5
NOTHING_PASSED = [0.0] * PASSED_WIDTH


@compiled
def wait(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    book: Bookkeeping,
    longest: float,
    passed: FloatArray,
) -> bool:
    """Let time pass until something happens, for at most `longest` seconds.

    Args:
        state: of the cluster.
        tables: how fast jobs run.
        overheads: what stopping costs.
        book: whose queue jobs are in; one that arrives there after a transfer ends the wait. Where
            a history is shown, jobs that finish are added to its means, by number.
        longest: seconds, above 0; inf: no limit.
        passed: (S, PASSED_WIDTH) what passed is written there.

    Returns:
        Whether time or anything at all passed.
    """
    state, tables, book = borrowed(state), borrowed(tables), borrowed(book)
    clock = state.clock[0]
    passed[:, :] = 0.0
    before, were_finished, ran = clock.now, clock.finished, clock.running
    until = before + longest
    job = clock.head
    while job != NONE:
        if book.there[job] > before:
            until = min(until, book.there[job])
        add_up(state, job, passed[book.home[job]], False)
        job = state.jobs[job].after
    for place in range(ran):
        job = state.heap[place]
        add_up(state, job, passed[book.home[job]], True)
        book.row[place] = job
    outcome = advance(state, tables, overheads, until)
    passed *= clock.now - before
    last = NONE
    for _ in range(clock.finished - were_finished if len(book.gang) > 0 else 0):
        first = len(state.jobs)  # the next, by number, of those that ran
        for place in range(ran):
            job = book.row[place]
            if last < job < first and state.jobs[job].status == FINISHED:
                first = job
        last = first
        remember(state, book, last)
    return bool(outcome != NOTHING)


@pasted
def add_up(state: ClusterState, job: int, passed: FloatArray, runs: bool) -> None:
    """Add an unfinished job to what passes in a second."""
    record = state.jobs[job]
    gpus = record.gpus * record.milli / WHOLE_GPU
    passed[UNFINISHED] += 1.0
    passed[UNFINISHED_GPUS] += gpus
    passed[INVERSE_WORK] += 1.0 / record.work
    passed[HELD if runs else QUEUED] += gpus if runs else 1.0


@compiled
def remember(state: ClusterState, book: Bookkeeping, job: int) -> None:
    """Add a job that has finished to the means."""
    book.took[job] = minutes(state.jobs[job].executed)
    add_finished(book.finished, book.gang[job], book.took[job])


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
        owner: IntArray,
        home: IntArray,
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
        state, tables = self.simulator.state, self.simulator.tables
        self.views = []
        for scheduler in range(int(owner.max()) + 1):
            nodes = np.flatnonzero(owner == scheduler)
            bounds.check_fits(cluster, nodes)
            self.views.append(view_of(cluster, tables, nodes, scheduler, bounds.gpus))
        self.action_table = sizes = actions.table(observation.table, forwards)
        jobs = state.jobs
        self.profiles = job_profiles(cluster, trace, tables, jobs["types"], bounds.gpu_types)
        asked = (jobs[name] for name in ("gpus", "milli", "types", "cpu", "memory"))
        self.request = numbers_of(*asked)
        self.forward_s, self._owner = forward_s, owner
        self._summaries = np.zeros((self.schedulers, PEER_BASE + bounds.gpu_types))
        self._passed = np.zeros((self.schedulers, PASSED_WIDTH))
        holds = np.zeros((self.schedulers, len(trace)), np.int8)
        for view, column in zip(self.views, holds, strict=True):
            kernel.holding(state, self.action_table, view, column)
        holds = np.ascontiguousarray(holds.T)
        near = neighbours(trace, sizes.history)
        gang = gangs(trace) if sizes.history else np.zeros(0, np.int32)
        none = partial(np.full, fill_value=NONE, dtype=np.int32)
        self.book = Bookkeeping(
            home=first_that_holds(trace.name, home, holds),
            there=np.zeros(len(trace)),
            forwards=np.zeros(len(trace), np.int32),
            holds=holds,
            window=none((self.schedulers, sizes.window)),
            shown=none((self.schedulers, sizes.running)),
            row=none(len(trace)),
            near=near,
            gap=gaps(trace, near),
            took=np.zeros(len(gang)),
            gang=gang,
            finished=np.zeros((int(gang.max(initial=-1)) + 2, 3)),
            broadcast=np.full(1, -np.inf),
            seen=self._summaries.copy(),
            sent=np.zeros((self.schedulers, self.schedulers, 2)),
        )
        expert = observation.expert
        self.expert = None if expert is None else expert.begin(self)
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
        begun, view = self.simulator.compiled, self.views[scheduler]
        table, forward_s = self.action_table, self.forward_s
        return int(kernel.act(*begun, self.book, view, table, forward_s, action))

    def wait(self) -> bool:
        """Let time pass to the next event or for the longest wait; False: nothing is to come."""
        self.simulator.lengthen_log()
        longest = self.action_table.longest_wait_s
        return bool(wait(*self.simulator.compiled, self.book, longest, self._passed))

    def passed(self, scheduler: int, outcome: int, waited: bool, allowed: bool) -> dict[str, float]:
        """The terms of `ClusterReward`, by what went by for the jobs of a scheduler."""
        passed = self._passed[scheduler].tolist() if waited else NOTHING_PASSED
        return {
            "jct": -passed[UNFINISHED],
            "gpu_jct": -passed[UNFINISHED_GPUS],
            "slowdown": -passed[INVERSE_WORK],
            "queueing": -passed[QUEUED],
            "utilisation": passed[HELD] / max(self.views[scheduler].gpus, 1),
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

    def shared_state(self, graphs: Sequence[ClusterGraph]) -> NDArray[np.float32]:
        """(S * (16 + 7 + T),) what all schedulers know together, scheduler by scheduler.

        After each one's cluster_features comes what it shows the others (peer_features), its GPUs
        as a share of all GPUs of the cluster.

        Args:
            graphs: what the schedulers see now.
        """
        own = np.stack([graph["cluster_features"] for graph in graphs])
        shown = np.minimum(self._summaries, HIGH)
        shown[:, 0] = self._summaries[:, 0] / self.instance.cluster.num_gpus
        return np.concatenate([own, shown], axis=1, dtype=np.float32).reshape(-1)

    def observe(self, scheduler: int) -> tuple[ClusterGraph, NDArray[np.int8]]:
        """What a scheduler sees and which actions are allowed: fresh arrays."""
        graph, mask = self.observation.empty(), np.zeros(self.action_table.size, np.int8)
        self.fill(scheduler, graph, mask)
        return graph, mask

    def fill(self, scheduler: int, graph: ClusterGraph, mask: NDArray[np.int8]) -> None:
        """The same, written into memory that is all zero: one observation and (A,) flags."""
        observe(
            self.simulator.state,
            self.book,
            self.views[scheduler],
            self.profiles,
            self.request,
            self._owner,
            self._summaries,
            self.action_table,
            arrays_of(graph),
            mask,
        )
        if self.expert is not None:
            graph[ADVISED][0] = self.expert.action(self, scheduler)
