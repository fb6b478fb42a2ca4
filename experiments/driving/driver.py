"""`Driver`: looks at a Slurm, lets a policy decide at every change, and acts on its own jobs alone.

All that it goes by is Slurm's own: a job that is held waits, one that is released with the nodes
that it must have is on its way, one that runs runs. So a driver that was killed goes on where it
was, and a decision that is made again changes nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from agents.cluster.live import StateDecider
from agents.cluster.live_state import LARGEST_GANG
from agents.decision import StateError
from envs.bounds import Count, Positive
from envs.cluster.slurm.commands import KEPT, Job, Run, Slurm, SlurmError
from envs.cluster.slurm.state import Known, cluster_state, duration_s
from envs.errors import InputError


class AuditLog:
    """A file of JSON lines: what was decided and done, each line before it is done.

    Args:
        path: lines are added to what is there.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.counts, self._lock = path, Counter[str](), Lock()
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", file=path) from error

    def write(self, event: str, **fields: Any) -> None:
        """Add a line.

        Raises:
            InputError: the disk is full.
        """
        row = {"time": round(time.time(), 3), "event": event, **fields}
        try:
            with self._lock:
                self.counts[event] += 1
                self._file.write(json.dumps(row) + "\n")
        except OSError as error:
            reason = f"cannot be written ({error.strerror}): nothing more is done"
            raise InputError(reason, file=self.path) from error


@dataclass
class Limits:
    """How often a driver looks, decides and acts."""

    poll_s: Positive = 0.1  # seconds between two looks at whether anything has changed
    look_s: Positive = 1.0  # seconds after which all is looked at even if nothing seems to have
    every_s: Positive = 30.0  # seconds after which it decides even if nothing has changed
    # seconds after which a job that was sent to nodes and does not run is held again
    stuck_s: Positive = 60.0
    actions_per_s: Count = 50  # changes of jobs in a second at most


@dataclass
class Driver:
    """One scheduler over the jobs of a partition whose names begin with a prefix.

    Args:
        slurm: of the partition.
        decider: on states of clusters.
        audit: what was done.
        acts: False: it only watches (shadow).
        prefix: of the names of its jobs.
        limits: of its pace.
        durations: where it is written how long jobs take.
        scale: seconds of the policy's in one second of Slurm's.
        restart_s: seconds of the policy's before a stopped job progresses again.
        say: is given a line where somebody must know.
        clock: seconds since 1970.
    """

    slurm: Slurm
    decider: StateDecider
    audit: AuditLog
    acts: bool = True
    prefix: str = ""
    limits: Limits = field(default_factory=Limits)
    durations: Known = "nothing"
    scale: float = 1.0
    restart_s: float = 0.0
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.time  # seconds since 1970, as Slurm has them
    gpus: dict[str, int] = field(default_factory=dict)  # of all jobs ever seen
    actions: Sequence[Mapping[str, Any]] = ()  # of the last decision
    _sent: dict[str, float] = field(default_factory=dict)  # since when jobs are on their way
    _seen: object = None  # what the last decision was made on
    _look_at: float = 0.0  # when all is looked at, whatever has changed
    _ask_at: float = 0.0
    _spent: tuple[int, int] = (0, 0)  # the second, and the changes made in it
    _lock: Lock = field(default_factory=Lock)  # of what is spent
    _limited: bool = False  # whether more was to be done in a second than may be
    _first: bool = True  # whether nothing has been looked at yet
    _down: bool = False  # whether Slurm does not answer
    # jobs that could not start: until when they are left out, and how often
    _rests: dict[str, tuple[float, int]] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def run(self, ends: Callable[[], bool]) -> None:
        """Go on until `ends`; while Slurm does not answer, it waits.

        Raises:
            InputError: the log cannot be written, or what Slurm prints cannot be read.
        """
        known = b""
        while not ends():
            begun = time.monotonic()
            try:
                glance = self.slurm.glance()
                if glance != known or self.clock() >= min(self._look_at, self._ask_at):
                    self.step()
                    known = glance
                self._down = False
            except SlurmError as error:
                if not self._down:
                    self.audit.write("unreachable", message=str(error))
                    self.say(str(error))
                self._down = True
            time.sleep(max(self.limits.poll_s - (time.monotonic() - begun), 0.0))

    def step(self, always: bool = False) -> bool:
        """Look, and where something has changed (or `always`) decide and act; whether it decided.

        Raises:
            SlurmError: Slurm did not answer in between.
            InputError: as `run`.
        """
        now, past = self.clock(), {run.job: run for run in self.slurm.runs()}  # the last of each
        listed = self.slurm.jobs()
        own = [job for job in listed if job.label.startswith(self.prefix)]
        jobs = [job for job in own if 0 < job.gpus <= LARGEST_GANG]
        self._remember(jobs)
        back = (job.submit_s + RETURN_S for job in jobs if job.restarts)
        self._look_at = min([now + self.limits.look_s, *(at for at in back if at > now)])
        if self.acts and self._tidy(jobs, own, past, now):
            self._look_at = now
            return False  # Slurm is asked again how things are
        nodes = self.slurm.nodes()
        done = self._forgotten(jobs, past)
        jobs = [
            self._as_it_is(job)
            for job in jobs
            if job.name not in done and not self._is_left_out(job, now)
        ]
        seen = ([(job.name, job.state, job.held, *job.holds, *job.wants) for job in jobs], nodes)
        if seen == self._seen and now < self._ask_at and not always:
            return False
        for job in jobs if self.durations != "nothing" else ():
            if job.state != "OVER" and duration_s(job, self.durations) is None:
                self._tell(f"job {job.name} has no {self.durations}: it is taken to be endless")
        state = cluster_state(
            jobs, nodes, self.slurm.runs(), now, gpus=self.gpus, scale=self.scale,
            durations=self.durations if self.decider.knows_durations else "nothing",
            restart_s=self.restart_s,
        )  # fmt: skip
        begun, self._seen, self._ask_at = time.monotonic(), seen, now + self.limits.every_s
        try:
            decision = self.decider.decide(state)
        except StateError as error:  # nothing is done on what nobody can decide on
            self.audit.write("undecided", message=str(error))
            self._tell(str(error))
            return False
        seconds = time.monotonic() - begun
        for warning in decision.warnings:
            self._tell(f"{warning.get('job') or warning.get('gpu_type')}: {warning['message']}")
        counts = Counter(job.state for job in jobs)
        about = {"waiting": counts["PENDING"], "running": counts["RUNNING"]}
        self._note_own_starts(jobs)
        self.audit.write("decided", seconds=round(seconds, 4), **about, actions=decision.actions)
        self._limited, self.actions = False, decision.actions
        if self.acts:
            self._act(decision.actions, jobs, state)
        again = decision.content.get("ask_again_s")
        wanted = now + (again - state["now_s"]) / self.scale if again is not None else now + 1e9
        if self._limited:
            self._seen = None
        self._ask_at = min(self._ask_at, max(wanted, now + self.limits.poll_s))
        return True

    def release_all(self) -> int:
        """Leave all waiting jobs to Slurm, on whatever nodes; how many."""
        released = 0
        for job in self.slurm.jobs():
            if job.held and job.state == "PENDING" and job.label.startswith(self.prefix):
                self._limited = True
                while self._limited:
                    self._limited = False
                    released += self._do("leave", job)
                    time.sleep(self.limits.poll_s if self._limited else 0.0)
        return released

    def _as_it_is(self, job: Job) -> Job:
        """A job that Slurm may start by itself waits, unless it was sent to its nodes from here."""
        return job if job.name in self._sent else replace(job, held=True)

    def _forgotten(self, jobs: Sequence[Job], past: Mapping[str, Run]) -> set[str]:
        """Jobs that wait for a controller that was killed, and have ended by its own record."""
        found = {
            job.name
            for job in jobs
            if job.state == "PENDING"
            and (run := past.get(job.name)) is not None
            and run.state == "COMPLETED"
            and run.end_s >= job.submit_s
        }
        for name in found:
            self._tell(f"job {name} has ended and Slurm has forgotten it: it does not run again")
        return found

    def _is_left_out(self, job: Job, now: float) -> bool:
        """Whether nothing is decided on a job: it cannot be stopped, or Slurm will not start it."""
        rests = self._rests.get(job.name, (0.0, 0))[0] > now
        fixed = job.state == "RUNNING" and not job.movable  # its GPUs are in use, as others' are
        return fixed or (job.state == "PENDING" and (rests or _waits_for_more(job, now)))

    def _remember(self, jobs: Sequence[Job]) -> None:
        """Note how many GPUs jobs have, and forget what nobody will ask for."""
        self.gpus |= {job.name: job.gpus for job in jobs}
        listed = {job.name for job in jobs}
        if len(self.gpus) > 2 * KEPT + len(jobs):
            ended = {run.job for run in self.slurm.runs()}
            self.gpus = {name: n for name, n in self.gpus.items() if name in listed | ended}
        self._rests = {name: rest for name, rest in self._rests.items() if name in listed}

    def _tidy(
        self, jobs: Sequence[Job], own: Sequence[Job], past: Mapping[str, Run], now: float
    ) -> bool:
        """Hold what Slurm would start by itself, and what is stuck; whether anything was done.

        What a killed controller takes to be running, and has ended by its own record, ends again.
        """
        waiting = {job.name: job for job in jobs if job.state == "PENDING"}
        self._sent = {name: since for name, since in self._sent.items() if name in waiting}
        if self._first:  # another driver may have sent them; those that came back wait two minutes
            later = [job for job in waiting.values() if job.eligible_s > now + 1]
            sent = [x for x in waiting.values() if not x.held and x.wants and x not in later]
            again = [x for x in later if not x.held and x.wants and x.restarts]
            self._sent = dict.fromkeys([job.name for job in [*sent, *again]], now)
            self._first = False
            for job in again:
                self._do("start", job, list(job.wants), True)
        done = False
        for job in waiting.values():
            since = self._sent.get(job.name)
            if job.held or (since is None and _waits_for_more(job, now)):
                self._sent.pop(job.name, None)
            elif since is None or now - since >= self.limits.stuck_s:
                if self._sent.pop(job.name, None) is not None:
                    self._rest(job)
                done |= self._do("hold", job)
        for job in own:
            run = past.get(job.name)
            if job.state == "PENDING" and job.held and not job.gpus and not job.depends:
                done |= self._do("release", job)  # of those without a GPU nothing is to be decided
            if job.state != "RUNNING" or run is None or run.end_s < (job.start_s or 0.0):
                continue
            if run.state in CODES and self._rests.get(job.name, (0.0, 0))[0] <= now:
                if not self._do("complete", job, CODES[run.state], run.end_s):
                    self._rest(job)
                done = True
        return done

    def _rest(self, job: Job) -> None:
        """Leave a job out that could not be started: twice as long each time, at most an hour."""
        times = self._rests.get(job.name, (0.0, 0))[1]
        seconds = min(self.limits.stuck_s * 2**times, 3600.0)
        self._rests[job.name] = (self.clock() + seconds, times + 1)

    def _act(
        self, actions: Sequence[Mapping[str, Any]], jobs: Sequence[Job], state: Mapping[str, Any]
    ) -> None:
        """Do what was decided, as far as Slurm can."""
        named = {job.name: job for job in jobs}
        free = {node["id"]: node["free_gpus"] for node in state["nodes"] if node["up"]}
        kind = {node["id"]: node["gpu_type"] for node in state["nodes"]}
        listed = [(action["action"] == "stop", named[action["job"]]) for action in actions]
        stops = {job.name: job for is_stop, job in listed if is_stop and job.state == "RUNNING"}
        for name in self._at_once({name: partial(self._do, "stop", stops[name]) for name in stops}):
            for node, number in stops[name].holds.items():
                free[node] = free.get(node, 0) + number
        starts = dict[str, Callable[[], bool]]()
        for (is_stop, job), action in zip(listed, actions, strict=True):
            if is_stop or job.state != "PENDING" or job.name in {*self._sent, *starts}:
                continue
            room = {x: n for x, n in free.items() if job.gpu_type in (None, kind[x])}
            nodes = _places(job, action["on"], room)
            if nodes is not None:
                change = "start", job, nodes, job.restarts > 0
                starts[job.name] = partial(self._do, *change, decided=action["on"])
                for node in nodes:
                    free[node] -= job.per_node or action["on"].get(node, 0)
        done = self._at_once(starts)
        self._sent |= dict.fromkeys(done, self.clock())
        for name in starts.keys() - done if not self._limited else ():
            self._rest(named[name])

    def _at_once(self, changes: Mapping[str, Callable[[], bool]]) -> set[str]:
        """Change jobs side by side, for calls of Slurm hardly compute; those that were changed."""
        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            made = pool.map(lambda change: change(), changes.values())
            return {name for name, done in zip(changes, made, strict=True) if done}

    def _do(self, what: str, job: Job, *arguments: Any, **about: Any) -> bool:
        """Write down a change of a job and make it; False: there were too many in this second.

        Slurm's refusal, as of a job that was cancelled meanwhile, is written down too.
        """
        with self._lock:
            second, spent = self._spent
            now = int(self.clock())
            if now == second and spent >= self.limits.actions_per_s:
                self._limited = True
                return False
            self._spent = (now, spent + 1 if now == second else 1)
        nodes = [*arguments[0]] if what == "start" else []
        self.audit.write(what, job=job.name, name=job.label, nodes=nodes, **about)
        try:
            getattr(self.slurm, what)(job.name, *arguments)
        except SlurmError as error:
            self.audit.write("refused", job=job.name, message=str(error))
            return False
        self.audit.write("done", job=job.name, change=what)
        return True

    def _note_own_starts(self, jobs: Sequence[Job]) -> None:
        """In a shadow: what Slurm itself has started since the last decision."""
        running = {job.name: dict(job.holds) for job in jobs if job.state == "RUNNING"}
        if not self.acts:
            for name in running.keys() - self._sent.keys():
                self.audit.write("slurm_started", job=name, on=running[name])
            self._sent = dict.fromkeys(running, 0.0)

    def _tell(self, line: str) -> None:
        """Say a line once."""
        if line not in self._said:
            self._said = {line, *(self._said if len(self._said) < MOST_SAID else ())}
            self.say(line)


CODES = {"COMPLETED": 0, "FAILED": 1 << 8, "CANCELLED": 0xFFFFFFFE}  # with which a job ends so
CALLS_AT_ONCE = 8
MOST_SAID = 1000  # lines that are not said twice
RETURN_S = 2.0  # after a return to the queue, in whose second nodes still refuse the job


def _waits_for_more(job: Job, now: float) -> bool:
    """Whether it waits for a time or for other jobs, left to Slurm, or has only just come back."""
    returns = job.restarts > 0 and now < job.submit_s + RETURN_S
    later = job.eligible_s > now + 1 and not (job.held and job.restarts)
    return job.state == "PENDING" and (job.depends or returns or later)


def _places(job: Job, on: Mapping[str, int], free: Mapping[str, int]) -> list[str] | None:
    """Nodes for a job in the shape that it was submitted in, those decided first; None: no room.

    A policy may divide a gang over nodes in another way than the job asks Slurm for: then it has
    as many nodes as it asks for, of the others the fullest.
    """
    if job.per_node is None:
        if 0 < job.most_nodes < len(on):
            on = dict.fromkeys(sorted(free, key=free.__getitem__)[-1:], job.gpus)
        return list(on) if all(free.get(node, 0) >= number for node, number in on.items()) else None
    room = [node for node, number in free.items() if number >= job.per_node]
    room.sort(key=lambda node: (node not in on, free[node], node))
    return room[: job.nodes] if len(room) >= job.nodes else None
