"""A simulation as a scheduler sees it that knows no durations: reading one is an error."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from agents.cluster.policy import Scheduler
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster import ClusterSimulator
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
    return _Simulator(simulator, trace_for(scheduler, simulator.trace), _reader(scheduler))


def trace_for(scheduler: Scheduler, trace: Trace) -> Trace:
    """`trace`, or a view of it in which durations cannot be read, as of `simulator_for`."""
    if scheduler.knows == ALLOWED or isinstance(trace, _Trace):
        return trace
    return _hidden(_Trace, trace, _reader(scheduler))


def _reader(scheduler: Scheduler) -> str:
    return f"policy {scheduler.name!r} knows {scheduler.knows!r}"


def _refusal(reader: str, field: str) -> InputError:
    return InputError(
        f"{reader} and may not read {field!r} of jobs: knows = {ALLOWED!r} would let it"
    )


def _check(key: Any, reader: str) -> None:
    """Refuse what names a hidden field of records."""
    several = isinstance(key, list) and key and isinstance(key[0], str)
    for name in key if several else (key,) if isinstance(key, str) else ():
        if name in HIDDEN_OF_JOBS:
            raise _refusal(reader, name)


class _Jobs(np.ndarray):
    """Records of jobs without the fields of `HIDDEN_OF_JOBS`; the memory is that of the whole."""

    reader: str

    def __array_finalize__(self, other: Any) -> None:
        self.reader = getattr(other, "reader", "")

    def __getitem__(self, key: Any) -> Any:
        _check(key, self.reader)
        found = super().__getitem__(key)
        if isinstance(found, np.void):
            return _Record(found, self.reader)
        return found if found.dtype.names else found.view(np.ndarray)


class _Record:
    """One record of `_Jobs`."""

    def __init__(self, record: np.void, reader: str) -> None:
        self._record, self._reader = record, reader

    def __getitem__(self, key: Any) -> Any:
        _check(key, self._reader)
        return self._record[key]


class _Hiding:
    """Refuses what is hidden of a trace or of one of its jobs."""

    def __getattribute__(self, name: str) -> Any:
        if name in HIDDEN_OF_TRACES:
            raise _refusal(object.__getattribute__(self, "_reader"), name)
        return object.__getattribute__(self, name)


class _Trace(_Hiding, Trace):
    """A trace whose durations are unknown."""

    def __getitem__(self, job: int) -> Job:
        whole, reader = vars(self)["_whole"], vars(self)["_reader"]
        return _hidden(_Job, whole[job], reader)


class _Job(_Hiding, Job):
    """One job of `_Trace`."""


Hidden = TypeVar("Hidden")


def _hidden(kind: type[Hidden], whole: object, reader: str) -> Hidden:
    view = object.__new__(kind)
    fields = {name: value for name, value in vars(whole).items() if name not in HIDDEN_OF_TRACES}
    vars(view).update(fields, _reader=reader, _whole=whole)
    return view


class _Simulator(ClusterSimulator):
    """A view of a simulator: what is done to it is done to the whole."""

    def __init__(self, whole: ClusterSimulator, trace: Trace, reader: str) -> None:
        self._whole, self._reader, self.trace = whole, reader, trace
        self._of: ClusterState | None = None
        self.cluster, self.overheads = whole.cluster, whole.overheads
        # what they change is the whole, and in what is imagined nothing hidden is left
        for name in (
            "settle", "start", "preempt", "refuse", "lengthen_log", "imagined", "number_cases",
        ):  # fmt: skip
            setattr(self, name, getattr(whole, name))

    @property
    def tables(self) -> RateTables:  # type: ignore[override]
        return self._whole.tables

    @property
    def state(self) -> ClusterState:  # type: ignore[override]
        whole = self._whole.state
        if whole is not self._of:  # it is a new one when the log was lengthened
            jobs = whole.jobs.view(_Jobs)
            jobs.reader = self._reader
            self._of, self._view = whole, whole._replace(jobs=jobs)
        return self._view

    def advance(self, until: float = np.inf) -> bool:
        """Not for a scheduler that knows no durations: it would see who finishes when."""
        raise _refusal(self._reader, "the future")

    def copy(self) -> ClusterSimulator:
        return _Simulator(self._whole.copy(), self.trace, self._reader)
