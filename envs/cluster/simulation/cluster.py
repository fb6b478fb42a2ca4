"""`ClusterSimulator`: many jobs on a cluster, from one decision point to the next."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.cluster.interference.rates import NoInterference, RateModel, RateTables
from envs.cluster.nodes import Cluster
from envs.cluster.simulation import cluster_kernel as kernel
from envs.cluster.simulation.cluster_state import (
    INCIDENT,
    NONE,
    PENDING,
    RUN,
    RUNNING,
    ClusterState,
    Overheads,
    Schedule,
    initial_state,
)
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

Share = tuple[int, int]  # (node, GPUs there)
# Sets of partial GPUs that a fractional job joins: its only one, or one or None for each share.
Joined = int | Sequence[int | None]
FREE_OF_CHARGE = Overheads(restart_s=0.0, checkpoint_s=0.0)


class ClusterSimulator:
    """Gangs of a trace on the GPUs of a cluster; it pauses wherever something happens.

    At each instant completions release first, then nodes fail and come back, then jobs arrive in
    the order of the trace; then it is the policy's turn. Times are float64 seconds: where all rates
    are exactly 1 they are whole numbers and exact. A failure takes a job back to the last multiple
    of `overheads.checkpoint_s` that its work has reached, to within a microsecond.

    Args:
        cluster: the nodes.
        trace: the jobs.
        rates: how fast jobs run where they run.
        overheads: what stopping costs.
        incidents: `cluster_state.INCIDENT` records by time: nodes that fail and come back.
        keep_runs: whether a log of all runs is kept, for pictures and checks.

    Raises:
        InputError: a job asks for more GPUs than the cluster has of the types it permits, or for
            none of its types; an overhead is negative or not finite.
    """

    def __init__(
        self,
        cluster: Cluster,
        trace: Trace,
        *,
        rates: RateModel | None = None,
        overheads: Overheads = FREE_OF_CHARGE,
        incidents: NDArray[np.void] | None = None,
        keep_runs: bool = False,
    ) -> None:
        for field, seconds in overheads._asdict().items():
            if not 0 <= seconds < np.inf:
                raise InputError(f"{seconds} is negative or not finite", field=field)
        self.cluster, self.trace = cluster, trace
        self.overheads = Overheads(*map(float, overheads))  # one type: kernels are compiled once
        tables = (rates or NoInterference()).tables(trace, cluster)
        incidents = np.zeros(0, INCIDENT) if incidents is None else incidents
        self.state = initial_state(cluster, trace, incidents, keep_runs)
        self.number_cases(tables)

    @property
    def now(self) -> float:
        """Seconds since the trace's second 0."""
        return float(self.state.clock[0]["now"])

    @property
    def done(self) -> bool:
        """Whether no job is left to arrive, wait or run."""
        arrived, pending, running = self.state.clock[["arrived", "pending", "running"]][0]
        return bool(arrived == len(self.trace) and pending == running == 0)

    def pending(self) -> IntArray:
        """Jobs that wait, in the order of the queue."""
        after, job = self.state.jobs["after"], int(self.state.clock[0]["head"])
        queue: list[int] = []
        while job != NONE:
            queue.append(job)
            job = int(after[job])
        return np.array(queue, np.int64)

    def running(self) -> IntArray:
        """Jobs that run, by number."""
        return np.sort(self.state.heap[: self.state.clock[0]["running"]]).astype(np.int64)

    def shares(self, job: int) -> list[Share]:
        """What a running job holds: (node, GPUs) of each share, in the order of taking."""
        held: list[Share] = []
        index = int(self.state.jobs[job]["share"])
        while index != NONE:
            share = self.state.shares[index]
            held.append((int(share["node"]), int(share["gpus"])))
            index = int(share["next"])
        return held[::-1]

    @property
    def compiled(self) -> tuple[ClusterState, RateTables, Overheads]:
        """What kernels take first."""
        return self.state, self.tables, self.overheads

    def number_cases(self, tables: RateTables) -> None:
        """Go on with these tables: the same rates, of cases that may be numbered otherwise."""
        self.tables = tables
        self.state.jobs["profile"] = tables.profile

    def advance(self, until: float = np.inf) -> bool:
        """Go to the next event, or to `until` if that is earlier; False: nothing is to come."""
        self.lengthen_log()
        return bool(kernel.advance(*self.compiled, until))

    def settle(self) -> None:
        """Bring `remaining`, `attained` and `executed` of the running jobs up to now."""
        kernel.settle(self.state)

    def start(self, job: int, shares: Sequence[Share], partial: Joined | None = None) -> None:
        """Run a pending job on `shares`, all of them at once.

        Args:
            job: its number.
            shares: (node, GPUs) with as many GPUs in all as the job asks for.
            partial: for a fractional job, the set of partial GPUs that it joins, with as many GPUs
                as its share; for a job with several shares, the set or None for each of them.
                Where there is None, it opens a set of free GPUs.

        Raises:
            ValueError: the job does not wait, or the shares or sets are not its gang's or not
                there.
        """
        joined, state = self._joined(job, shares, partial), self.state
        self._check(job, shares, joined)
        fractional = state.jobs[job]["milli"] < WHOLE_GPU and state.jobs[job]["gpus"] > 0
        for (node, gpus), one in zip(shares, joined, strict=True):
            if fractional:
                kernel.give_partial(state, job, node, one, gpus)
            else:
                kernel.give(state, job, node, gpus)
        kernel.begin(*self.compiled, job)

    def preempt(self, job: int) -> None:
        """Stop a running job; it keeps its progress and goes to the tail of the queue.

        Raises:
            ValueError: it does not run.
        """
        if self.state.jobs[job]["status"] != RUNNING:
            raise ValueError(f"job {job} does not run")
        self.lengthen_log()
        kernel.stop(self.state, self.tables, job)

    def refuse(self, job: int) -> None:
        """Send a pending job away for good.

        Raises:
            ValueError: it does not wait.
        """
        if self.state.jobs[job]["status"] != PENDING:
            raise ValueError(f"job {job} does not wait")
        kernel.refuse(self.state, job)

    def copy(self) -> ClusterSimulator:
        """An independent simulator in the same state, to look ahead with."""
        twin = copy(self)
        twin.state = self.state.copy()
        return twin

    def imagined(self, jobs: IntArray, remaining: FloatArray) -> ClusterSimulator:
        """A copy in which jobs have so much work left, and nothing else is to come.

        Args:
            jobs: (A,) all that wait or run.
            remaining: (A,) seconds at rate 1, above 0.

        Raises:
            ValueError: these are not all of them.
        """
        clock = self.state.clock[0]
        if len(np.unique(jobs)) != clock["pending"] + clock["running"]:
            raise ValueError(f"{len(jobs)} jobs are not all that wait or run")
        self.settle()
        twin = self.copy()
        kernel.imagine(twin.state, jobs, remaining)
        return twin

    def schedule(self) -> Schedule:
        """What became of the jobs so far."""
        self.settle()
        jobs, runs = self.state.jobs, self.state.runs
        return Schedule(
            submit=jobs["submit"].copy(),
            start=jobs["start"].copy(),
            finish=jobs["finish"].copy(),
            work=jobs["work"].copy(),
            gpus=jobs["gpus"] * (jobs["milli"] / WHOLE_GPU),
            held=jobs["executed"].copy(),
            preemptions=jobs["preemptions"].copy(),
            runs=runs[: self.state.clock[0]["runs"]].copy() if len(runs) else None,
        )

    def lengthen_log(self) -> None:
        """Make room in the log, where one is kept, for a run of every share."""
        while len(self.state.runs) and kernel.log_is_short(self.state):
            longer = np.zeros(2 * len(self.state.runs) + len(self.state.shares), RUN)
            longer[: len(self.state.runs)] = self.state.runs
            self.state = self.state._replace(runs=longer)

    def _joined(self, job: int, shares: Sequence[Share], partial: Joined | None) -> list[int]:
        """The set that each share joins, or NONE."""
        if partial is None:
            return [NONE] * len(shares)
        sets = list(partial) if isinstance(partial, Sequence) else [partial]
        if len(sets) != len(shares):
            raise ValueError(f"job {job}: {len(sets)} sets of GPUs for {len(shares)} shares")
        if any(one is not None and not 0 <= one < len(self.state.partials) for one in sets):
            raise ValueError(f"job {job}: no sets of GPUs have the numbers {sets}")
        return [NONE if one is None else int(one) for one in sets]

    def _check(self, job: int, shares: Sequence[Share], joined: Sequence[int]) -> None:
        record, nodes = self.state.jobs[job], self.state.nodes
        if record["status"] != PENDING:
            raise ValueError(f"job {job} does not wait")
        if len({node for node, _ in shares}) < len(shares) or not shares:
            raise ValueError(f"job {job}: a share for each of some different nodes is needed")
        if sum(gpus for _, gpus in shares) != record["gpus"]:
            raise ValueError(f"job {job} asks for {record['gpus']} GPUs")
        for (node, gpus), one in zip(shares, joined, strict=True):
            place = nodes[node]
            if one != NONE:
                there = self.state.partials[one]
                if there["node"] != node or not record["milli"] <= there["left"] < WHOLE_GPU:
                    raise ValueError(f"job {job}: set {one} of GPUs is elsewhere or too full")
                if there["gpus"] != gpus:
                    raise ValueError(f"job {job}: set {one} has {there['gpus']} GPUs, not {gpus}")
            if (gpus < 1 and record["gpus"] > 0) or (gpus > place["free"] and one == NONE):
                raise ValueError(f"node {node} has {place['free']} free GPUs, not {gpus}")
            if not place["up"]:
                raise ValueError(f"node {node} is down")
            if not record["types"] >> int(place["type"]) & 1:
                raise ValueError(f"job {job} may not run on the GPUs of node {node}")
            for field in ("cpu", "memory"):
                if kernel.part(int(record[field]), gpus, int(record["gpus"])) > place[field]:
                    raise ValueError(f"node {node} has too little {field} for job {job}")
