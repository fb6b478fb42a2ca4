"""An exported scheduler decides on the state of a live cluster, told as plain data."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, NotRequired, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.cluster.checkpoint import CheckpointScheduler
from agents.cluster.live_state import (
    Gpus,
    LiveCluster,
    LiveClusterWithDurations,
    LiveJob,
    LiveNode,
)
from agents.cluster.migrating.adviser import MigrationAdvice
from agents.cluster.migrating.learned_priority import LearnedPriority
from agents.cluster.migrating.policy import STOP, Migrating
from agents.cluster.migrating.priorities import Priority
from agents.decision import Decision, Form, Location, Name, StateError, form
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.play_kernel import remember_in_order
from envs.cluster.environment.routing import ConsecutiveRacks, OneQueue
from envs.cluster.environment.views import Bookkeeping
from envs.cluster.interference.rates import RateTables, without_neighbours
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, NONE, RUNNING, Overheads
from envs.cluster.simulation.resumed import Midst, resume
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace
from envs.errors import InputError
from models.export.checkpoint import CLUSTER

MOST_GPUS = 262_144  # of a cluster
Held = Annotated[dict[Name, Gpus], Field(description="GPUs by node")]
Probability = Annotated[float, Field(ge=0, le=1)]
UNSAID = {
    "gpu_milli": WHOLE_GPU, "cpu_milli": 0, "memory_mib": 0, "held_s": 0.0, "preemptions": 0,
    "finish_s": np.nan, "rate": np.nan, "end_s": np.nan,
}  # fmt: skip
WAITING_ONLY_WITHOUT = ("holds", "rate", "ready_s", "shared_gpu", "end_s")


@form
class ClusterAction(TypedDict):
    """To be carried out in the order of the list: a start may need what a stop before it frees."""

    action: Literal["start", "stop"]
    job: Name
    on: Held
    """what it gets, or what it gives back"""
    shared_gpu: NotRequired[str | None]
    """that a fractional job joins; null: a free one; "new b": that on which this answer starts
    job b"""
    probability: Probability
    """that the policy gives this action"""


@form
class JobFate(TypedDict):
    """What becomes of a job that waits or runs, and what the scheduler believes of it."""

    job: Name
    decision: Literal["start", "move", "keep", "stop", "wait"]
    on: Held | None
    """what it holds then; null: nothing"""
    rank: Annotated[int | None, Field(ge=1)]
    """place in the order of the plan that is followed"""
    priority: float | None
    """by which it stands there, highest first"""
    remaining_s: Annotated[float | None, Field(ge=0)]
    """work it is believed to need: the median, about"""
    remaining_factor: Annotated[float | None, Field(ge=1)]
    """two in three lie between that over and that times this factor"""


@form
class JobWarning(TypedDict):
    """A job that was left out of the decision."""

    job: Name
    message: str


@form
class TypeWarning(TypedDict):
    """A GPU type of the nodes beside others whose speed the state does not tell."""

    gpu_type: Name
    message: str


@form
class ClusterAnswer(TypedDict):
    """What a scheduler decides at an instant."""

    kind: Literal["meshwright.cluster_decision"]
    schema_version: Literal[1]
    now_s: float
    actions: list[ClusterAction]
    complete: bool
    """false: the limit of actions was reached; carry these out and ask again"""
    wait_probability: Probability
    """that the policy gives to doing no more; 0 if incomplete"""
    ask_again_s: float | None
    """when to ask again even if nothing happens; null: at the next event"""
    jobs: list[JobFate]
    warnings: list[JobWarning | TypeWarning]
    """jobs that no part of this cluster can run: the others are decided on; and GPU types that
    are taken to be as fast as the others"""


@bounded
class ClusterDecider:
    """Decides on states as a checkpoint folder says; every state stands for itself.

    A state is taken apart into the arrays of the simulator. A network plays the instant to its end:
    starts and stops until it waits; a plan says all of it at once. One state at a time; further
    threads wait their turn.

    Args:
        checkpoint: the folder, or the name of a shipped scheduler.
        window: waiting jobs that a network is shown at most; None: all.
        most_actions: of one answer; None: as many as the policy takes.
        most_nodes: of a state.
        most_jobs: of a state.

    Raises:
        InputError: the folder is no checkpoint of a cluster's scheduler.
    """

    kind = CLUSTER

    def __init__(
        self,
        checkpoint: str,
        *,
        window: Count | None = None,
        most_actions: Count | None = None,
        most_nodes: Count = 4096,
        most_jobs: Count = 100_000,
    ) -> None:
        self.scheduler = CheckpointScheduler(
            checkpoint,
            most_jobs if window is None else window,
            partition=ConsecutiveRacks(),
            routing=OneQueue(),
            forwards=0,
        )
        self.most_actions, self.most_nodes, self.most_jobs = most_actions, most_nodes, most_jobs
        self.knows_durations = self.scheduler.knows == "durations"
        state = LiveClusterWithDurations if self.knows_durations else LiveCluster
        self._form: Form[Any] = Form(state, "The state of a cluster")
        self._restart_s = self.scheduler.trained.restart_s
        self._lock = threading.Lock()

    @property
    def schema(self) -> dict[str, Any]:
        schema = self._form.schema()
        schema["properties"]["nodes"]["maxItems"] = self.most_nodes
        schema["properties"]["jobs"]["maxItems"] = self.most_jobs
        return schema

    @property
    def answer_schema(self) -> dict[str, Any]:
        return Form(ClusterAnswer, "What the scheduler decides").schema()

    def decide(self, state: Mapping[str, Any]) -> Decision:
        return self._decide(cast(LiveClusterWithDurations, self._form.read(dict(state))))

    def decide_json(self, text: bytes) -> Decision:
        return self._decide(cast(LiveClusterWithDurations, self._form.read_json(text)))

    @property
    def example(self) -> dict[str, Any]:
        known = {"duration_s": 7200} if self.knows_durations else {}
        jobs: list[dict[str, Any]] = [
            {"id": "d", "submit_s": 0, "num_gpus": 1, "held_s": 80, "finish_s": 90},
            {"id": "a", "submit_s": 10, "num_gpus": 2, "since_s": 20, "held_s": 4980,
             "holds": {"n0": 2}},
            {"id": "b", "submit_s": 4000, "num_gpus": 2, "user": "ann"},
            {"id": "c", "submit_s": 4500, "num_gpus": 4},
        ]  # fmt: skip
        return {
            "now_s": 5000,
            "nodes": [{"id": name, "gpu_type": "V100", "num_gpus": 2} for name in ("n0", "n1")],
            "jobs": [job if "finish_s" in job else {**job, **known} for job in jobs],
        }

    def warm(self) -> None:
        self.decide(self.example)

    def _decide(self, state: LiveClusterWithDurations) -> Decision:
        told = _Told(state, self.knows_durations, self.most_nodes, self.most_jobs)
        with self._lock:
            return _Instant(self.scheduler, told, self._restart_s).play(self.most_actions)


class _Instant:
    """A state that the scheduler plays to its next wait."""

    def __init__(self, scheduler: CheckpointScheduler, told: _Told, restart_s: float) -> None:
        self.scheduler, self.told = scheduler, told
        state = told.state
        incidents = np.array([] if state.get("closed") else [(np.inf, 0, 1)], INCIDENT)
        rates = _Speeds(told.speeds)
        overheads = Overheads(state.get("restart_s", restart_s), 0.0)
        self.simulator: ClusterSimulator | None = None
        self.episode: SchedulingEpisode | None = None
        some, plan = len(told.midst.waiting) + len(told.midst.running) > 0, scheduler.mover
        if some and plan is None:
            self.episode = scheduler.episode(
                told.cluster, told.trace, rates, overheads, incidents, begin=self._begin
            )
            self.simulator = self.episode.simulator
        elif some and plan is not None:
            self.simulator = ClusterSimulator(
                told.cluster, told.trace, rates=rates, overheads=overheads, incidents=incidents
            )
            plan.reset(self.simulator)
            self._resume(self.simulator)
        self.actions: list[dict[str, Any]] = []
        self.beliefs: dict[int, dict[str, Any]] = {}

    def _resume(self, simulator: ClusterSimulator) -> None:
        resume(simulator, self.told.midst)
        for field, kind in (("cpu", "cpu_milli"), ("memory", "memory_mib")):
            if (simulator.state.nodes[field] < 0).any():
                node = int(np.argmax(simulator.state.nodes[field] < 0))
                raise StateError((("nodes", node, kind), "the running jobs hold more than that"))

    def _begin(self, simulator: ClusterSimulator, book: Bookkeeping) -> None:
        self._resume(simulator)
        if len(book.gang):
            remember_in_order(simulator.state, book, self.told.midst.finished)

    def play(self, most_actions: int | None) -> Decision:
        wait_probability, complete = 1.0, True
        if self.episode is not None:
            speed = np.array(list(self.told.types.values()))
            view = self.episode.views[0]
            view.capacity[:, 2] = (speed / speed.max())[self.told.cluster.gpu_type[view.node]]
            self._joined = self._labels()
            wait_probability, complete = self._until_it_waits(self.episode, most_actions)
        elif self.simulator is not None and self.scheduler.mover is not None:
            complete = self._carry_out(self.scheduler.mover, self.simulator, most_actions)
        longest = self.scheduler.trained.actions.longest_wait_s
        now = self.told.midst.now
        content = {
            "kind": "meshwright.cluster_decision",
            "schema_version": 1,
            "now_s": now,
            "actions": self.actions,
            "complete": complete,
            "wait_probability": wait_probability if complete else 0.0,
            "ask_again_s": None if longest is None else now + longest,
            "jobs": list(self._fates()),
            "warnings": self.told.warnings,
        }
        return Decision(self.actions, content, self.told.warnings)

    def _carry_out(
        self, plan: Migrating, simulator: ClusterSimulator, most_actions: int | None
    ) -> bool:
        """Do what a plan says; whether that came to less than the limit."""
        jobs = np.concatenate([self.told.midst.waiting, self.told.midst.running])
        simulator.settle()
        self._believe(plan.priority, simulator, jobs)
        for move, job in islice(plan.moves(simulator), most_actions):
            stops = move == STOP
            held = self.told.jobs[job]["holds"] if stops else self._on(simulator.shares(job))
            self._act("stop" if stops else "start", job, held, 1.0)
        return len(self.actions) != most_actions

    def _until_it_waits(
        self, episode: SchedulingEpisode, most_actions: int | None
    ) -> tuple[float, bool]:
        """Act; the probability of the wait, and whether it came to that."""
        table, simulator, book = episode.action_table, episode.simulator, episode.book
        while True:
            graph, mask = episode.observe(0)
            if not self.actions and isinstance(episode.advice, MigrationAdvice):
                shown = np.concatenate([book.window[0], book.shown[0]])
                jobs = shown[shown != NONE].astype(np.int64)
                self._believe(episode.advice.order, simulator, jobs)
            action, probability = self.scheduler.choose(graph, mask, episode)
            if action == table.size - 1:
                return probability, True
            if len(self.actions) == most_actions:
                return 0.0, False
            stop = action - table.window * table.groups
            starts = stop < 0
            job = int(book.window[0, action // table.groups] if starts else book.shown[0, stop])
            held = simulator.shares(job)
            episode.act(0, action)
            held = held or simulator.shares(job)
            done = self._act("start" if starts else "stop", job, self._on(held), probability)
            if self.told.trace.gpu_milli[job] < WHOLE_GPU:
                if starts:
                    shared = self._shared(job)
                    done["shared_gpu"] = self._joined.get(shared)
                    self._joined.setdefault(shared, f"new {done['job']}")
                else:
                    in_use = {self._shared(other) for other in simulator.running().tolist()}
                    self._joined = {k: v for k, v in self._joined.items() if k in in_use}

    def _act(self, action: str, job: int, held: dict[str, int], chance: float) -> dict[str, Any]:
        """Note down what is done; the note."""
        name = self.told.job_ids[job]
        done: dict[str, Any] = {"action": action, "job": name, "on": held, "probability": chance}
        self.actions.append(done)
        return done

    def _on(self, held: Sequence[tuple[int, int]]) -> dict[str, int]:
        return {self.told.node_ids[node]: gpus for node, gpus in held}

    def _shared(self, job: int) -> int:
        """Number of the GPU that a running job shares, or NONE."""
        assert self.episode is not None
        state = self.episode.simulator.state
        return int(state.shares[state.jobs[job]["share"]]["partial"])

    def _labels(self) -> dict[int, str]:
        """The labels of the GPUs that fractional jobs share, by their number."""
        labels = {job: self.told.jobs[job].get("shared_gpu") for job in self.told.midst.running}
        return {self._shared(job): label for job, label in labels.items() if label is not None}

    def _believe(self, order: Priority, simulator: ClusterSimulator, jobs: IntArray) -> None:
        """Note what the plan that is followed thinks of jobs, before anything is done."""
        keys = order(simulator.state, jobs)
        place = np.lexsort((jobs, keys))
        jobs, told = jobs[place], {"priority": (0.0 - keys[place]).tolist()}
        if isinstance(order, LearnedPriority):
            remaining_s, factor = np.exp(order.believed[jobs]).T
            told |= {
                "remaining_s": remaining_s.tolist(),
                "remaining_factor": np.maximum(factor, 1.0).tolist(),
            }
        for rank, job in enumerate(jobs.tolist()):
            self.beliefs[job] = {"rank": rank + 1, **{k: v[rank] for k, v in told.items()}}

    def _fates(self) -> Iterator[dict[str, Any]]:
        unknown = dict.fromkeys(("rank", "priority", "remaining_s", "remaining_factor"))
        midst, simulator = self.told.midst, self.simulator
        stopped = {action["job"] for action in self.actions if action["action"] == "stop"}
        ran = np.zeros(len(self.told.order), np.bool_)
        ran[midst.running] = True
        for job in np.sort(np.concatenate([midst.waiting, midst.running])).tolist():
            assert simulator is not None
            runs = simulator.state.jobs[job]["status"] == RUNNING
            name = self.told.job_ids[job]
            if ran[job]:
                decision = "stop" if not runs else "move" if name in stopped else "keep"
            else:
                decision = "start" if runs else "wait"
            belief = self.beliefs.get(job, {})
            if self.told.knows_durations:
                belief |= {"remaining_s": float(midst.remaining[job]), "remaining_factor": 1.0}
            yield {
                "job": name,
                "decision": decision,
                "on": self._on(simulator.shares(job)) if runs else None,
                **unknown,
                **belief,
            }
        for name in self.told.left_out:
            yield {"job": name, "decision": "wait", "on": None, **unknown}


class _Speeds:
    """Jobs run at the speeds that a state tells, whoever runs beside them.

    Args:
        speeds: (J, T), or (1, T) for all.
    """

    name = "told"

    def __init__(self, speeds: FloatArray) -> None:
        self._speeds = speeds

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        if len(self._speeds) == 1:
            return without_neighbours(np.zeros(len(trace), np.int32), self._speeds)
        cases, profile = np.unique(self._speeds, axis=0, return_inverse=True)
        return without_neighbours(profile.reshape(-1).astype(np.int32), cases)


class _Told:
    """A state as arrays; jobs are numbered by submission, nodes as they come.

    A job that this cluster can never run is left out, with a warning: whoever sent it need not
    know how large the cluster is. One that has finished, on a larger cluster, is as well.

    Raises:
        StateError: it contradicts itself.
    """

    def __init__(
        self,
        state: LiveClusterWithDurations,
        knows_durations: bool,
        most_nodes: int,
        most_jobs: int,
    ) -> None:
        self.state, self.knows_durations = state, knows_durations
        nodes, jobs = state["nodes"], state["jobs"]
        for field, found, most in (("nodes", nodes, most_nodes), ("jobs", jobs, most_jobs)):
            if len(found) > most:
                raise StateError(((field,), f"{len(found)} of them, this decider takes {most}"))
        self.node_ids = [node["id"] for node in nodes]
        self._node = _numbers(self.node_ids, "nodes")
        names = [job["id"] for job in jobs]
        _numbers(names, "jobs")
        self.types = _types(state.get("gpu_types"), nodes)
        self.cluster = _cluster(nodes, self.types)
        self.warnings = self._equally_fast()
        self.left_out: list[str] = []  # of those that wait
        kept = self._runnable(jobs)
        submit = np.array([job["submit_s"] for job in jobs], np.float64)
        order = np.argsort(submit, kind="stable")
        self.order = order[kept[order]]  # place in the list of every job
        self.job_ids = [names[place] for place in self.order]
        self.jobs: list[dict[str, Any]] = [{**UNSAID, **jobs[place]} for place in self.order]
        self.trace = self._trace(submit[self.order])
        self.speeds = self._speeds()
        self.midst = self._midst(submit[self.order])

    def _equally_fast(self) -> list[dict[str, str]]:
        """A warning of every GPU type, where there are several and no speeds."""
        if "gpu_types" in self.state or len(self.types) == 1:
            return []
        told = "is taken to be a type of its own, as fast as the others: gpu_types says no speed"
        return [{"gpu_type": name, "message": f"{name!r} {told}"} for name in self.types]

    def _runnable(self, jobs: Sequence[LiveJob]) -> BoolArray:
        """(J,) whether the cluster, all of it up and free, has what a job asks for; else noted."""
        counts = np.bincount(self.cluster.gpu_type, self.cluster.gpus, len(self.types))
        of_type = dict(zip(self.types, counts.astype(int).tolist(), strict=True))
        every, whole = of_type.keys(), sum(of_type.values())
        runnable = np.ones(len(jobs), np.bool_)
        for place, job in enumerate(jobs):
            permitted = every & job["gpu_types"] if "gpu_types" in job else every
            there = whole if permitted is every else sum(of_type[name] for name in permitted)
            if "holds" in job or (permitted and job["num_gpus"] <= there):
                continue
            runnable[place] = False
            kind = f" of type {' or '.join(job['gpu_types'])}" if "gpu_types" in job else ""
            asked = "1 GPU" if job["num_gpus"] == 1 else f"{job['num_gpus']} GPUs"
            told = f"asks for {asked}{kind}, the cluster has {there}"
            if "finish_s" in job:
                told += "; nothing is learned from it"
            else:
                self.left_out.append(job["id"])
            self.warnings.append({"job": job["id"], "message": told})
        return runnable

    def _at(self, job: int, field: str, message: str) -> StateError:
        return StateError((("jobs", int(self.order[job]), field), message))

    def _column(self, key: str, kind: type[Any] = np.float64) -> NDArray[Any]:
        return np.array([job[key] for job in self.jobs], kind)

    def _trace(self, submit: FloatArray) -> Trace:
        jobs = self.jobs
        milli, gpus = self._column("gpu_milli", np.int32), self._column("num_gpus", np.int32)
        wrong = (milli < WHOLE_GPU) & (gpus != 1)
        if wrong.any():
            raise self._at(int(np.argmax(wrong)), "gpu_milli", "a part of a GPU, but not of one")
        return Trace(
            name="state",
            job_id=np.array(self.job_ids, np.str_),
            submit_s=submit.astype(np.int64),
            duration_s=np.ones(len(jobs), np.int64),
            num_gpus=gpus,
            gpu_milli=milli,
            cpu_milli=self._column("cpu_milli", np.int64),
            memory_mib=self._column("memory_mib", np.int64),
            user=Labels.of([job.get("user") for job in jobs]),
            queue=Labels.of([job.get("queue") for job in jobs]),
            gpu_type=Labels.of(["|".join(job.get("gpu_types", ())) for job in jobs]),
            model=Labels.unknown(len(jobs)),
        )

    def _speeds(self) -> FloatArray:
        typical = list(self.types.values())
        if not any("speed" in job for job in self.jobs):
            return np.array([typical], np.float64)
        columns = {name: column for column, name in enumerate(self.types)}
        speeds = np.tile(np.array(typical, np.float64), (len(self.jobs), 1))
        for job, told in enumerate(self.jobs):
            for name, speed in told.get("speed", {}).items():
                if name not in columns:
                    raise self._at(job, "speed", f"no GPU type {name!r} in the cluster")
                speeds[job, columns[name]] = speed
        return speeds

    def _midst(self, submit: FloatArray) -> Midst:
        now, jobs = self.state["now_s"], self.jobs
        finish = self._column("finish_s")
        over = ~np.isnan(finish)
        runs = np.array(["holds" in job for job in jobs], np.bool_)
        for job, told in enumerate(jobs):
            if runs[job] and over[job]:
                raise self._at(job, "finish_s", "a job that has finished holds nothing")
            if runs[job] and "since_s" not in told:
                raise self._at(job, "since_s", "is missing: since when does it run?")
            if not runs[job]:
                for field in WAITING_ONLY_WITHOUT:
                    if field in self.state["jobs"][self.order[job]]:
                        raise self._at(job, field, "goes with a job that runs")
        since = np.array([job.get("since_s", job["submit_s"]) for job in jobs], np.float64)
        for field, times in (("submit_s", submit), ("since_s", since), ("finish_s", finish)):
            if (times > now).any():
                raise self._at(int(np.argmax(times > now)), field, f"is after now_s, {now}")
        attained = np.array([job.get("attained_s", job["held_s"]) for job in jobs], np.float64)
        work, remaining = self._durations(over, attained)
        numbers = dict(zip(self.job_ids, range(len(jobs)), strict=True))
        running = self._listed("running", np.flatnonzero(runs), since, numbers)
        waiting = self._listed("waiting", np.flatnonzero(~runs & ~over), since, numbers)
        ended = np.flatnonzero(over)
        return Midst(
            now=now,
            finished=ended[np.argsort(finish[ended], kind="stable")],
            waiting=waiting,
            running=running,
            **self._shares(running),
            submit=submit,
            since=since,
            finish=finish,
            work=work,
            remaining=remaining,
            attained=attained,
            executed=self._column("held_s"),
            ready=np.array([job.get("ready_s", now) for job in jobs], np.float64),
            rate=self._column("rate"),
            end=self._column("end_s"),
            preemptions=self._column("preemptions", np.int64),
        )

    def _durations(self, over: BoolArray, attained: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Work in all and left, of every job; infinite where nobody knows."""
        work = np.where(over, attained, np.inf)
        remaining = np.where(over, 0.0, np.inf)
        if self.knows_durations:
            for job in np.flatnonzero(~over).tolist():
                told = self.jobs[job]
                if "duration_s" not in told:
                    message = "is missing: the policy goes by how long jobs take"
                    raise self._at(job, "duration_s", message)
                work[job] = told["duration_s"]
                left = told.get("remaining_s", max(told["duration_s"] - attained[job], 0.0))
                remaining[job] = left
        return work, remaining

    def _listed(
        self, field: str, those: IntArray, since: FloatArray, numbers: Mapping[str, int]
    ) -> IntArray:
        """`those` in the order that the state lists them in; else by since when."""
        listed = cast("list[str] | None", self.state.get(field))
        if listed is None:
            return those[np.argsort(since[those], kind="stable")]
        left_out = set(self.left_out if field == "waiting" else ())
        places = [place for place, name in enumerate(listed) if name not in left_out]
        found = np.array([numbers.get(listed[place], -1) for place in places], np.int64)
        if len(found) != len(those) or not np.array_equal(np.sort(found), those):
            expected = set(those.tolist())
            for place, job in zip(places, found.tolist(), strict=True):
                if job not in expected:
                    raise StateError(((field, place), f"{listed[place]!r} is none of {field} jobs"))
                expected.remove(job)
            raise StateError(((field,), f"leaves out {self.job_ids[min(expected)]!r}"))
        return found

    def _shares(self, running: IntArray) -> dict[str, Any]:
        """What running jobs hold, and what is left of nodes for others, as `Midst` has it."""
        free = self.cluster.gpus.tolist()
        down = np.array([not node.get("up", True) for node in self.state["nodes"]], np.bool_)
        ptr, where, gpus = [0], [], []
        labels: dict[tuple[int, str], int] = {}
        left: list[int] = []  # thousandths of every shared GPU
        shared = np.full(len(running), NONE, np.int64)
        for row, job in enumerate(running.tolist()):
            told = self.jobs[job]
            wanted, milli, holds = told["num_gpus"], told["gpu_milli"], told["holds"]
            if sum(holds.values()) != wanted or (min(holds.values()) < 1 and len(holds) > 1):
                raise self._at(job, "holds", f"is not a gang of {wanted} GPUs")
            for name, part in holds.items():
                node = self._node.get(name)
                if node is None:
                    raise self._at(job, "holds", f"there is no node {name!r}")
                if down[node]:
                    raise self._at(job, "holds", f"node {name!r} is down")
                where.append(node)
                gpus.append(part)
                if milli == WHOLE_GPU:
                    free[node] -= part
            ptr.append(len(where))
            if (milli < WHOLE_GPU) != ("shared_gpu" in told):
                message = "names the one GPU of a fractional job, and only of that"
                raise self._at(job, "shared_gpu", message)
            if milli < WHOLE_GPU:
                key = (where[-1], told["shared_gpu"])
                if key not in labels:
                    labels[key] = len(left)
                    left.append(WHOLE_GPU)
                    free[where[-1]] -= 1
                shared[row] = labels[key]
                left[labels[key]] -= milli
                if left[labels[key]] < 0:
                    raise self._at(job, "shared_gpu", "its jobs ask for more than one GPU")
            if any(free[node] < 0 for node in where[ptr[row] :]):
                raise self._at(job, "holds", "there are not so many GPUs")
        return {
            "share_ptr": np.array(ptr, np.int64),
            "share_node": np.array(where, np.int64),
            "share_gpus": np.array(gpus, np.int64),
            "shared_gpu": shared,
            "taken": self._taken(np.array(free, np.int64), down),
            "down": down,
        }

    def _taken(self, free: IntArray, down: BoolArray) -> IntArray:
        """(N,) GPUs that neither these jobs hold nor any can have."""
        told = [node.get("free_gpus") for node in self.state["nodes"]]
        for node, there in enumerate(told):
            most = 0 if down[node] else int(free[node])
            if there is not None and there > most:
                raise StateError((("nodes", node, "free_gpus"), f"{there}, at most {most} are"))
        known = np.array([left if t is None else t for t, left in zip(told, free, strict=True)])
        taken: IntArray = np.where(down, 0, free - known).astype(np.int64)
        return taken


def _numbers(names: Sequence[str], field: str) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for place, name in enumerate(names):
        if numbers.setdefault(name, place) != place:
            raise StateError(((field, place, "id"), f"{name!r} stands twice"))
    return numbers


def _types(told: Mapping[str, float] | None, nodes: Sequence[LiveNode]) -> dict[str, float]:
    """Speed by GPU type."""
    if told is None:
        return dict.fromkeys((node["gpu_type"] for node in nodes), 1.0)
    for place, node in enumerate(nodes):
        if node["gpu_type"] not in told:
            location: Location = ("nodes", place, "gpu_type")
            raise StateError((location, f"{node['gpu_type']!r} is none of gpu_types"))
    return dict(told)


def _cluster(nodes: Sequence[LiveNode], types: Mapping[str, float]) -> Cluster:
    column = {name: index for index, name in enumerate(types)}
    gpus = np.array([node["num_gpus"] for node in nodes], np.int32)
    if not 1 <= gpus.sum(dtype=np.int64) <= MOST_GPUS:
        raise StateError((("nodes",), f"{gpus.sum()} GPUs, not 1 to {MOST_GPUS}"))
    try:
        return Cluster(
            name="state",
            gpus=gpus,
            rack=np.array([node.get("rack", 0) for node in nodes], np.int32),
            gpu_type=np.array([column[node["gpu_type"]] for node in nodes], np.int32),
            gpu_types=tuple(types),
            cpu_milli=np.array([node.get("cpu_milli", UNLIMITED) for node in nodes], np.int64),
            memory_mib=np.array([node.get("memory_mib", UNLIMITED) for node in nodes], np.int64),
        )
    except InputError as error:
        raise StateError((("nodes",), error.message)) from error
