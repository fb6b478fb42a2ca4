"""Expert policies that schedulers imitate and are measured by, beside the planners."""

from __future__ import annotations

import numpy as np

from envs.arrays import IntArray
from envs.cluster.environment.actions import fill_mask
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.observation import ExpertActions
from envs.errors import InputError


class FirstFit:
    """The first job of the window that can start goes to the first group it can go to."""

    def begin(self, episode: SchedulingEpisode) -> FirstFit:
        del episode
        return self

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        """A start, or else to wait; to preempt where to wait is not allowed either."""
        table, state = episode.action_table, episode.simulator.state
        mask = np.zeros(table.size, np.int8)
        view = episode.views[scheduler]
        fill_mask(state, episode.book, view, table, episode.request, mask)
        starts = np.flatnonzero(mask[: table.window * table.groups])
        if len(starts):
            return int(starts[self.first(episode, scheduler, starts // table.groups)])
        return table.size - 1 if mask[-1] else int(np.flatnonzero(mask)[-1])

    def first(self, episode: SchedulingEpisode, scheduler: int, slots: IntArray) -> int:
        """Which of these slots of the window, which can start, is the first."""
        del episode, scheduler, slots
        return 0


class ShortestFit(FirstFit):
    """Of the jobs of the window that can start, the shortest goes to the first group it can."""

    def first(self, episode: SchedulingEpisode, scheduler: int, slots: IntArray) -> int:
        """That of the job with least work."""
        jobs = episode.book.window[scheduler, slots]
        return int(np.argmin(episode.simulator.state.jobs["work"][jobs]))


class ShownExpert:
    """What the observations of the environment show."""

    def begin(self, episode: SchedulingEpisode) -> ExpertActions:
        """The expert that the episode shows.

        Raises:
            InputError: its observations show none.
        """
        if episode.expert is None:
            raise InputError("the observation shows no expert's action", field="expert")
        return episode.expert
