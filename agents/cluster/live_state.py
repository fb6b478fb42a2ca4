"""The state of a live cluster: its form as plain data, and the arrays of the simulator from it.

The schema is that of the types here (JSON Schema, draft 2020-12). What a schema cannot say stands
in the tables of rules below: a field, the rows that contradict others, and what is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.decision import Name, StateError, form
from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.cluster.interference.rates import RateTables, without_neighbours
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.simulation.resumed import Snapshot
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace
from envs.errors import InputError

MOST_GPUS = 262_144  # of a cluster
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]
Gpus = Annotated[int, Field(ge=0, le=1024)]
LARGEST_GANG = 65_536  # GPUs of a job
Gang = Annotated[int, Field(ge=0, le=LARGEST_GANG)]
Amount = Annotated[int, Field(ge=0, le=10**15)]


@form
class LiveNode(TypedDict):
    """A server."""

    id: Name
    gpu_type: Name
    num_gpus: Gpus
    """in all, whoever holds them"""
    rack: NotRequired[Annotated[int, Field(ge=0, le=65_535)]]
    """number of its rack; 0 if left out"""
    free_gpus: NotRequired[Gpus]
    """that a job can have now; left out: all that the jobs of this state do not hold"""
    up: NotRequired[bool]
    """whether jobs can run there; else true"""
    cpu_milli: NotRequired[Amount]
    """thousandths of a core; left out: no limit"""
    memory_mib: NotRequired[Amount]
    """MiB; left out: no limit"""


@form
class LiveJob(TypedDict):
    """A job that waits, runs (`holds`) or has finished (`finish_s`), as much as is known of it."""

    id: Name
    submit_s: Seconds
    num_gpus: Gang
    """of its gang: all of them at once, or none"""
    gpu_milli: NotRequired[Annotated[int, Field(ge=1, le=WHOLE_GPU)]]
    """thousandths of its one GPU; else 1000"""
    gpu_types: NotRequired[Annotated[list[Name], Field(min_length=1)]]
    """permitted; left out: all"""
    user: NotRequired[Name]
    queue: NotRequired[Name]
    """virtual cluster, or group"""
    cpu_milli: NotRequired[Amount]
    """thousandths of a core in all"""
    memory_mib: NotRequired[Amount]
    """MiB in all"""
    speed: NotRequired[dict[Name, Speed]]
    """its own speed by GPU type, where it is not that of `gpu_types`"""
    holds: NotRequired[Annotated[dict[Name, Gpus], Field(min_length=1)]]
    """a running job's GPUs by node, in the order of taking"""
    shared_gpu: NotRequired[Name]
    """the GPU that a running fractional job is on"""
    since_s: NotRequired[Seconds]
    """when it began to run, or last began to wait; must be given of running jobs, else its
    submission"""
    held_s: NotRequired[Seconds]
    """for which it has held its GPUs so far; else 0"""
    attained_s: NotRequired[Seconds]
    """of work done, at speed 1; left out: as long as `held_s`"""
    preemptions: NotRequired[Annotated[int, Field(ge=0, le=10**6)]]
    rate: NotRequired[Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]]
    """work per second of a running job; left out: its slowest GPU's speed"""
    ready_s: NotRequired[Seconds]
    """when a job that restarts begins to progress; else at once"""
    finish_s: NotRequired[Seconds]
    """when it finished"""


@form
class LiveJobWithDuration(LiveJob):
    """A job of which it is known how long it takes."""

    duration_s: NotRequired[Annotated[Seconds, Field(gt=0)]]
    """of work in all, at speed 1"""
    remaining_s: NotRequired[Seconds]
    """of work left; left out: the duration less what is attained"""
    end_s: NotRequired[Seconds]
    """when it will finish; left out: what is left at its present rate"""


@form
class LiveCluster(TypedDict):
    """A cluster at one instant."""

    now_s: Seconds
    nodes: Annotated[list[LiveNode], Field(min_length=1)]
    jobs: list[LiveJob]
    """all that wait or run, and those that have finished as far back as they shall be learned
    from; of jobs submitted at once the first comes first"""
    waiting: NotRequired[list[Name]]
    """ids of the waiting jobs in the order of the queue; left out: by `since_s`"""
    running: NotRequired[list[Name]]
    """ids of the running jobs in the order of their starts; left out: by `since_s`"""
    gpu_types: NotRequired[Annotated[dict[Name, Speed], Field(min_length=1, max_length=62)]]
    """speed of jobs on each GPU type, 1 where durations hold; left out: 1, in the order in which
    nodes name them"""
    restart_s: NotRequired[Seconds]
    """for which a job that was stopped holds its GPUs before it progresses; left out: as in the
    training"""
    closed: NotRequired[bool]
    """true: no job will come any more, so that where nothing runs the scheduler may not wait if
    it can start something"""


@form
class LiveClusterWithDurations(LiveCluster):
    """A cluster at one instant, and how long its jobs take."""

    jobs: list[LiveJobWithDuration]  # type: ignore[misc]  # narrower


LIMITS = ("cpu_milli", "memory_mib")
# Of what a state leaves out of nodes and jobs; nan: follows from the rest of it.
NODE_DEFAULTS = {
    "num_gpus": 0, "free_gpus": -1, "up": True, "rack": 0, **dict.fromkeys(LIMITS, UNLIMITED),
}  # fmt: skip
JOB_DEFAULTS = {
    "num_gpus": 0, "gpu_milli": WHOLE_GPU, "preemptions": 0, "held_s": 0.0,
    **dict.fromkeys(LIMITS, 0),
    **dict.fromkeys((
        "submit_s", "since_s", "attained_s", "rate", "ready_s", "finish_s", "end_s", "duration_s",
        "remaining_s",
    ), np.nan),
}  # fmt: skip
Rule = tuple[Any, ...]  # a field; rows in which it is wrong; a message, and columns that it names
EQUAL = "is taken to be a type of its own, as fast as the others: gpu_types says no speed"


class StateArrays:
    """A state as arrays of the simulator; jobs are numbered by submission, nodes as they come.

    A job that this cluster can never run is left out, with a warning: whoever sent it need not
    know how large the cluster is. One that has finished, on a larger cluster, is as well. As a
    `RateModel`, jobs run at the speeds that the state gives, whoever runs beside them.

    Raises:
        StateError: it contradicts itself.
    """

    name = "state"

    def __init__(self, state: LiveClusterWithDurations, knows_durations: bool) -> None:
        self.state, listed = state, state["jobs"]
        self._node = _numbers("nodes", state["nodes"])
        self.node_ids, names = list(self._node), list(_numbers("jobs", listed))
        self._nodes = _columns(state["nodes"], NODE_DEFAULTS)
        self.cluster = self._cluster([node["gpu_type"] for node in state["nodes"]])
        self.warnings: list[dict[str, str]] = []
        self.left_out: list[str] = []  # of those that wait
        permitted = Labels.of(["|".join(job.get("gpu_types", ())) for job in listed])
        runnable = self._runnable(listed, permitted)
        order = np.argsort([job["submit_s"] for job in listed], kind="stable")
        self._place = order[runnable[order]]  # in the state's list, of every job
        self.jobs: list[Any] = [listed[place] for place in self._place]
        self.job_ids = [names[place] for place in self._place]
        self._jobs = given = _columns(self.jobs, JOB_DEFAULTS)
        _check("jobs", self._place, *self._rules(knows_durations))
        ids, submit = np.array(self.job_ids, np.str_), given.submit_s.astype(np.int64)
        known = np.nan_to_num(given.duration_s, nan=1.0)  # unknown ones are read by nobody
        duration = np.maximum(known, 1.0).astype(np.int64)
        self.trace = replace(
            Trace.of("state", submit, duration, given.num_gpus, job_id=ids),
            gpu_milli=given.gpu_milli.astype(np.int32),
            cpu_milli=given.cpu_milli,
            memory_mib=given.memory_mib,
            user=Labels.of([job.get("user") for job in self.jobs]),
            queue=Labels.of([job.get("queue") for job in self.jobs]),
            gpu_type=permitted.take(self._place),
        )
        self.snapshot = self._snapshot()

    def _cluster(self, kinds: list[str]) -> Cluster:
        self.types = self.state.get("gpu_types") or dict.fromkeys(kinds, 1.0)  # speed of each
        number = {kind: number for number, kind in enumerate(self.types)}
        types = np.array([number.get(kind, NONE) for kind in kinds], np.int32)
        message = "{!r} is not one of gpu_types"
        _check("nodes", range(len(kinds)), ("gpu_type", types == NONE, message, kinds))
        nodes = self._nodes
        if not 1 <= nodes.num_gpus.sum() <= MOST_GPUS:
            raise StateError((("nodes",), f"{nodes.num_gpus.sum()} GPUs, not 1 to {MOST_GPUS}"))
        try:
            return Cluster(
                name="state",
                gpus=nodes.num_gpus.astype(np.int32),
                rack=nodes.rack.astype(np.int32),
                gpu_type=types,
                gpu_types=tuple(self.types),
                cpu_milli=nodes.cpu_milli,
                memory_mib=nodes.memory_mib,
            )
        except InputError as error:
            raise StateError((("nodes",), error.message)) from error

    def _runnable(self, jobs: Sequence[LiveJob], permitted: Labels) -> BoolArray:
        """(J,) whether the cluster, all of it up and free, has what a job asks for; else a warning.

        There is one as well of every GPU type, where there are several and no speeds.
        """
        if "gpu_types" not in self.state and len(self.types) > 1:
            self.warnings += [{"gpu_type": t, "message": f"{t!r} {EQUAL}"} for t in self.types]
        masks = self.cluster.type_masks(permitted.names)[permitted.codes]
        gpus = np.bincount(self.cluster.gpu_type, self.cluster.gpus, len(self.types))
        there = ((masks[:, None] >> np.arange(len(gpus))) & 1) @ gpus.astype(np.int64)
        fits = (masks > 0) & (there >= [job["num_gpus"] for job in jobs])
        runnable = fits | _has(jobs, "holds")
        for place in np.flatnonzero(~runnable).tolist():
            job = jobs[place]
            kind = f" of type {' or '.join(job['gpu_types'])}" if "gpu_types" in job else ""
            asked = "1 GPU" if job["num_gpus"] == 1 else f"{job['num_gpus']} GPUs"
            message = f"asks for {asked}{kind}, the cluster has {there[place]}"
            if "finish_s" in job:
                message += "; nothing is learned from it"
            else:
                self.left_out.append(job["id"])
            self.warnings.append({"job": job["id"], "message": message})
        return runnable

    def _rules(self, knows_durations: bool) -> Iterator[Rule]:
        """What must not be the case of any job."""
        jobs, now, given = self.jobs, self.state["now_s"], self._jobs
        given.runs, given.over = _has(jobs, "holds"), _has(jobs, "finish_s")
        foreign = [
            next((t for t in job.get("speed", ()) if t not in self.types), "") for job in jobs
        ]
        late = f"is after now_s, {now}"
        part = (given.gpu_milli < WHOLE_GPU) & (given.num_gpus != 1)
        yield "gpu_milli", part, "a part of a GPU, but not of one"
        yield "speed", np.array(foreign) != "", "no GPU type {!r} in the cluster", foreign
        yield "finish_s", given.runs & given.over, "a job that has finished holds nothing"
        since = given.runs & ~_has(self.jobs, "since_s")
        yield "since_s", since, "is missing: since when does it run?"
        for field in ("rate", "ready_s", "shared_gpu", "end_s"):
            yield field, ~given.runs & _has(self.jobs, field), "goes with a job that runs"
        for field in ("submit_s", "since_s", "finish_s"):
            yield field, vars(given)[field] > now, late
        missing = knows_durations & ~given.over & ~_has(self.jobs, "duration_s")
        yield "duration_s", missing, "is missing: the policy goes by how long jobs take"

    def _snapshot(self) -> Snapshot:
        now, given = self.state["now_s"], self._jobs
        over, since = np.flatnonzero(given.over), _either(given.since_s, given.submit_s)
        attained = _either(given.attained_s, given.held_s)
        left = _either(given.remaining_s, np.maximum(given.duration_s - attained, 0.0))
        waiting, running = np.flatnonzero(~given.runs & ~given.over), np.flatnonzero(given.runs)
        running = self._in_order("running", running, since)
        return Snapshot(
            now=now,
            finished=over[np.argsort(given.finish_s[over], kind="stable")],
            waiting=self._in_order("waiting", waiting, since),
            running=running,
            **self._shares(running),
            submit=given.submit_s,
            since=since,
            finish=given.finish_s,
            work=np.where(given.over, attained, _either(given.duration_s, np.inf)),
            remaining=np.where(given.over, 0.0, _either(left, np.inf)),
            attained=attained,
            executed=given.held_s,
            ready=_either(given.ready_s, now),
            rate=given.rate,
            end=given.end_s,
            preemptions=given.preemptions,
        )

    def _in_order(
        self, field: Literal["waiting", "running"], jobs: IntArray, since: FloatArray
    ) -> IntArray:
        """`jobs` in the order that the state lists them in; else by since when."""
        if field not in self.state:
            return jobs[np.argsort(since[jobs], kind="stable")]
        missing, order = {self.job_ids[job]: job for job in jobs}, []
        for place, name in enumerate(self.state[field]):
            if name in missing:
                order.append(missing.pop(name))
            elif field == "running" or name not in self.left_out:
                raise StateError(((field, place), f"{name!r} is not one of {field} jobs"))
        for name in missing:
            raise StateError(((field,), f"leaves out {name!r}"))
        return np.array(order, np.int64)

    def _shares(self, running: IntArray) -> dict[str, NDArray[Any]]:
        """What running jobs hold, and what is left of nodes for others, as `Snapshot` has it."""
        held, nodes, given = [self.jobs[job]["holds"] for job in running], self._nodes, self._jobs
        sizes = np.array([*map(len, held)], np.int64)
        first, job = sums_before(sizes), np.repeat(running, sizes)
        names = [name for of_job in held for name in of_job]
        gpus = np.array([number for of_job in held for number in of_job.values()], np.int64)
        node = np.array([self._node.get(name, NONE) for name in names], np.int64)
        shared = [
            (name, self.jobs[j].get("shared_gpu")) for name, j in zip(names, job, strict=True)
        ]
        share = {on: number for number, on in reversed([*enumerate(shared)])}
        label = np.array([share[on] for on in shared], np.int64)  # the first share on the same GPU
        wanted, milli = given.num_gpus[job], given.gpu_milli[job]
        whole = milli == WHOLE_GPU
        asked = np.bincount(label, milli, len(label))[label]
        opened = np.where(whole, gpus, label == np.arange(len(label)))
        free, beyond = self.cluster.gpus.tolist(), np.zeros(len(job), np.bool_)
        for number, taken in enumerate(opened.tolist()):
            free[node[number]] -= taken
            beyond[number] = free[node[number]] < 0
        parts = (gpus < 1) & (np.repeat(sizes, sizes) > 1)
        _check(
            "jobs",
            self._place[job],
            (
                "holds",
                parts | (np.bincount(job, gpus, len(self.jobs))[job] != wanted),
                "is not a gang of {} GPUs",
                wanted,
            ),
            ("holds", node == NONE, "there is no node {!r}", names),
            ("holds", ~nodes.up[node], "node {!r} is down", names),
            (
                "shared_gpu",
                whole == _has(self.jobs, "shared_gpu")[job],
                "names the one GPU of a fractional job, and only of that",
            ),
            ("shared_gpu", ~whole & (asked > WHOLE_GPU), "its jobs ask for more than one GPU"),
            ("holds", beyond, "there are not so many GPUs"),
        )
        left = np.where(nodes.up, free, 0)
        over = ("free_gpus", nodes.free_gpus > left, "{}, at most {} are", nodes.free_gpus, left)
        _check("nodes", range(len(left)), over)
        return {
            "share_ptr": first,
            "share_node": node,
            "share_gpus": gpus,
            "shared_gpu": np.where(whole, NONE, label)[first[:-1]],
            "taken": np.where(nodes.free_gpus < 0, 0, left - nodes.free_gpus),
            "down": ~nodes.up,
        }

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """See `RateModel`."""
        speeds = [[*{**self.types, **job.get("speed", {})}.values()] for job in self.jobs]
        cases, profile = np.unique(np.array(speeds), axis=0, return_inverse=True)
        return without_neighbours(profile.reshape(-1).astype(np.int32), cases)


def _check(kind: str, places: Sequence[int] | IntArray, *rules: Rule) -> None:
    """Refuse the first row that breaks the first of the rules that is broken.

    Args:
        kind: "nodes" or "jobs".
        places: of the rows in the state's list.
        rules: the columns of each have the rows of `places`.
    """
    for field, wrong, message, *named in rules:
        for row in np.flatnonzero(wrong)[:1]:
            text = message.format(*(column[row] for column in named))
            raise StateError(((kind, int(places[row]), field), text))


def _numbers(kind: str, records: Sequence[Any]) -> dict[str, int]:
    """Places by name."""
    names, numbers = [record["id"] for record in records], dict[str, int]()
    twice = [numbers.setdefault(name, place) != place for place, name in enumerate(names)]
    _check(kind, range(len(names)), ("id", twice, "{!r} stands twice", names))
    return numbers


def _columns(records: Sequence[Any], default: Mapping[str, float]) -> SimpleNamespace:
    """Numbers of records, column by column."""
    columns = {
        name: np.array([record.get(name, value) for record in records], type(value))
        for name, value in default.items()
    }
    return SimpleNamespace(**columns)


def _has(records: Sequence[Any], field: str) -> BoolArray:
    return np.array([field in record for record in records], np.bool_)


def _either(numbers: FloatArray, others: FloatArray | float) -> FloatArray:
    """Numbers, or others where they are nan."""
    return np.where(np.isnan(numbers), others, numbers)
