"""An exported scheduler decides on the state of a live cluster, given as plain data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.cluster.checkpoint import CheckpointScheduler
from agents.cluster.hidden_durations import simulator_for
from agents.cluster.live_state import (
    LIMITS,
    Gpus,
    LiveCluster,
    LiveClusterWithDurations,
    StateArrays,
)
from agents.cluster.migrating.expert import MigrationActions
from agents.cluster.migrating.learned_priority import LearnedPriority
from agents.cluster.migrating.policy import STOP, Migrating
from agents.cluster.migrating.priorities import Priority
from agents.cluster.policy import Scheduler
from agents.decision import Decider, Decision, Name, StateError, form
from agents.solver import Knowledge
from envs.arrays import IntArray
from envs.bounds import Count, bounded
from envs.cluster.environment.actions import Bookkeeping
from envs.cluster.environment.episode import remember
from envs.cluster.environment.routing import ConsecutiveRacks, OneQueue
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, NONE, RUNNING, Overheads
from envs.cluster.simulation.resumed import resume
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled_beforehand
from envs.errors import InputError
from models.export.checkpoint import CLUSTER

Held = Annotated[dict[Name, Gpus], Field(description="GPUs by node")]
Probability = Annotated[float, Field(ge=0, le=1)]
UNKNOWN = dict.fromkeys(("rank", "priority", "remaining_s", "remaining_factor"))


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
class JobOutcome(TypedDict):
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
    jobs: list[JobOutcome]
    warnings: list[JobWarning | TypeWarning]
    """jobs that no part of this cluster can run: the others are decided on; and GPU types that
    are taken to be as fast as the others"""


class StateDecider(Decider):
    """Takes the states of clusters apart into the arrays of the simulator."""

    kind = CLUSTER

    def __init__(self, knows: Knowledge, most_nodes: int, most_jobs: int) -> None:
        self.most = {"nodes": most_nodes, "jobs": most_jobs}
        self.knows_durations = knows == "durations"
        state: Any = LiveClusterWithDurations if self.knows_durations else LiveCluster
        super().__init__(
            (state, "The state of a cluster"), (ClusterAnswer, "What the scheduler decides")
        )
        for field, most in self.most.items():
            self.schema["properties"][field]["maxItems"] = most

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

    def _decide(self, state: LiveClusterWithDurations) -> Decision:
        listed: Any = state
        for field, most in self.most.items():
            if len(listed[field]) > most:
                message = f"{len(listed[field])} of them, this decider takes {most}"
                raise StateError(((field,), message))
        arrays = StateArrays(state, self.knows_durations)
        with self._lock:
            return self._decide_on(arrays)

    def warm(self) -> None:
        with compiled_beforehand():
            super().warm()

    @abstractmethod
    def _decide_on(self, arrays: StateArrays) -> Decision:
        """What to do in a state of the form."""


@bounded
class ClusterDecider(StateDecider):
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
            checkpoint, window or most_jobs, partition=ConsecutiveRacks(), routing=OneQueue(),
            forwards=0,
        )  # fmt: skip
        self.most_actions = most_actions
        super().__init__(self.scheduler.knows, most_nodes, most_jobs)

    def _decide_on(self, arrays: StateArrays) -> Decision:
        trained = self.scheduler.trained
        longest = trained.actions.longest_wait_s
        instant = _Instant(arrays, trained.restart_s)
        simulator, chance, complete = None, 1.0, True
        if len(instant.jobs):
            plan = self.scheduler.mover
            if plan is None:
                simulator, chance, complete = instant.play(self.scheduler, self.most_actions)
            else:
                simulator, complete = instant.follow(plan, self.most_actions)
        ask_again_s = None if longest is None else arrays.snapshot.now + longest
        return instant.decision(simulator, chance if complete else 0.0, complete, ask_again_s)


@bounded
class PolicyDecider(StateDecider):
    """Decides on states as any policy of clusters does; every state stands for itself.

    Only queues by attained service stay as the last state left them, which no state says.

    Args:
        policy: what decides; of a state it sees what it says that it knows.
        most_nodes: of a state.
        most_jobs: of a state.

    Raises:
        InputError: the policy remembers what it has decided before.
    """

    def __init__(
        self, policy: Scheduler, *, most_nodes: Count = 4096, most_jobs: Count = 100_000
    ) -> None:
        if not policy.memoryless:
            reason = "goes by what it decided before, as rounds, Gandiva, Themis and rollouts do"
            raise InputError(f"{policy.name!r} {reason}: no state says that")
        self.policy = policy
        super().__init__(policy.knows, most_nodes, most_jobs)

    def _decide_on(self, arrays: StateArrays) -> Decision:
        instant = _Instant(arrays, 0.0)
        if not len(instant.jobs):
            return instant.decision(None, 1.0, True, None)
        simulator, wake = instant.ask(self.policy)
        return instant.decision(simulator, 1.0, True, wake if np.isfinite(wake) else None)


class _Instant:
    """A state that a scheduler takes to its next wait."""

    def __init__(self, arrays: StateArrays, restart_s: float) -> None:
        self.arrays = arrays
        state, snapshot = arrays.state, arrays.snapshot
        self.setting: dict[str, Any] = {
            "rates": arrays,
            "overheads": Overheads(state.get("restart_s", restart_s), 0.0),
            "incidents": np.array([] if state.get("closed") else [(np.inf, 0, 1)], INCIDENT),
        }
        self.jobs = np.concatenate([snapshot.waiting, snapshot.running])
        self.actions: list[dict[str, Any]] = []
        self.estimates: dict[int, dict[str, Any]] = {}

    def decision(
        self,
        simulator: ClusterSimulator | None,
        wait_probability: float,
        complete: bool,
        ask_again_s: float | None,
    ) -> Decision:
        """The answer, once a scheduler has acted; without a simulator there were no jobs."""
        arrays = self.arrays
        waits = {"decision": "wait", "on": None, **UNKNOWN}
        outcomes = [] if simulator is None else list(self._outcomes(simulator))
        content = {
            "kind": "meshwright.cluster_decision",
            "schema_version": 1,
            "now_s": arrays.snapshot.now,
            "actions": self.actions,
            "complete": complete,
            "wait_probability": wait_probability,
            "ask_again_s": ask_again_s,
            "jobs": [*outcomes, *({"job": name, **waits} for name in arrays.left_out)],
            "warnings": arrays.warnings,
        }
        return Decision(self.actions, content, arrays.warnings)

    def ask(self, policy: Scheduler) -> tuple[ClusterSimulator, float]:
        """Do what one pass of a policy does; when it wants to be asked again at the latest."""
        simulator = ClusterSimulator(self.arrays.cluster, self.arrays.trace, **self.setting)
        seen = simulator_for(policy, simulator)
        policy.reset(seen)
        self._resume(simulator)
        simulator.settle()
        before = {job: simulator.shares(job) for job in self.arrays.snapshot.running.tolist()}
        policy.decide(seen)
        after = {job: simulator.shares(job) for job in simulator.running().tolist()}
        for acts, ones, others in (False, before, after), (True, after, before):
            for job, held in ones.items():
                if others.get(job) != held:
                    on = self._on(held) if acts else self.arrays.jobs[job]["holds"]
                    self._act(acts, job, on, 1.0)
        return simulator, policy.wake(seen)

    def _resume(self, simulator: ClusterSimulator, book: Bookkeeping | None = None) -> None:
        resume(simulator, self.arrays.snapshot)
        for field, kind in zip(("cpu", "memory"), LIMITS, strict=True):
            over = np.flatnonzero(simulator.state.nodes[field] < 0).tolist()
            if over:
                raise StateError((("nodes", over[0], kind), "the running jobs hold more than that"))
        if book is not None and len(book.gang):
            for job in self.arrays.snapshot.finished:
                remember(simulator.state, book, job)

    def follow(self, plan: Migrating, most_actions: int | None) -> tuple[ClusterSimulator, bool]:
        """Do what a plan says; whether that came to less than the limit."""
        simulator = ClusterSimulator(self.arrays.cluster, self.arrays.trace, **self.setting)
        plan.reset(simulator)
        self._resume(simulator)
        simulator.settle()
        self._note_order(plan.priority, simulator, self.jobs)
        for move, job in islice(plan.moves(simulator), most_actions):
            stops = move == STOP
            on = self.arrays.jobs[job]["holds"] if stops else self._on(simulator.shares(job))
            self._act(not stops, job, on, 1.0)
        return simulator, len(self.actions) != most_actions

    def play(
        self, scheduler: CheckpointScheduler, most_actions: int | None
    ) -> tuple[ClusterSimulator, float, bool]:
        """Act by a network; how probable a wait was (0: it did not come to one), and if it did."""
        arrays = self.arrays
        episode = scheduler.episode(
            arrays.cluster, arrays.trace, **self.setting, begin=self._resume
        )
        table, simulator, book = episode.action_table, episode.simulator, episode.book
        view, speed = episode.views[0], np.array([*arrays.types.values()])
        view.capacity[:, 2] = (speed / speed.max())[arrays.cluster.gpu_type[view.node]]

        def gpu(job: int) -> int:
            """Number of the GPU that a running job shares, or NONE."""
            state = simulator.state
            return int(state.shares[state.jobs[job]["share"]]["partial"])

        labels = {  # of the GPUs that fractional jobs share, by their number
            gpu(job): arrays.jobs[job]["shared_gpu"]
            for job in arrays.snapshot.running
            if "shared_gpu" in arrays.jobs[job]
        }
        while True:
            graph, mask = episode.observe(0)
            if not self.actions and isinstance(episode.expert, MigrationActions):
                shown = np.concatenate([book.window[0], book.shown[0]])
                jobs = shown[shown != NONE].astype(np.int64)
                self._note_order(episode.expert.order, simulator, jobs)
            action, probability = scheduler.choose(graph, mask, episode)
            if action == table.size - 1:
                return simulator, probability, True
            if len(self.actions) == most_actions:
                return simulator, 0.0, False
            stop = action - table.window * table.groups
            starts = stop < 0
            job = int(book.window[0, action // table.groups] if starts else book.shown[0, stop])
            held = simulator.shares(job)
            episode.act(0, action)
            on = self._on(held or simulator.shares(job))
            done = self._act(starts, job, on, probability)
            if arrays.trace.gpu_milli[job] < WHOLE_GPU:
                if starts:
                    done["shared_gpu"] = labels.get(gpu(job))
                    labels.setdefault(gpu(job), f"new {done['job']}")
                else:
                    in_use = {gpu(other) for other in simulator.running().tolist()}
                    labels = {k: v for k, v in labels.items() if k in in_use}

    def _act(self, starts: bool, job: int, on: dict[str, int], chance: float) -> dict[str, Any]:
        """Note down what is done; the note."""
        done = {
            "action": "start" if starts else "stop",
            "job": self.arrays.job_ids[job],
            "on": on,
            "probability": chance,
        }
        self.actions.append(done)
        return done

    def _on(self, held: Sequence[tuple[int, int]]) -> dict[str, int]:
        return {self.arrays.node_ids[node]: gpus for node, gpus in held}

    def _note_order(self, order: Priority, simulator: ClusterSimulator, jobs: IntArray) -> None:
        """Note what the plan that is followed thinks of jobs, before anything is done."""
        keys = order(simulator.state, jobs)
        place = np.lexsort((jobs, keys))
        jobs = jobs[place]
        columns = {"priority": 0.0 - keys[place]}
        if isinstance(order, LearnedPriority):
            remaining_s, factor = np.exp(order.believed[jobs]).T
            columns |= {"remaining_s": remaining_s, "remaining_factor": np.maximum(factor, 1.0)}
        for rank, job in enumerate(jobs.tolist()):
            estimates = {name: float(column[rank]) for name, column in columns.items()}
            self.estimates[job] = {"rank": rank + 1, **estimates}

    def _outcomes(self, simulator: ClusterSimulator) -> Iterator[dict[str, Any]]:
        arrays = self.arrays
        stopped = {action["job"] for action in self.actions if action["action"] == "stop"}
        for job in np.sort(self.jobs).tolist():
            runs = bool(simulator.state.jobs[job]["status"] == RUNNING)
            name, left = arrays.job_ids[job], float(arrays.snapshot.remaining[job])
            if "holds" in arrays.jobs[job]:
                decision = "stop" if not runs else "move" if name in stopped else "keep"
            else:
                decision = "start" if runs else "wait"
            known = {"remaining_s": left, "remaining_factor": 1.0} if np.isfinite(left) else {}
            yield {
                "job": name,
                "decision": decision,
                "on": self._on(simulator.shares(job)) if runs else None,
                **UNKNOWN,
                **self.estimates.get(job, {}),
                **known,
            }
