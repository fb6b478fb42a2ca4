"""Queue policies: an order of priority, from which jobs start or for which they are preempted.

Their passes are compiled with the simulator, for placement rules that are (`run`). `decide` works
with any rule, through `backfilling`; `replay` is a loop over the trace alone, where the number of
free GPUs decides everything. All come to one schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agents.cluster.backfilling import preempt_in_order, request, start, start_in_order
from agents.cluster.compiled import passes, whole_trace
from agents.cluster.compiled.passes import BLOCKING, PASSING, PREEMPTING, RESERVING, empty_queue
from agents.cluster.compiled.whole_trace import (
    is_placement_free,
    job_bits,
    schedule_of,
    unset_times,
)
from agents.cluster.compiled.whole_trace_shortest import (
    none_running,
    none_waiting,
    shortest_remaining,
)
from agents.cluster.hidden_durations import trace_for
from agents.cluster.policy import PlacementRule, Scheduler
from agents.cluster.rules.gangs import BestFit, room_of
from agents.solver import Knowledge
from envs.arrays import IntArray, sums_before
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING, Schedule
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

EXACT = 2.0**53  # above it not every whole number is a float


class QueuePolicy(Scheduler):
    """Subclasses name the order and the pass, by their codes; without an order none is compiled.

    Args:
        placement: where a gang goes.
        seed: of the placement rule's generator.
    """

    order: ClassVar[int | None] = None
    mode: ClassVar[int] = PREEMPTING
    limits: IntArray = np.zeros(0, np.int64)  # of queues by attained service

    def __init__(self, placement: PlacementRule = BestFit(), seed: int = 0) -> None:
        self.placement, self.seed = placement, seed

    def reset(self, simulator: ClusterSimulator) -> None:
        self._rng = np.random.default_rng(self.seed)

    def run(self, simulator: ClusterSimulator) -> bool:
        """See `Scheduler.run`; False where the rule is not compiled, or the trace has fractions."""
        code: int | None = getattr(self.placement, "code", None)
        trace = simulator.trace
        if self.order is None or code is None or (trace.gpu_milli != WHOLE_GPU).any():
            return False
        queue = empty_queue(simulator, self.priority(trace_for(self, trace)))
        room = room_of(simulator.cluster.num_nodes, self.seed)
        how = (queue, self.order, self.limits, self.mode, code, room)
        simulator.lengthen_log()
        while not passes.run(*simulator.compiled, *how):
            simulator.lengthen_log()
        return True

    def priority(self, trace: Trace) -> IntArray:
        """(J,) of a constant order: the least first, of equals the first submitted."""
        return np.zeros(len(trace), np.int64)


class NonPreemptive(QueuePolicy):
    """Jobs start in a constant order of priority and run to their end."""

    order = passes.BY_KEY

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        if not is_placement_free(cluster, trace, self.placement):
            return None
        bits, start = job_bits(trace), unset_times(len(trace))
        key = self.priority(trace_for(self, trace)) << bits | np.arange(len(trace))
        columns = (trace.submit_s, trace.duration_s, trace.num_gpus)
        blocking = self.mode == BLOCKING
        whole_trace.start_in_order(*columns, key, bits, blocking, cluster.num_gpus, start)
        return schedule_of(trace, start, start + trace.duration_s, np.zeros(len(trace), np.int32))

    def reset(self, simulator: ClusterSimulator) -> None:
        super().reset(simulator)
        self._priority = self.priority(simulator.trace)

    def decide(self, simulator: ClusterSimulator) -> None:
        jobs = simulator.pending()
        order = jobs[np.lexsort((jobs, self._priority[jobs]))].tolist()
        blocking = self.mode == BLOCKING
        start_in_order(simulator, order, self.placement, self._rng, blocking=blocking)


class FIFO(NonPreemptive):
    """Jobs start in the order of their submission; one that does not fit blocks the others.

    Guarantees:
        No job is overtaken: who has fewer jobs before it starts first.

    Source:
        Queueing folklore; the order in which published simulators replay traces by default.
    """

    name = "fifo"
    knows: Knowledge = "nothing"
    mode = BLOCKING


class FIFOBackfill(NonPreemptive):
    """Jobs start in the order of their submission; one that does not fit is passed over.

    Nothing is reserved: large gangs may wait for as long as small ones keep coming.

    Guarantees:
        No GPU idles beside a waiting job that fits; a large gang may starve.

    Source:
        Backfilling without a reservation: Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
    """

    name = "fifo_backfill"
    knows: Knowledge = "nothing"
    mode = PASSING


class SJF(NonPreemptive):
    """The shortest jobs start first and run to their end; one that does not fit is passed over.

    Guarantees:
        On one GPU, with all jobs there from the start, the least mean completion time.

    Source:
        Smith, "Various optimizers for single-stage production", Naval Research Logistics
        Quarterly 3, 1956.
    """

    name = "sjf"
    knows: Knowledge = "durations"
    mode = PASSING

    def priority(self, trace: Trace) -> IntArray:
        return trace.duration_s


class SJFStrict(SJF):
    """The shortest jobs start first and run to their end; one that does not fit blocks the others.

    Guarantees:
        As `SJF`; no job overtakes a shorter one that waits.

    Source:
        The baseline of Helios' simulator: Hu, Sun, Yan, Wen, Zhang, "Characterization and
        Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
    """

    name = "sjf_strict"
    mode = BLOCKING


class EASY(QueuePolicy):
    """First in, first out, with a reservation for the first job that has to wait.

    That job, the head, is promised the time at which enough GPUs will be free if no job starts any
    more. Another may start before it if it ends by then, or if it takes only GPUs that the head
    will leave over. Free GPUs are counted for the promise, wherever they are: a rule that
    consolidates may keep the head waiting for longer.

    Guarantees:
        No job delays the promised start of the head of the queue, as long as numbers of GPUs
        decide what fits.

    Source:
        Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates
        in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001, section 2.2.
    """

    name = "easy"
    knows: Knowledge = "durations"
    order, mode = passes.BY_KEY, RESERVING

    def decide(self, simulator: ClusterSimulator) -> None:
        """Start jobs up to the head, then those that do not delay it."""
        simulator.settle()
        order = np.sort(simulator.pending()).tolist()
        begun = start_in_order(simulator, order, self.placement, self._rng, blocking=True)
        if len(begun) == len(order):
            return
        head, *others = order[len(begun) :]
        jobs = simulator.state.jobs
        gpus = jobs["gpus"] * (jobs["milli"] / WHOLE_GPU)
        until, spare = self._promise(simulator, float(gpus[head]))
        hopeless = {request(simulator, head)}
        for job in others:
            ends = simulator.now + float(jobs[job]["remaining"])
            wanted = request(simulator, job)
            if wanted in hopeless or (ends > until and gpus[job] > spare):
                continue
            shares = self.placement.place(simulator, job, self._rng)
            if shares is None:
                hopeless.add(wanted)
                continue
            start(simulator, job, shares)
            if ends > until:
                spare -= float(gpus[job])

    @staticmethod
    def _promise(simulator: ClusterSimulator, need: float) -> tuple[float, float]:
        """When `need` GPUs will be free, and how many more; (inf, inf): not that nodes are down."""
        jobs = simulator.state.jobs
        running = simulator.running()
        running = running[np.argsort(jobs["end"][running], kind="stable")]
        held = jobs["gpus"][running] * (jobs["milli"][running] / WHOLE_GPU)
        nodes = simulator.state.nodes
        there = float(nodes["gpus"][nodes["up"] == 1].sum())
        free = there - held.sum() + sums_before(held)
        enough = np.flatnonzero(free >= need)
        if len(enough) == 0:
            return np.inf, np.inf
        ends = np.concatenate([[simulator.now], jobs["end"][running]])
        until = float(ends[enough[0]])
        return until, float(free[np.flatnonzero(ends <= until)[-1]] - need)


class ShortestRemaining(QueuePolicy):
    """The jobs with the least left run, and preempt others for it: seconds, or seconds times GPUs.

    At every event jobs are sorted by what is left; equal ones stay in the order of the sort before,
    new ones come last.
    """

    knows: Knowledge = "durations"

    @property
    def times_gpus(self) -> bool:
        """Whether what is left is GPU-seconds."""
        return self.order == passes.BY_SERVICE

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        if not is_placement_free(cluster, trace, self.placement):
            return None
        job_bits(trace)  # of times that are too long to be added up
        if float(trace.duration_s.max(initial=0)) * cluster.num_gpus >= EXACT:
            return None
        start, finish = unset_times(len(trace)), unset_times(len(trace))
        preemptions = np.zeros(len(trace), np.int32)
        waiting, gpus = none_waiting(trace.num_gpus), cluster.num_gpus
        running = none_running(waiting, gpus, self.times_gpus)
        columns = (trace.submit_s, trace.duration_s)
        shortest_remaining(*columns, waiting, running, gpus, start, finish, preemptions)
        return schedule_of(trace, start, finish, preemptions)

    def reset(self, simulator: ClusterSimulator) -> None:
        super().reset(simulator)
        self._sorted: list[int] = []

    def decide(self, simulator: ClusterSimulator) -> None:
        """Give the GPUs to the jobs with the least left."""
        simulator.settle()
        jobs = simulator.state.jobs
        left = jobs["remaining"]
        if self.times_gpus:
            left = left * jobs["gpus"] * (jobs["milli"] / WHOLE_GPU)
        known = np.array(self._sorted, np.int64)
        known = known[np.isin(jobs["status"][known], (PENDING, RUNNING))]
        there = np.concatenate([simulator.pending(), simulator.running()])
        new = np.setdiff1d(there, known)  # running ones: if it was taken up in the midst
        order = np.concatenate([known, new])
        self._sorted = order[np.argsort(left[order], kind="stable")].tolist()
        preempt_in_order(simulator, self._sorted, self.placement, self._rng)


class SRTF(ShortestRemaining):
    """The jobs with the fewest seconds left run.

    Guarantees:
        The least mean completion time on one GPU, where stops cost nothing; none for gangs.

    Source:
        Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline",
        Operations Research 16(3), 1968.
    """

    name = "srtf"
    order = passes.BY_TIME


class SRSF(ShortestRemaining):
    """The jobs with the fewest GPU-seconds left run.

    Guarantees:
        None for gangs; on one GPU it is the shortest remaining time first.

    Source:
        Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, "Tiresias: A GPU Cluster Manager for
        Distributed Deep Learning", NSDI 2019, section 4.2.
    """

    name = "srsf"
    order = passes.BY_SERVICE


class AttainedService(QueuePolicy):
    """Multilevel feedback queues by attained service, which is GPUs times executed seconds.

    New jobs enter the first queue at its tail, demoted ones the next queue at its tail. GPUs go to
    the queues in turn and to the jobs of each in its order; what does not fit is passed over. Then
    in each queue the jobs that wait go behind those that run, in the same order.

    Args:
        placement: where a gang goes.
        limits: whole GPU-seconds at which a job leaves a queue for the next, ascending.
        seed: of the placement rule's generator.

    Raises:
        InputError: limits that are not ascending or not above 0.
    """

    knows: Knowledge = "nothing"

    def __init__(
        self,
        placement: PlacementRule = BestFit(),
        limits: Sequence[int] = (3250, 7200),
        seed: int = 0,
    ) -> None:
        super().__init__(placement, seed)
        self.limits = np.array(limits, np.int64)
        self._known: dict[str, tuple[int, bool]] = {}
        if (np.diff(self.limits, prepend=0) <= 0).any() or (self.limits != limits).any():
            problem = f"{list(limits)} are not whole numbers above 0, ascending"
            raise InputError(problem, field="limits")

    def reset(self, simulator: ClusterSimulator) -> None:
        super().reset(simulator)
        self._queue = empty_queue(simulator, self.priority(simulator.trace))
        self._options = (self.limits, self.order == passes.BY_PUBLISHED_QUEUE)
        self._arrived = 0

    def decide(self, simulator: ClusterSimulator) -> None:
        """Demote, give the GPUs to the first queues, and put what runs first."""
        simulator.settle()
        jobs, queue = simulator.state.jobs, self._queue
        first, self._arrived = self._arrived, int(simulator.state.clock[0]["arrived"])
        count = passes.rank(jobs, first, self._arrived, queue, *self._options)
        ids = simulator.trace.job_id
        if first == 0 and jobs["executed"].any():
            count = self._take_up(jobs, count, ids)
        preempt_in_order(simulator, queue.ranked[:count].tolist(), self.placement, self._rng)
        passes.put_running_first(jobs, queue, count)
        if first == 0:  # a next state of the same jobs is taken up with it
            order = queue.order[: queue.number[1]]
            self._known = {ids[job]: (queue.level[job], queue.ran[job]) for job in order}

    def _take_up(self, jobs: NDArray[np.void], count: int, ids: NDArray[np.str_]) -> int:
        """Put jobs that have run before the first event into their queues, as they were in them.

        Where one of them was in no state before, those that run are the first of each queue.
        """
        queue, none = self._queue, self._arrived
        listed, known = queue.ranked[:count].copy(), self._known
        if count and all(ids[job] in known for job in listed if jobs["executed"][job]):
            place = {name: place for place, name in enumerate(known)}
            places = [place.get(ids[job], len(place)) for job in listed]
            levels, ran = zip(*(known.get(ids[job], (0, False)) for job in listed), strict=True)
            queue.level[listed], queue.ran[listed] = levels, ran
            queue.order[:count] = listed[np.lexsort((places, levels))]
            queue.number[1] = count
            return int(passes.rank(jobs, none, none, queue, *self._options))
        for level in range(len(self.limits) + 1):
            passes.put_running_first(jobs, queue, count)
            if level < len(self.limits):
                queue.ran[:] = True
            count = passes.rank(jobs, none, none, queue, *self._options)
        return count

    def wake(self, simulator: ClusterSimulator) -> float:
        """When a running job may have to leave its queue."""
        simulator.settle()
        jobs, heap, number = simulator.state.jobs, simulator.state.heap, len(simulator.running())
        now = simulator.now
        return float(passes.next_demotion(jobs, heap, now, number, self._queue, *self._options))


class LAS2D(AttainedService):
    """Discretised two-dimensional least attained service.

    A job is in the queue that its service belongs to, from the first whole second of its execution
    at which the limit is reached; the cluster is scheduled anew at that second.

    Guarantees:
        No job that has had much is served before one that has had little; long jobs may starve,
        as the paper's promotion of such jobs is left out.

    Source:
        Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, "Tiresias: A GPU Cluster Manager for
        Distributed Deep Learning", NSDI 2019, section 4.2.
    """

    name = "las_2d"
    order = passes.BY_QUEUE


class LAS2DTiresias(AttainedService):
    """The queues of `LAS2D` with the arithmetic of Tiresias' published simulator.

    A running job is looked at again (limit - executed seconds) // GPUs seconds from each event: it
    takes a limit of GPU-seconds for one of seconds, and then divides by the GPUs. A gang is demoted
    at the first event after it has reached the limit, which may be late, and one queue at a time.
    The published program does not come to an end where that number of seconds is 0, which takes a
    gang of more than half the limit; here it wakes none.

    Guarantees:
        The sums of completion times that the published simulator prints, to the second.

    Source:
        The simulator published with Gu et al., "Tiresias: A GPU Cluster Manager for Distributed
        Deep Learning", NSDI 2019.
    """

    name = "las_2d_tiresias"
    order = passes.BY_PUBLISHED_QUEUE
