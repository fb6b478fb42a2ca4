"""`meshwright/SlurmCluster-v0`: the decisions of `Cluster-v0` on a real Slurm, in real time."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NoReturn

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.environment.actions import PREEMPTED, STARTED, ClusterActions
from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import ClusterGenerator, RandomJobs
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance, ClusterReward
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import HORIZON
from envs.cluster.nodes import Cluster
from envs.cluster.slurm.commands import SlurmError
from envs.cluster.slurm.machine import LocalSlurm
from envs.cluster.workload.trace import WHOLE_GPU, refuse_rows
from envs.errors import InputError

POLL_S = 0.05
ON_SERVERS = ClusterActions(racks=False, all_servers=False)


class SlurmEpisode(SchedulingEpisode):
    """The simulator's arrays follow what a Slurm does: it decides when a job ends.

    Args:
        machine: on which nothing runs, with as many nodes as the instance.
        scale: seconds of the trace in one second of Slurm's.
        instance: of whole GPUs; Slurm has no word for parts.
        arguments: as of `SchedulingEpisode`.
        named: likewise.

    Raises:
        SlurmError: Slurm does not answer, or a job failed.
    """

    def __init__(
        self,
        machine: LocalSlurm,
        scale: float,
        instance: ClusterInstance,
        *arguments: Any,
        **named: Any,
    ) -> None:
        self.machine, self.scale = machine, scale
        self._jobs: list[tuple[str, str]] = []  # number at Slurm and name of what has arrived
        self._stopped: set[str] = set()  # numbers of jobs that wait to be started again
        self._zero_s: float | None = None  # the trace's second 0, in seconds since 1970
        super().__init__(instance, *arguments, **named)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an episode on a live cluster cannot be copied")

    def act(self, scheduler: int, action: int) -> int:
        """The same, in the arrays and on Slurm."""
        outcome, table, slurm = (
            super().act(scheduler, action),
            self.action_table,
            self.machine.slurm,
        )
        if outcome == STARTED:
            job = int(self.book.window[scheduler, action // table.groups])
            number, _ = self._jobs[job]
            if number in self._stopped:
                self._await_return(number)
            slurm.start(number, [f"n{node}" for node, _ in self.simulator.shares(job)])
        elif outcome == PREEMPTED:
            number, _ = self._jobs[self.book.shown[scheduler, action - table.window * table.groups]]
            self._stopped.add(number)
            try:
                slurm.stop(number)
            except SlurmError:  # it has not begun, unless it does between these two
                with suppress(SlurmError):
                    slurm.hold(number)
                with suppress(SlurmError):
                    slurm.stop(number)
        return outcome

    def _await_return(self, number: str) -> None:
        """Let a job that was stopped come back to Slurm's queue.

        Started in the second in which it was, it would fail: its credential counts as revoked.
        """
        back = {"PENDING", "OVER"}
        while any(
            job.name == number and job.state not in back for job in self.machine.slurm.jobs()
        ):
            time.sleep(POLL_S)
        time.sleep(1.0 - time.time() % 1.0)
        self._stopped.remove(number)

    def wait(self) -> bool:
        """Let real time pass until a job has ended, the next is due or the longest wait is over."""
        state, arrived = self.simulator.state, len(self._jobs)
        clock, jobs, running = state.clock[0], state.jobs, self.simulator.running()
        due = float(clock["now"]) + self.action_table.longest_wait_s
        if arrived < len(jobs):
            due = min(due, float(jobs["submit"][arrived]))
        if self._zero_s is None:
            self._zero_s = time.time() - due / self.scale
        ends = self._ends(running, self._zero_s)
        while not np.isfinite(ends).any() and (len(running) or due < np.inf):
            left_s = self._zero_s + due / self.scale - time.time()
            if left_s <= 0:
                break
            time.sleep(min(left_s, POLL_S))
            ends = self._ends(running, self._zero_s)
        predicted = jobs["end"].copy()
        self._expect(running, np.maximum(ends, clock["now"]))
        passed = super().wait()
        running = self.simulator.running()
        self._expect(running, np.maximum(predicted[running], clock["now"]))
        for job in range(arrived, int(clock["arrived"])):
            name = f"{self._zero_s:.3f}-{job}"
            seconds = float(jobs["work"][job]) / self.scale
            number = self.machine.submit(name, int(jobs["gpus"][job]), seconds)
            self._jobs.append((number, name))
        return passed

    def _ends(self, running: IntArray, zero_s: float) -> FloatArray:
        """(R,) seconds at which running jobs have ended, inf for those that go on."""
        states = {run.job: run.state for run in self.machine.slurm.runs()}
        ends = np.full(len(running), np.inf)
        for place, job in enumerate(running):
            number, name = self._jobs[job]
            state = states.get(number, "PENDING")
            if state == "COMPLETED":
                ends[place] = (self.machine.slept(name)[-1][1] - zero_s) * self.scale
            elif state != "PENDING":
                raise SlurmError(f"job {number} has ended as {state}")
        return ends

    def _expect(self, running: IntArray, ends: FloatArray) -> None:
        """Let all running jobs end at these seconds in the arrays."""
        state, order = self.simulator.state, running[np.lexsort((running, ends))]
        state.jobs["end"][running] = ends
        state.heap[: len(order)] = order
        state.jobs["place"][order] = np.arange(len(order))


@bounded
class SlurmClusterEnv(ClusterEnv):
    """`meshwright/Cluster-v0` over a real Slurm on this machine, whose jobs are sleeps.

    ## Description
    Observations, masks, actions and rewards are those of `ClusterEnv`, in seconds of the trace.
    Jobs arrive at Slurm, held, at their time; to start one releases it on its server, to preempt
    one sends it back to the queue, held, and later it sleeps on for what was left. What ends when
    is seen, not predicted: a wait lasts, in real time, until a job has ended in Slurm or the next
    arrives. A job takes longer than its duration by what Slurm takes to launch it; to start one
    again at once takes until it is back in the queue, a second or two. That, and what the agent
    takes to decide, passes as well, and counts in the next wait.

    ## Observation Space
    That of `ClusterEnv`. The progress shown of a running job is what it would be had it begun as
    soon as it was started.

    ## Action Space
    That of `ClusterEnv`; all GPUs of a job are on one server.

    ## Reward
    That of `ClusterEnv`.

    ## Starting State
    That of `ClusterEnv`, on a Slurm that is started for the first episode and emptied for others.

    ## Episode End
    That of `ClusterEnv`; `close` ends Slurm.

    ## Information
    That of `ClusterEnv`.

    ## Arguments
    * `generator`: yields the instance of each episode, jobs with whole GPUs on servers that are
      alike; default: six random jobs of one to ten minutes.
    * `nodes`, `gpus_per_node`: the servers of the default's cluster.
    * `scale`: seconds of the trace in one second of Slurm's.
    * `folder`: where the Slurm has its files, in a folder of their own; default: a temporary one.
    * `actions`: on single servers only.
    * `observation`, `reward`, `horizon`, `keep_runs`, `render_mode`: as of `ClusterEnv`.

    ## Guarantees
    At least one action is always allowed. Equal seeds give equal jobs, but never quite equal times.
    It can be copied and pickled only where no episode has begun.

    ## Source
    Own environment, over Yoo, Jette and Grondona, "SLURM: Simple Linux Utility for Resource
    Management", JSSPP 2003.

    ## Version History
    * v0: first version.
    """

    def __init__(
        self,
        generator: ClusterGenerator | None = None,
        *,
        nodes: Count = 2,
        gpus_per_node: Count = 4,
        scale: Positive = 100.0,
        folder: str | Path | None = None,
        actions: ClusterActions = ON_SERVERS,
        observation: Callable[[ClusterBounds], ClusterObservation] = ClusterObservation,
        reward: ClusterReward = ClusterReward(),
        horizon: Count = HORIZON,
        keep_runs: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if actions.racks or actions.all_servers:
            reason = "a job of Slurm's has the same number of GPUs on each of its servers"
            raise InputError(f"{reason}: only servers=true", field="actions")
        super().__init__(
            generator or RandomJobs(
                Cluster.uniform(nodes, gpus_per_node), jobs=(6, 6), load=(1.0, 1.0),
                max_gpus=gpus_per_node, duration_s=(60, 600),
            ),
            actions=actions, observation=observation, reward=reward, horizon=horizon,
            keep_runs=keep_runs, render_mode=render_mode,
        )  # fmt: skip
        self.scale, self.folder = scale, folder
        self._machine: LocalSlurm | None = None
        self._opened = ExitStack()
        self.parallel.episodes = self._begin

    def close(self) -> None:
        """End the Slurm and what runs on it; a further `reset` starts another."""
        self._machine = self.parallel._episode = None
        self._opened.close()

    def _begin(self, instance: ClusterInstance, *arguments: Any, **named: Any) -> SlurmEpisode:
        cluster, trace = instance.cluster, instance.trace
        refuse_rows(trace, trace.gpu_milli < WHOLE_GPU, "gpu_milli")
        refuse_rows(trace, trace.num_gpus == 0, "num_gpus")
        if len(np.unique(cluster.gpus)) > 1 or len(cluster.gpu_types) > 1:
            raise InputError("its servers are not alike", file=f"cluster {cluster.name}")
        if instance.incidents is not None and len(instance.incidents):
            raise InputError("no server of a live Slurm fails as told", field="incidents")
        machine, size = self._machine, (cluster.num_nodes, int(cluster.gpus[0]))
        if machine is not None and size == (machine.nodes, machine.gpus_per_node):
            machine.cancel()
        else:
            self.close()
            machine = self._machine = self._start(*size)
        return SlurmEpisode(machine, self.scale, instance, *arguments, **named)

    def _start(self, nodes: int, gpus: int) -> LocalSlurm:
        if self.folder is None:
            within = self._opened.enter_context(TemporaryDirectory())
        else:
            within = str(self.folder)
            Path(within).mkdir(parents=True, exist_ok=True)
        machine = LocalSlurm(mkdtemp(prefix="slurm-", dir=within), nodes, gpus)
        self._opened.enter_context(machine)
        machine.slurm.find_record()
        self._opened.callback(machine.cancel)
        weakref.finalize(self, self._opened.close)  # where nobody calls `close`
        return machine
