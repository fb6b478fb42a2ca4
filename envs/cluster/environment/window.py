"""Which of the pending jobs a scheduler looks at: the first W by some key."""

from __future__ import annotations

from typing import Protocol

QUEUE, SERVICE, REMAINING_TIME, REMAINING_SERVICE = 0, 1, 2, 3  # codes of the keys


class WindowOrder(Protocol):
    """A key by which pending jobs are ordered; ties by the queue."""

    code: int
    needs_durations: bool


class QueueOrder:
    """As they stand in the queue: by arrival, and again at the tail after each preemption."""

    code, needs_durations = QUEUE, False


class LeastService:
    """GPU-seconds held so far, ascending."""

    code, needs_durations = SERVICE, False


class ShortestRemainingTime:
    """Seconds of work left, ascending."""

    code, needs_durations = REMAINING_TIME, True


class SmallestRemainingService:
    """Seconds of work left times GPUs, ascending."""

    code, needs_durations = REMAINING_SERVICE, True
