"""The extender contract of kube-scheduler (`k8s.io/kube-scheduler/extender/v1`).

A request is about one pod and says of nodes what they have, not what is free there. So the pods
that were asked about are remembered, and the nodes that they were given; a snapshot tells what
became of them. Jobs that run are GPUs that are not free: through this contract none is stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from agents.cluster.live_state import LARGEST_GANG
from agents.decision import Name, StateError
from experiments.serving.gangs import Document, GangDecisions
from experiments.serving.objects import (
    OVER,
    GoObject,
    NodeList,
    Pod,
    PodList,
    kinds,
    read,
    seconds,
)

FORGET_S = 600.0  # after which who is not asked about is gone: kube-scheduler retries in 300
LATE_S = 30.0  # by which a snapshot may be older than what was asked
MOST_FINISHED = 500  # jobs that are learned from
SCORE = 10  # MaxExtenderPriority


class ExtenderArgs(GoObject):
    """A pod, and nodes or their names."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[Name] | None = None


class WholeNodes(GoObject):
    """A `v1.NodeList`, of which all is kept."""

    items: list[dict[str, Any]]


class WholeArgs(GoObject):
    """The nodes of `ExtenderArgs`."""

    nodes: WholeNodes


class Snapshot(GoObject):
    """All nodes and pods of a cluster."""

    nodes: NodeList
    pods: PodList


@dataclass
class KnownNode:
    """A node that was named or shown."""

    gpu_type: str
    gpus: int
    up: bool
    seen_s: float


@dataclass
class KnownPod:
    """A pod that was asked about, or runs."""

    pod: Pod
    gang: tuple[str, ...]
    size: int
    gpus: int
    submit_s: float
    seen_s: float
    node: str = ""  # that is set aside for it
    passed: bool = False  # it has been sent there

    @classmethod
    def of(cls, pod: Pod, now: float) -> KnownPod:
        submit_s = seconds(pod.metadata.creation_timestamp, now)
        return cls(pod, *pod.gang, pod.spec.gpus, submit_s, now)


class Extender:
    """Answers `filter` and `prioritize`, and takes snapshots."""

    def __init__(self, decisions: GangDecisions) -> None:
        self._decisions = decisions
        self._nodes: dict[str, KnownNode] = {}
        self._pods: dict[str, KnownPod] = {}
        self._finished: list[Document] = []
        self.routes: dict[str, Callable[[bytes], Any]] = {
            "/kubernetes/filter": self.filter,
            "/kubernetes/prioritize": self.prioritize,
            "/kubernetes/snapshot": self.snapshot,
        }

    def filter(self, body: bytes) -> Document:
        """An `ExtenderFilterResult`: the node of the pod, none while its gang waits, or all."""
        args = read(ExtenderArgs, body)
        names, node, why = self._asked(args, filters=True)
        passes = dict.fromkeys(names if node is None else [node] if node else [])
        result: Document = {"Nodes": None, "NodeNames": [*passes]}
        if args.nodes is not None:
            whole = read(WholeArgs, body).nodes.items if passes else []
            shown = [one for name, one in zip(names, whole, strict=False) if name in passes]
            result = {"Nodes": {"metadata": {}, "items": shown}, "NodeNames": None}
        # Nothing is gained where pods on the others are preempted.
        failed = {name: why for name in names if name not in passes}
        return {**result, "FailedNodes": {}, "FailedAndUnresolvableNodes": failed, "Error": ""}

    def prioritize(self, body: bytes) -> list[Document]:
        """A `HostPriorityList`: the node of the pod before all others."""
        names, node, _ = self._asked(read(ExtenderArgs, body), filters=False)
        return [{"Host": name, "Score": SCORE * (name == node)} for name in names]

    def snapshot(self, body: bytes) -> Document:
        """Forget what is not there, unless it was asked about a moment ago.

        A pod that waits there and was not asked about is left to other schedulers.
        """
        shown, now = read(Snapshot, body), time.time()
        names, ids = _single(node.metadata.name for node in shown.nodes.items or ()), set[str]()
        before, pods = self._pods, dict[str, KnownPod]()
        over: dict[tuple[str, ...], list[Pod]] = {}
        for pod in shown.pods.items or ():
            ids.add(pod.id)
            known = KnownPod.of(pod, now)
            if pod.status.phase in OVER:
                over.setdefault(known.gang, []).append(pod)
            elif pod.spec.node_name:
                known.node, known.passed, known.seen_s = pod.spec.node_name, True, 0.0
                pods[pod.id] = known
            elif pod.id in before:
                pods[pod.id] = before[pod.id]
        for name, old in before.items():
            if name not in ids and old.seen_s > now - LATE_S:
                pods[name] = old
        for known in pods.values():
            over.pop(known.gang, None)
        ended = (_finished(members, now) for members in over.values())
        useful = (job for job in ended if 0 < job["num_gpus"] <= LARGEST_GANG)
        self._finished = sorted(useful, key=itemgetter("finish_s"))[-MOST_FINISHED:]
        self._pods, self._nodes = pods, {}
        self._see(names, shown.nodes, now)
        return {"nodes": len(names), "pods": len(pods), "finished": len(self._finished)}

    def _see(self, names: Sequence[str], nodes: NodeList | None, now: float) -> None:
        for node in (nodes and nodes.items) or ():
            gpus = node.status.allocatable.gpus
            self._nodes[node.metadata.name] = KnownNode(node.gpu_type, gpus, node.up, now)
        for name in names:
            if name in self._nodes:
                self._nodes[name].seen_s = now

    def _asked(self, args: ExtenderArgs, *, filters: bool) -> tuple[list[str], str | None, str]:
        """The nodes of a request; the pod's, "" for none or None for any; why no other."""
        now, pod, name = time.time(), args.pod, args.pod.id
        given = args.node_names
        if args.nodes is not None:
            given = [node.metadata.name for node in args.nodes.items or ()]
        if given is None:
            raise StateError((("nodenames",), "is missing, as is nodes"))
        known, names = KnownPod.of(pod, now), _single(given)
        if known.gang == (name,) and not known.gpus:
            return names, None, ""
        self._see(names, args.nodes, now)
        old = self._pods.pop(name, None)
        if old is not None:
            known.node, known.passed = old.node, old.passed and not filters
            known.submit_s = min(known.submit_s, old.submit_s)
        self._forget(now)
        self._pods[name] = known
        if not known.gpus:
            return names, None, ""
        why = ""
        if known.node not in names:
            known.passed = False
            for other in self._pods.values():
                if other.gang == known.gang and not other.passed:
                    other.node = ""
            why = self._place(known, {*names})
        known.passed |= filters and known.node != ""
        return names, known.node, why or f"its node is {known.node}"

    def _forget(self, now: float) -> None:
        """Who has not been asked about for long: a pod that was deleted, a node that left."""
        oldest = now - FORGET_S
        self._nodes = {name: one for name, one in self._nodes.items() if one.seen_s >= oldest}
        self._pods = {
            name: one for name, one in self._pods.items() if one.passed or one.seen_s >= oldest
        }

    def _place(self, asked: KnownPod, names: set[str]) -> str:
        """Give the waiting members of a pod's gang their nodes, or say why they have none."""
        gangs: dict[tuple[str, ...], dict[str, KnownPod]] = {}
        for name, pod in self._pods.items():
            gangs.setdefault(pod.gang, {})[name] = pod
        lacks = _lacks(gangs[asked.gang].values())
        if lacks:
            return lacks
        jobs = [*self._finished]
        for gang, members in sorted(gangs.items()):
            waiting = [pod for pod in members.values() if pod.gpus and not pod.node]
            if gang == asked.gang:
                place = len(jobs)
            if waiting and not _lacks(members.values()):
                jobs.append({
                    "submit_s": min(pod.submit_s for pod in waiting),
                    "num_gpus": sum(pod.gpus for pod in waiting),
                    "user": waiting[0].pod.metadata.namespace,
                    **kinds(pod.pod for pod in waiting),
                })  # fmt: skip
        nodes = self._free(asked, names)
        if not nodes:
            return "no node with GPUs is known, of nodes or from a snapshot"
        members = gangs[asked.gang]
        gpus = {name: pod.gpus for name, pod in members.items() if pod.gpus and not pod.node}
        found = self._decisions.place(nodes, jobs, place, gpus)
        if isinstance(found, str):
            return found
        for name, node in found.items():
            members[name].node = node
        return ""

    def _free(self, asked: KnownPod, names: set[str]) -> list[Document]:
        """The nodes as a state has them: of those not in `names`, what is too little for a pod."""
        held = Counter[str]()
        for pod in self._pods.values():
            held[pod.node] += pod.gpus
        return [
            {"id": name, "gpu_type": node.gpu_type, "num_gpus": node.gpus,
             "free_gpus": min(max(node.gpus - held[name], 0) if node.up else 0,
                              node.gpus if name in names else asked.gpus - 1)}
            for name, node in sorted(self._nodes.items())
            if node.gpus
        ]  # fmt: skip


def _lacks(members: Collection[KnownPod]) -> str:
    """Why a gang cannot be decided on yet."""
    size = max(pod.size for pod in members)
    total = sum(pod.gpus for pod in members if not pod.node)
    if size < 1:
        return "its gang does not say in a number how many members it needs"
    if len(members) < size:
        return f"{len(members)} of the {size} members of its gang have been asked about"
    if total > LARGEST_GANG:
        return f"its gang asks for {total} GPUs, {LARGEST_GANG} are the most"
    return ""


def _single(names: Iterable[str]) -> list[str]:
    """Names of nodes, of which none stands twice."""
    counts = Counter(names)
    for name, number in counts.items():
        if number > 1:
            raise StateError((("nodes",), f"{name!r} stands twice"))
    return [*counts]


def _finished(pods: Sequence[Pod], now: float) -> Document:
    """A gang that is over, as a job of a state."""
    submit_s = min(seconds(pod.metadata.creation_timestamp, now) for pod in pods)
    start_s = min(seconds(pod.status.start_time, now) for pod in pods)
    ends = [
        seconds(one.state.terminated.finished_at, now)
        for pod in pods
        for one in pod.status.container_statuses or ()
    ]
    finish_s = max(ends, default=start_s)
    return {
        "submit_s": submit_s,
        "num_gpus": sum(pod.spec.gpus for pod in pods),
        "user": pods[0].metadata.namespace,
        "held_s": max(finish_s - start_s, 0.0),
        "finish_s": finish_s,
    }
