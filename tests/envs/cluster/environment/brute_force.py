"""The best schedules of few jobs by trying all; shares no code with the simulator.

Every job runs on one server, at rate 1. Times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

Job = tuple[int, int, int]  # submission, seconds, GPUs
Running = tuple[tuple[int, int, int], ...]  # (end, job, server), sorted


def least_sum_jct(jobs: Sequence[Job], servers: Sequence[int]) -> int:
    """The least sum of completion times minus submissions without preemption.

    Of every schedule there is one at most as long in which each job starts at a submission or a
    completion, so that those instants are enough.
    """

    @cache
    def best(now: int, waiting: frozenset[int], running: Running, free: tuple[int, ...]) -> int:
        come = frozenset(j for j in range(len(jobs)) if jobs[j][0] <= now)
        started = min(
            (
                best(
                    now,
                    waiting - {job},
                    tuple(sorted((*running, (now + jobs[job][1], job, server)))),
                    _less(free, server, jobs[job][2]),
                )
                + now
                + jobs[job][1]
                - jobs[job][0]
                for job in waiting
                for server in range(len(free))
                if jobs[job][2] <= free[server]
            ),
            default=10**9,
        )
        ahead = [jobs[j][0] for j in range(len(jobs)) if j not in come]
        ahead += [end for end, _, _ in running]
        if not ahead:
            return started if waiting else 0
        then = min(ahead)
        left = free
        for end, job, server in running:
            if end <= then:
                left = _less(left, server, -jobs[job][2])
        new = frozenset(j for j in range(len(jobs)) if now < jobs[j][0] <= then)
        still = tuple(entry for entry in running if entry[0] > then)
        return min(started, best(then, waiting | new, still, left))

    return best(-1, frozenset(), (), tuple(servers))


def least_preemptive_sum_jct(jobs: Sequence[Job], servers: Sequence[int]) -> int:
    """The same where every job can be stopped and moved at each whole second."""

    @cache
    def best(now: int, left: tuple[int, ...]) -> int:
        """Sum over the seconds from now on of the jobs unfinished in them."""
        if not any(left):
            return 0
        here = [j for j, seconds in enumerate(left) if seconds and jobs[j][0] <= now]
        if not here:
            return best(now + 1, left)
        return len(here) + min(
            best(now + 1, tuple(s - (j in chosen) for j, s in enumerate(left)))
            for chosen in set(_packings(here, jobs, tuple(servers)))
            if chosen  # to let everything stand still never helps
        )

    return best(0, tuple(seconds for _, seconds, _ in jobs))


def _packings(
    here: Sequence[int], jobs: Sequence[Job], free: tuple[int, ...]
) -> Iterator[frozenset[int]]:
    """Sets of jobs that fit on the servers together."""
    if not here:
        yield frozenset()
        return
    job, *rest = here
    yield from _packings(rest, jobs, free)
    for server, gpus in enumerate(free):
        if jobs[job][2] <= gpus:
            for more in _packings(rest, jobs, _less(free, server, jobs[job][2])):
                yield more | {job}


def _less(free: tuple[int, ...], server: int, gpus: int) -> tuple[int, ...]:
    return (*free[:server], free[server] - gpus, *free[server + 1 :])
