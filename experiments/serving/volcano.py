"""The contract of Volcano's plugin `extender` (`pkg/scheduler/plugins/extender`).

A session opens with all jobs and nodes. What is then asked is answered by one decision on them,
which may stop jobs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from agents.decision import Name
from experiments.serving.gangs import SPLIT, Document, GangDecisions
from experiments.serving.objects import (
    UNKNOWN,
    Count,
    GoObject,
    Label,
    Node,
    Pod,
    kinds,
    read,
    seconds,
)

PENDING, PIPELINED = 1, 4  # of `TaskStatus`: one bit each
RUNS = 2 | 8 | 16 | 32  # allocated, binding, bound, running
PERMIT, ABSTAIN, REJECT = 1, 0, -1
UNRESOLVABLE = 3  # the code of a node where preemption would change nothing
SCORE = 100.0  # MaxNodeScore
Thousandths = Annotated[float, Field(ge=0, le=1_024_000)]  # of GPUs
FEWER = "its job has fewer tasks than it needs"
NO_GPUS = "no node has GPUs"


class Scalars(GoObject):
    """Thousandths, by name."""

    gpus: Thousandths = Field(default=0, validation_alias="nvidia.com/gpu")


class Resource(GoObject):
    """`api.Resource`."""

    scalar_resources: Scalars | None = None

    @property
    def gpus(self) -> int:
        return int(self.scalar_resources.gpus / 1000) if self.scalar_resources else 0


class Task(GoObject):
    """`api.TaskInfo`."""

    uid: Name
    job: str = ""
    resreq: Resource | None = None
    node_name: Label = ""
    status: int = PENDING
    pod: Pod | None = None

    @property
    def gpus(self) -> int:
        return self.resreq.gpus if self.resreq else 0


class MinResources(GoObject):
    """GPUs of a gang."""

    gpus: Count = Field(default=0, validation_alias="nvidia.com/gpu")


class PodGroupSpec(GoObject):
    """`scheduling.PodGroupSpec`."""

    min_resources: MinResources | None = None


class PodGroup(GoObject):
    """`api.PodGroup`."""

    spec: PodGroupSpec = PodGroupSpec()


class Job(GoObject):
    """`api.JobInfo`."""

    uid: Name
    namespace: Name = "default"
    queue: Label = ""
    min_available: int = 0
    tasks: dict[str, Task] | None = None
    creation_timestamp: AwareDatetime | None = None
    pod_group: PodGroup | None = None


class NodeInfo(GoObject):
    """`api.NodeInfo`."""

    name: Name
    node: Node | None = None
    idle: Resource = Resource()
    allocatable: Resource = Resource()


class OnSessionOpenRequest(GoObject):
    jobs: dict[str, Job]
    nodes: dict[Name, NodeInfo]


class NamedNode(GoObject):
    """Of an `api.NodeInfo`."""

    name: Name


class PredicateRequest(GoObject):
    task: Task
    node: NamedNode


class PrioritizeRequest(GoObject):
    task: Task
    nodes: list[NamedNode] | None = None


class PreemptableRequest(GoObject):
    evictor: Task
    evictees: list[Task] | None = None


class WholeEvictees(GoObject):
    """The same tasks, of which all is kept."""

    evictees: list[dict[str, Any]]


class JobEnqueueableRequest(GoObject):
    job: Job


@dataclass
class Session:
    """What is decided in a session.

    Attributes:
        nodes: of the tasks that start.
        waits: why a job waits; "": it starts.
        stopped: jobs.
    """

    nodes: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)


class VolcanoExtender:
    """Answers the calls of a session."""

    def __init__(self, decisions: GangDecisions) -> None:
        self._decisions = decisions
        self._session: Session | None = None
        self.routes: dict[str, Callable[[bytes], Document]] = {
            "/volcano/onSessionOpen": self.open,
            "/volcano/onSessionClose": self.close,
            "/volcano/predicate": self.predicate,
            "/volcano/prioritize": self.prioritize,
            "/volcano/preemptable": self.preemptable,
            "/volcano/jobEnqueueable": self.enqueueable,
        }

    def open(self, body: bytes) -> Document:
        """Decide on all jobs and nodes of a session."""
        self._session = None
        request, now = read(OnSessionOpenRequest, body), time.time()
        made, held = Session(), Counter[str]()
        jobs: list[Document] = []
        running: dict[str, str] = {}  # ids of jobs, by their places in `jobs`
        starts: dict[int, tuple[str, dict[str, int]]] = {}  # and the GPUs of their tasks
        for job in sorted(request.jobs.values(), key=lambda job: job.uid):
            every = job.tasks or {}
            tasks = [task for task in every.values() if task.gpus]
            submit_s = seconds(job.creation_timestamp, now)
            about = {"submit_s": submit_s, "user": job.namespace}
            about |= {"queue": job.queue} if job.queue else {}
            placed = (task for task in tasks if task.node_name in request.nodes)
            runs = [task for task in placed if task.status & RUNS]
            if runs:
                holds = Counter[str]()
                for task in runs:
                    holds[task.node_name] += task.gpus
                begun = (task.pod.status.start_time if task.pod else None for task in runs)
                running[str(len(jobs))] = job.uid
                jobs.append({**about, "num_gpus": holds.total(), "holds": holds,
                             "since_s": min(seconds(start, now) for start in begun)})  # fmt: skip
                held += holds
            waiting = [task for task in tasks if task.status in (PENDING, PIPELINED)]
            gpus = {task.uid: task.gpus for task in waiting}
            least = job.pod_group and job.pod_group.spec.min_resources
            total = sum(gpus.values()) if every else least.gpus if least else 0
            if total and 0 < len(every) < job.min_available:
                made.waits[job.uid] = FEWER
            elif total:
                starts[len(jobs)] = job.uid, gpus
                jobs.append({**about, "num_gpus": total, **kinds(task.pod for task in waiting)})
        nodes = [
            {"id": name, "gpu_type": node.node.gpu_type if node.node else UNKNOWN,
             "num_gpus": max(node.allocatable.gpus, held[name]),
             "free_gpus": max(min(node.idle.gpus, node.allocatable.gpus - held[name]), 0)}
            for name, node in sorted(request.nodes.items())
            if node.allocatable.gpus or held[name]
        ]  # fmt: skip
        if nodes and jobs:
            self._decide(made, nodes, jobs, running, starts)
        else:
            made.waits |= {uid: NO_GPUS for uid, _ in starts.values()}
        self._session = made
        return {}

    def _decide(
        self,
        made: Session,
        nodes: list[Document],
        jobs: list[Document],
        running: Mapping[str, str],
        starts: Mapping[int, tuple[str, dict[str, int]]],
    ) -> None:
        left = Counter({node["id"]: node["free_gpus"] for node in nodes})
        for action in self._decisions.decide(nodes, jobs)["actions"]:
            if action["action"] == "stop":
                left.update(action["on"])
                made.stopped.add(running[action["job"]])
            elif action["job"] in running:  # moves
                left.subtract(action["on"])
        for place, (uid, gpus) in starts.items():
            found = self._decisions.place(nodes, jobs, place, gpus)
            if isinstance(found, str):
                made.waits[uid] = found
                continue
            used = Counter[str]()
            for task, node in found.items():
                used[node] += gpus[task]
            fits = used <= left
            made.waits[uid] = "" if fits else SPLIT
            if fits:
                left -= used
                made.nodes |= found

    def close(self, body: bytes) -> Document:
        """Forget the session."""
        read(GoObject, body)
        self._session = None
        return {}

    def predicate(self, body: bytes) -> Document:
        """Whether a task goes to a node; under both names that the message has had."""
        asked = read(PredicateRequest, body)
        task, session, why = asked.task, self._session, ""
        if task.gpus:
            if session is None:
                why = "no session is open"
            elif task.uid not in session.nodes:
                why = session.waits.get(task.job) or "it is no waiting task of the session"
            elif session.nodes[task.uid] != asked.node.name:
                why = f"its node is {session.nodes[task.uid]}"
        return {"status": why, "errorMessage": why, "code": UNRESOLVABLE if why else 0}

    def prioritize(self, body: bytes) -> Document:
        """The node of a task before all others."""
        asked, session = read(PrioritizeRequest, body), self._session or Session()
        node = session.nodes.get(asked.task.uid)
        scores = {one.name: SCORE * (one.name == node) for one in asked.nodes or ()}
        return {"nodeScore": scores, "errorMessage": ""}

    def preemptable(self, body: bytes) -> Document:
        """Of the tasks that may be stopped for another, those whose jobs the decision stops."""
        asked = read(PreemptableRequest, body)
        session, uid, victims = self._session or Session(), asked.evictor.uid, []
        if uid in session.nodes and asked.evictees:
            pairs = zip(asked.evictees, read(WholeEvictees, body).evictees, strict=False)
            victims = [whole for task, whole in pairs if task.job in session.stopped]
        votes = PERMIT if victims else REJECT
        known = asked.evictor.gpus and asked.evictor.job in session.waits
        return {"status": votes if known else ABSTAIN, "victims": victims}

    def enqueueable(self, body: bytes) -> Document:
        """Whether a job starts; of one without GPUs nothing is said."""
        asked, session = read(JobEnqueueableRequest, body), self._session or Session()
        waits = session.waits.get(asked.job.uid)
        return {"status": ABSTAIN if waits is None else REJECT if waits else PERMIT}
