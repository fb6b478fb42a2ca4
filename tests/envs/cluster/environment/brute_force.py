"""The best schedules of few jobs by trying all; shares no code with the simulator.

Every job runs on one server, at rate 1. Times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

Job = tuple[int, int, int]  # submission, seconds, GPUs
Found = tuple[int, tuple[tuple[int, int, int], ...]]  # cost, (job, start, server) of each
Running = tuple[tuple[int, int, int], ...]  # (end, job, server), sorted


def least_sum_schedule(
    jobs: Sequence[Job], servers: Sequence[int]
) -> tuple[int, dict[int, tuple[int, int]]]:
    """The least sum of completion times minus submissions without preemption.

    Of every schedule there is one at most as long in which each job starts at a submission or a
    completion, so that those instants are enough.

    Returns:
        The sum, and (start, server) of each job in a schedule that has it.
    """

    @cache
    def best(now: int, waiting: frozenset[int], running: Running, free: tuple[int, ...]) -> Found:
        found: list[Found] = []
        for job in waiting:
            submit, seconds, gpus = jobs[job]
            for server in range(len(free)):
                if gpus <= free[server]:
                    runs = tuple(sorted((*running, (now + seconds, job, server))))
                    cost, rest = best(now, waiting - {job}, runs, _less(free, server, gpus))
                    found.append((cost + now + seconds - submit, ((job, now, server), *rest)))
        then = min([j[0] for j in jobs if j[0] > now] + [end for end, _, _ in running], default=-1)
        if then >= 0:
            left = free
            for end, job, server in running:
                if end <= then:
                    left = _less(left, server, -jobs[job][2])
            new = frozenset(j for j in range(len(jobs)) if now < jobs[j][0] <= then)
            still = tuple(entry for entry in running if entry[0] > then)
            found.append(best(then, waiting | new, still, left))
        return min(found, default=(10**9 if waiting else 0, ()))

    cost, starts = best(-1, frozenset(), (), tuple(servers))
    return cost, {job: (start, server) for job, start, server in starts}


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
