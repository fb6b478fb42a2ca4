"""What an adviser would do: an action that a scheduler sees, and may follow or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from envs.cluster.environment.episode import SchedulingEpisode


class Advice(Protocol):
    """An adviser's thoughts about one episode."""

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        """An allowed action for a scheduler whose window has just been filled."""

    def copy(self) -> Advice:
        """An independent copy, to go with a copy of the episode."""


class Adviser(Protocol):
    """A known policy, asked at every decision; it changes nothing itself."""

    def begin(self, episode: SchedulingEpisode) -> Advice:
        """At the start of an episode."""
