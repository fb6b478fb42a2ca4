"""Decisions on gangs of pods: each starts as a whole, on nodes that hold its members, or waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from math import gcd, inf
from typing import Any

from pydantic_core import to_json

from agents.cluster.live import ClusterDecider

FRESH_S = 10.0  # for which a decision holds where nothing changes
MOST_KEPT = 64  # decisions
WAITS = "others go first, or too few GPUs are free"
SPLIT = "its GPUs would be free, but not for whole pods"
Document = dict[str, Any]


class GangDecisions:
    """What a cluster's scheduler decides on nodes and jobs, decided once for the same ones.

    Args:
        decider: whatever its limit of actions, all of an instant are decided here, since anyone may
            ask about any of them.
    """

    def __init__(self, decider: ClusterDecider) -> None:
        self._decider = copy(decider)
        self._decider.most_actions = None
        self._made: dict[bytes, tuple[float, Document]] = {}  # until when it holds

    def decide(self, nodes: Sequence[Document], jobs: Sequence[Document]) -> Document:
        """The answer to a state; its jobs bear their places in `jobs` as ids.

        Args:
            nodes: as in a state.
            jobs: as in a state, less `id` and `held_s` of those that run.
        """
        key, now = to_json([nodes, jobs]), time.time()
        until, answer = self._made.get(key, (0.0, {}))
        if now >= until:
            listed = [{"id": str(place), **job} for place, job in enumerate(jobs)]
            for job in listed:
                if "holds" in job:
                    job["held_s"] = max(now - job["since_s"], 0.0)
            state = {"now_s": now, "nodes": nodes, "jobs": listed}
            answer = self._decider.decide(state).content
            again = answer["ask_again_s"]
            self._made.pop(key, None)
            self._made[key] = min(now + FRESH_S, inf if again is None else again), answer
            if len(self._made) > MOST_KEPT:
                del self._made[next(iter(self._made))]
        return answer

    def place(
        self, nodes: Sequence[Document], jobs: Sequence[Document], job: int, gpus: Mapping[str, int]
    ) -> dict[str, str] | str:
        """The node of every pod of `jobs[job]`, or why it waits.

        Where the decision cuts through pods, the gang is decided once more, on what the others
        leave of nodes in multiples of its pods.

        Args:
            nodes: with `free_gpus`.
            jobs: as `decide` takes them.
            job: a place there.
            gpus: of every pod of it.
        """
        answer = self.decide(nodes, jobs)
        shares = _started(answer, job)
        if shares is None:
            return _why(answer, job)
        found = fitted(gpus, shares)
        if found is None:
            left, unit = Counter[str](), gcd(*gpus.values())
            for node in nodes:
                left[node["id"]] = node["free_gpus"]
            for action in answer["actions"]:
                if action["action"] == "stop":
                    left.update(action["on"])
                elif action["job"] != str(job):
                    left.subtract(action["on"])
            whole = [{**node, "free_gpus": left[node["id"]] // unit * unit} for node in nodes]
            shares = _started(self.decide(whole, [jobs[job]]), 0)
            found = None if shares is None else fitted(gpus, shares)
        return SPLIT if found is None else found

    def beyond_free(self, nodes: Sequence[Document], job: Document) -> str | None:
        """Why a job waits that asks for more than is free, where no other can be stopped for it.

        Nothing has to be decided on the others then; None: it asks for no more.
        """
        if job["num_gpus"] <= sum(node["free_gpus"] for node in nodes):
            return None
        alone = {key: job[key] for key in job if key in ("num_gpus", "gpu_types")}
        alone["submit_s"] = 0.0
        full = [{**node, "free_gpus": 0} for node in nodes]
        return _why(self.decide(full, [alone]), 0)


def fitted(gpus: Mapping[str, int], shares: Mapping[str, int]) -> dict[str, str] | None:
    """A node for every pod within the shares, the largest pod first, each where least is left.

    Returns:
        None: they hold no such pods.
    """
    left, found = dict(shares), dict[str, str]()
    for pod, asked in sorted(gpus.items(), key=lambda one: -one[1]):
        holding = (node for node in left if left[node] >= asked)
        node = min(holding, key=left.__getitem__, default=None)
        if node is None:
            return None
        left[node] -= asked
        found[pod] = node
    return found


def _why(answer: Document, job: int) -> str:
    """That a job waits for."""
    said = {one.get("job"): one["message"] for one in answer["warnings"]}
    return str(said.get(str(job), WAITS))


def _started(answer: Document, job: int) -> dict[str, int] | None:
    """GPUs by node with which a waiting job starts."""
    starts = (a for a in answer["actions"] if a["action"] == "start" and a["job"] == str(job))
    return next((start["on"] for start in starts), None)
