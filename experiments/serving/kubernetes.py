"""The extender contract of kube-scheduler (`k8s.io/kube-scheduler/extender/v1`).

A request is about one pod and says of nodes what they have, not what is free there. So the pods
that were asked about are remembered, and the nodes that they were given; a snapshot tells what
became of them. Jobs that run are GPUs that are not free: through this contract none is stopped.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from pydantic_core import from_json

from agents.cluster.live_state import LARGEST_GANG
from agents.decision import StateError
from experiments.serving.gangs import Document, GangDecisions
from experiments.serving.objects import (
    OVER,
    ArgumentReader,
    ExtenderArgs,
    GoObject,
    NodeList,
    Pod,
    PodList,
    WholeArgs,
    kinds,
    read,
    seconds,
)

FORGET_S = 600.0  # after which who is not asked about is gone: kube-scheduler retries in 300
LATE_S = 30.0  # by which a snapshot may be older than what was asked
MOST_FINISHED = 500  # jobs that are learned from
SCORE = 10  # MaxExtenderPriority


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

    gang: tuple[str, ...]
    size: int
    gpus: int
    user: str
    gpu_types: list[str]  # empty: any
    submit_s: float
    seen_s: float
    node: str = ""  # that is set aside for it
    passed: bool = False  # it has been sent there

    @classmethod
    def of(cls, pod: Pod, now: float) -> KnownPod:
        submit_s = seconds(pod.metadata.creation_timestamp, now)
        user, types = pod.metadata.namespace, kinds([pod]).get("gpu_types", [])
        return cls(*pod.gang, pod.spec.gpus, user, types, submit_s, now)


@dataclass
class Gang:
    """The pods of a gang that are known, by their ids."""

    members: dict[str, KnownPod]

    @property
    def waiting(self) -> dict[str, KnownPod]:
        return {name: pod for name, pod in self.members.items() if pod.gpus and not pod.node}

    @cached_property
    def lacks(self) -> str:
        """Why it cannot be decided on yet."""
        size = max(pod.size for pod in self.members.values())
        total = sum(pod.gpus for pod in self.waiting.values())
        if size < 1:
            return "its gang does not say in a number how many members it needs"
        if len(self.members) < size:
            known = len(self.members)
            return f"{known} of the {size} members of its gang have been asked about"
        if total > LARGEST_GANG:
            return f"its gang asks for {total} GPUs, {LARGEST_GANG} are the most"
        return ""

    @cached_property
    def job(self) -> Document | None:
        """Its waiting members as a job of a state; None: there are none, or it lacks something."""
        waiting = [*self.waiting.values()]
        if not waiting or self.lacks:
            return None
        types = {kind for pod in waiting for kind in pod.gpu_types or ("",)}
        return {
            "submit_s": min(pod.submit_s for pod in waiting),
            "num_gpus": sum(pod.gpus for pod in waiting),
            "user": waiting[0].user,
            **({} if "" in types else {"gpu_types": sorted(types)}),
        }


class KnownPods:
    """Pods by their ids and gangs, and the GPUs of each node that are set aside for them.

    Args:
        pods: by their ids.
    """

    def __init__(self, pods: Mapping[str, KnownPod]) -> None:
        self.by_id: dict[str, KnownPod] = {}
        self.gangs: dict[tuple[str, ...], Gang] = {}
        self.held = Counter[str]()
        for name, pod in pods.items():
            self.add(name, pod)

    def add(self, name: str, pod: KnownPod) -> None:
        self.by_id[name] = pod
        self.held[pod.node] += pod.gpus
        members = self.gangs[pod.gang].members if pod.gang in self.gangs else {}
        members[name] = pod
        self.gangs[pod.gang] = Gang(members)  # what was found of the former holds no more

    def pop(self, name: str) -> KnownPod | None:
        """Forget a pod, if there is one."""
        pod = self.by_id.pop(name, None)
        if pod is not None:
            self.held[pod.node] -= pod.gpus
            members = self.gangs.pop(pod.gang).members
            del members[name]
            if members:
                self.gangs[pod.gang] = Gang(members)
        return pod

    def give(self, pod: KnownPod, node: str) -> None:
        """Set a node aside for a pod; "": none."""
        self.held[pod.node] -= pod.gpus
        pod.node = node
        self.held[node] += pod.gpus
        self.gangs[pod.gang] = Gang(self.gangs[pod.gang].members)


class Extender:
    """Answers `filter` and `prioritize`, and takes snapshots."""

    def __init__(self, decisions: GangDecisions) -> None:
        self._decisions, self._reader = decisions, ArgumentReader()
        self._nodes: dict[str, KnownNode] = {}
        self._pods = KnownPods({})
        self._seen = deque[tuple[float, str]]()  # when which pods were asked about
        self._finished: list[Document] = []
        self.routes: dict[str, Callable[[bytes], Any]] = {
            "/kubernetes/filter": self.filter,
            "/kubernetes/prioritize": self.prioritize,
            "/kubernetes/snapshot": self.snapshot,
        }

    def filter(self, body: bytes) -> Document:
        """An `ExtenderFilterResult`: the node of the pod, none while its gang waits, or all."""
        args, texts = self._reader.read(body)
        names, node, why = self._asked(args, filters=True)
        passes = dict.fromkeys(names if node is None else [node] if node else [])
        result: Document = {"Nodes": None, "NodeNames": [*passes]}
        if args.nodes is not None:
            whole: Sequence[Any] = texts
            if passes and not texts:
                whole = read(WholeArgs, body).nodes.items
            shown = [
                from_json(one) if texts else one
                for name, one in zip(names, whole, strict=False)
                if name in passes
            ]
            result = {"Nodes": {"metadata": {}, "items": shown}, "NodeNames": None}
        # Nothing is gained where pods on the others are preempted.
        failed = {name: why for name in names if name not in passes}
        return {**result, "FailedNodes": {}, "FailedAndUnresolvableNodes": failed, "Error": ""}

    def prioritize(self, body: bytes) -> list[Document]:
        """A `HostPriorityList`: the node of the pod before all others."""
        names, node, _ = self._asked(self._reader.read(body)[0], filters=False)
        return [{"Host": name, "Score": SCORE * (name == node)} for name in names]

    def snapshot(self, body: bytes) -> Document:
        """Forget what is not there, unless it was asked about a moment ago.

        A pod that waits there and was not asked about is left to other schedulers.
        """
        shown, now = read(Snapshot, body), time.time()
        names, ids = _single(node.metadata.name for node in shown.nodes.items or ()), set[str]()
        before, pods = self._pods.by_id, dict[str, KnownPod]()
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
        self._pods, self._nodes = KnownPods(pods), {}
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
        old = self._pods.pop(name)
        if old is not None:
            known.node, known.passed = old.node, old.passed and not filters
            known.submit_s = min(known.submit_s, old.submit_s)
        self._forget(now)
        self._pods.add(name, known)
        self._seen.append((now, name))
        if not known.gpus:
            return names, None, ""
        why = ""
        if known.node not in names:
            known.passed = False
            for other in self._pods.gangs[known.gang].members.values():
                if not other.passed:
                    self._pods.give(other, "")
            why = self._place(known, {*names})
        known.passed |= filters and known.node != ""
        return names, known.node, why or f"its node is {known.node}"

    def _forget(self, now: float) -> None:
        """Who has not been asked about for long: a pod that was deleted, a node that left."""
        oldest, pods = now - FORGET_S, self._pods
        self._nodes = {name: one for name, one in self._nodes.items() if one.seen_s >= oldest}
        while self._seen and self._seen[0][0] < oldest:
            name = self._seen.popleft()[1]
            pod = pods.by_id.get(name)
            if pod is not None and not pod.passed and pod.seen_s < oldest:
                pods.pop(name)

    def _place(self, asked: KnownPod, names: set[str]) -> str:
        """Give the waiting members of a pod's gang their nodes, or say why they have none."""
        gang, nodes = self._pods.gangs[asked.gang], self._free(asked, names)
        if gang.job is None:
            return gang.lacks
        if not nodes:
            return "no node with GPUs is known, of nodes or from a snapshot"
        found: dict[str, str] | str | None = self._decisions.beyond_free(nodes, gang.job)
        if found is None:
            waiting = {key: one.job for key, one in sorted(self._pods.gangs.items()) if one.job}
            jobs = [*self._finished, *waiting.values()]
            place = len(self._finished) + [*waiting].index(asked.gang)
            gpus = {name: pod.gpus for name, pod in gang.waiting.items()}
            found = self._decisions.place(nodes, jobs, place, gpus)
        if isinstance(found, str):
            return found
        for name, node in found.items():
            self._pods.give(gang.members[name], node)
        return ""

    def _free(self, asked: KnownPod, names: set[str]) -> list[Document]:
        """The nodes as a state has them: of those not in `names`, what is too little for a pod."""
        held = self._pods.held
        return [
            {"id": name, "gpu_type": node.gpu_type, "num_gpus": node.gpus,
             "free_gpus": min(max(node.gpus - held[name], 0) if node.up else 0,
                              node.gpus if name in names else asked.gpus - 1)}
            for name, node in sorted(self._nodes.items())
            if node.gpus
        ]  # fmt: skip


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
