"""A simulation as a scheduler sees it that knows no durations: reading one is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from agents.cluster.policy import Scheduler
from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.cluster import ClusterSimulator, Joined, Share
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import Job, Trace
from envs.errors import InputError

HIDDEN_OF_JOBS = frozenset({"work", "remaining", "end"})  # of `cluster_state.JOB`
HIDDEN_OF_TRACES = frozenset({"duration_s", "gpu_seconds"})
ALLOWED = "durations"  # what a scheduler knows that may read them


def simulator_for(scheduler: Scheduler, simulator: ClusterSimulator) -> ClusterSimulator:
    """`simulator`, or a view of it in which durations cannot be read.

    What Python code reads is checked; compiled code is given the arrays themselves, and is as fast.

    Raises:
        InputError: from the view, naming the scheduler and the field that it may not read.
    """
    if scheduler.knows == ALLOWED or isinstance(simulator, _Simulator):
        return simulator
    told = _Refusal(scheduler)
    return _Simulator(simulator, told, _hidden(_Trace, simulator.trace, told))


def trace_for(scheduler: Scheduler, trace: Trace) -> Trace:
    """`trace`, or a view of it in which durations cannot be read, as of `simulator_for`."""
    if scheduler.knows == ALLOWED or isinstance(trace, _Trace):
        return trace
    return _hidden(_Trace, trace, _Refusal(scheduler))


class _Refusal:
    """The fault of a scheduler that reads what it says it does not know."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._who = f"policy {scheduler.name!r} knows {scheduler.knows!r}"

    def of(self, what: str) -> InputError:
        told = f"{self._who} and may not read {what!r} of jobs: knows = {ALLOWED!r} would let it"
        return InputError(told)


class _Jobs(np.ndarray):
    """Records of jobs without the fields of `HIDDEN_OF_JOBS`; the memory is that of the whole."""

    told: _Refusal

    def __array_finalize__(self, other: Any) -> None:
        self.told = getattr(other, "told", None)  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        for name in _names(key):
            if name in HIDDEN_OF_JOBS:
                raise self.told.of(name)
        found = super().__getitem__(key)
        if isinstance(found, np.void):
            return _Record(found, self.told)
        return found if found.dtype.names else found.view(np.ndarray)


class _Record:
    """One record of `_Jobs`."""

    def __init__(self, record: np.void, told: _Refusal) -> None:
        self._record, self._told = record, told

    def __getitem__(self, key: Any) -> Any:
        for name in _names(key):
            if name in HIDDEN_OF_JOBS:
                raise self._told.of(name)
        return self._record[key]


def _names(key: Any) -> Sequence[str]:
    if isinstance(key, str):
        return (key,)
    return key if isinstance(key, list) and key and isinstance(key[0], str) else ()


class _Hiding:
    """Refuses what is hidden of a trace or of one of its jobs."""

    def __getattribute__(self, name: str) -> Any:
        if name in HIDDEN_OF_TRACES:
            raise object.__getattribute__(self, "_told").of(name)
        return object.__getattribute__(self, name)


class _Trace(_Hiding, Trace):
    """A trace whose jobs last nobody knows how long."""

    def __getitem__(self, job: int) -> Job:
        told = object.__getattribute__(self, "_told")
        trace = object.__getattribute__(self, "_whole")
        return _hidden(_Job, trace[job], told)


class _Job(_Hiding, Job):
    """One job of `_Trace`."""


Hidden = TypeVar("Hidden")


def _hidden(kind: type[Hidden], whole: object, told: _Refusal) -> Hidden:
    seen = object.__new__(kind)
    fields = {name: value for name, value in vars(whole).items() if name not in HIDDEN_OF_TRACES}
    vars(seen).update(fields, _told=told, _whole=whole)
    return seen


class _Simulator(ClusterSimulator):
    """A view of a simulator: what is done to it is done to the whole."""

    def __init__(self, whole: ClusterSimulator, told: _Refusal, trace: Trace) -> None:
        self._whole, self._told = whole, told
        self._of: ClusterState | None = None
        self.cluster, self.trace = whole.cluster, trace
        self.overheads, self.tables = whole.overheads, whole.tables

    @property
    def state(self) -> ClusterState:  # type: ignore[override]
        whole = self._whole.state
        if whole is not self._of:  # it is a new one when the log was lengthened
            jobs = whole.jobs.view(_Jobs)
            jobs.told = self._told
            self._of, self._seen = whole, whole._replace(jobs=jobs)
        return self._seen

    def advance(self, until: float = np.inf) -> bool:
        """Not for a scheduler that knows no durations: it would see who finishes when."""
        raise self._told.of("the future")

    def settle(self) -> None:
        self._whole.settle()

    def start(self, job: int, shares: Sequence[Share], partial: Joined | None = None) -> None:
        self._whole.start(job, shares, partial)

    def preempt(self, job: int) -> None:
        self._whole.preempt(job)

    def refuse(self, job: int) -> None:
        self._whole.refuse(job)

    def lengthen_log(self) -> None:
        self._whole.lengthen_log()

    def imagined(self, jobs: IntArray, remaining: FloatArray) -> ClusterSimulator:
        return self._whole.imagined(jobs, remaining)  # in which nothing hidden is left

    def copy(self) -> ClusterSimulator:
        return _Simulator(self._whole.copy(), self._told, self.trace)
