"""What a migrating policy would do next, as an expert policy of cluster environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agents.cluster.migrating.policy import (
    RACK,
    SERVER,
    START,
    STOP,
    check_whole_gpus,
    plan,
    startable,
)
from agents.cluster.migrating.priorities import AttainedServiceClasses, Priority
from agents.solver import Knowledge
from envs.arrays import IntArray
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.simulation.cluster_state import NONE

MakesPriority = Callable[[], Priority]  # a fresh order of an episode


@dataclass(frozen=True, eq=False)
class MigrationExpert:
    """Suggests what `policy.Migrating` does to schedulers who each own some racks.

    Args:
        priority: makes the order of an episode's jobs.
        gain: ratio of speeds above which a running job moves, at least 1.
        least_run_s: seconds for which a job runs before it moves for speed alone.
    """

    priority: MakesPriority = AttainedServiceClasses
    gain: float = 1.33
    least_run_s: float = 600.0

    @property
    def knows(self) -> Knowledge:
        """What its order looks at of a job that has not finished."""
        return self.priority().knows

    def begin(self, episode: SchedulingEpisode) -> MigrationActions:
        """At the start of an episode.

        Raises:
            InputError: a job asks for more than whole GPUs.
        """
        check_whole_gpus(episode.simulator)
        order = self.priority()
        order.reset(episode.simulator)
        return MigrationActions(order, self)


@dataclass(eq=False)
class MigrationActions:
    """Of the jobs that a scheduler is shown, the last in the order that is to stop does; where none
    is, the first in the order that can start does; then it waits. So no start takes GPUs that the
    plan has for a job before it. Where jobs cannot be stopped, all is planned around those that
    run. A job that has never run is forwarded before that if another scheduler's unfinished jobs,
    the job among them, ask for a smaller part of its GPUs than one's own.

    Args:
        order: of the episode's jobs.
        rule: for how much a running job moves.
    """

    order: Priority
    rule: MigrationExpert

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        """The action of a scheduler whose window has just been filled."""
        simulator, table, view = episode.simulator, episode.action_table, episode.views[scheduler]
        simulator.settle()
        state = simulator.state
        window, shown = episode.book.window[scheduler], episode.book.shown[scheduler]
        waiting, running = window[window != NONE], shown[shown != NONE]
        forward = _forward(episode, scheduler, waiting)
        if forward is not None:
            return forward
        jobs = np.concatenate([waiting, running]).astype(np.int64)
        if len(jobs) == 0:
            return table.size - 1
        place = np.lexsort((jobs, self.order(state, jobs)))
        order = jobs[place]
        limits = (self.rule.gain, self.rule.least_run_s, table.least_run_s)
        fate, target = plan(state, simulator.tables, view, order, *limits)
        first = table.window * (table.groups + table.peers)
        for rank in np.flatnonzero(fate == STOP)[::-1]:
            ran = simulator.now - state.jobs[order[rank]]["since"]
            row = int(place[rank]) - len(waiting)
            if ran > 0.0 and row < table.preemptible:
                return first + row
        for rank in np.flatnonzero(fate == START):
            kind, index = target[rank].tolist()
            if startable(state, view, int(order[rank]), kind, index):
                group = {SERVER: index, RACK: table.servers + index}.get(kind, table.groups - 1)
                return int(place[rank] * table.groups + group)
        return table.size - 1


def _forward(episode: SchedulingEpisode, scheduler: int, waiting: IntArray) -> int | None:
    """The action that forwards the first job that had better be elsewhere."""
    table, book, state = episode.action_table, episode.book, episode.simulator.state
    fresh = state.jobs["executed"][waiting] == 0.0
    may = fresh & (book.forwards[waiting] < table.most_forwards)
    if table.peers == 0 or not may.any():
        return None
    unfinished = np.concatenate([episode.simulator.pending(), episode.simulator.running()])
    gpus = np.array([view.gpus for view in episode.views])
    # GPUs that the unfinished jobs of every scheduler ask for
    asked = np.bincount(book.home[unfinished], state.jobs["gpus"][unfinished], len(gpus))
    others = (scheduler + 1 + np.arange(table.peers)) % (table.peers + 1)
    for row in np.flatnonzero(may).tolist():
        job = waiting[row]
        with_job = (asked[others] + state.jobs["gpus"][job]) / gpus[others]
        with_job[book.holds[job, others] == 0] = np.inf
        best = int(np.argmin(with_job))
        if with_job[best] < asked[scheduler] / gpus[scheduler]:
            return table.window * table.groups + row * table.peers + best
    return None
