"""Queue disciplines as they are told, second by second or event by event, in plain Python."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from envs.cluster.workload.trace import Trace

Shares = list[tuple[int, int]] | None
Rule = Callable[[list[int], int, int], Shares]


@dataclass
class Jobs:
    submit: list[int]
    duration: list[int]
    gpus: list[int]

    @property
    def trace(self) -> Trace:
        return Trace.of("drawn", self.submit, self.duration, self.gpus)

    @classmethod
    def of(cls, trace: Trace) -> Jobs:
        columns = (trace.submit_s, trace.duration_s, trace.num_gpus)
        return cls(*([int(value) for value in column] for column in columns))


@st.composite
def dense_jobs(draw: st.DrawFn, gpus: int, *, least: int = 0) -> Jobs:
    """Few seconds, so that much happens at once and many keys are equal."""
    count = draw(st.integers(1, 22))
    last, longest = draw(st.sampled_from([0, 3, 12, 40])), draw(st.integers(1, 14))
    each = {"min_size": count, "max_size": count}
    return Jobs(
        sorted(draw(st.lists(st.integers(0, last), **each))),
        draw(st.lists(st.integers(1, longest), **each)),
        draw(st.lists(st.integers(least, gpus), **each)),
    )


def count(free: list[int], need: int, size: int) -> Shares:
    if sum(free) < need:
        return None
    shares = []
    for node, there in enumerate(free):
        gpus = min(there, need)
        need -= gpus
        if gpus:
            shares.append((node, gpus))
    return shares


def yarn(free: list[int], need: int, size: int) -> Shares:
    return _packed(free, need, size, lambda fitting: fitting[0])


def best_fit(free: list[int], need: int, size: int) -> Shares:
    return _packed(free, need, size, lambda fitting: min(fitting, key=lambda node: free[node]))


def _packed(free: list[int], need: int, size: int, pick: Callable[[list[int]], int]) -> Shares:
    whole, rest = divmod(need, size) if need > size else (0, need)
    idle = [node for node, there in enumerate(free) if there == size][:whole]
    if len(idle) < whole:
        return None
    shares = [(node, size) for node in idle]
    if whole and not rest:
        return shares
    fitting = [node for node, there in enumerate(free) if there >= rest and node not in idle]
    return [*shares, (pick(fitting), rest)] if fitting else None


def helios(free: list[int], need: int, size: int) -> Shares:
    if need <= size:
        return best_fit(free, need, size)
    whole, rest = divmod(need, size)
    order = sorted(range(len(free)), key=lambda node: -free[node])
    wanted = [size] * whole + ([rest] if rest else [])
    if len(order) < len(wanted):
        return None
    shares = list(zip(order, wanted, strict=False))
    return shares if all(free[node] >= gpus for node, gpus in shares) else None


def non_preemptive(
    jobs: Jobs, nodes: int, size: int, rule: Rule, *, shortest: bool, strict: bool
) -> list[int]:
    """Start times."""
    start, free = [-1] * len(jobs.submit), [size] * nodes
    running: list[tuple[int, int, list[tuple[int, int]]]] = []
    waiting: list[int] = []
    arrived = 0
    while arrived < len(jobs.submit) or running:
        coming = jobs.submit[arrived : arrived + 1] + [end for end, _, _ in running[:1]]
        now = min(coming)
        while running and running[0][0] == now:
            for node, gpus in heapq.heappop(running)[2]:
                free[node] += gpus
        while arrived < len(jobs.submit) and jobs.submit[arrived] == now:
            waiting.append(arrived)
            arrived += 1
        if shortest:
            waiting.sort(key=lambda job: (jobs.duration[job], job))
        left: list[int] = []
        for place, job in enumerate(waiting):
            shares = rule(free, jobs.gpus[job], size)
            if shares is None and strict:
                left += waiting[place:]
                break
            if shares is None:
                left.append(job)
                continue
            for node, gpus in shares:
                free[node] -= gpus
            start[job] = now
            heapq.heappush(running, (now + jobs.duration[job], job, shares))
        waiting = left
    return start


def easy(jobs: Jobs, gpus: int) -> list[int]:
    """Start times; the promise is worked out anew at every event."""
    start, free, arrived = [-1] * len(jobs.submit), gpus, 0
    running: list[tuple[int, int]] = []
    waiting: list[int] = []
    while arrived < len(jobs.submit) or running:
        now = min(jobs.submit[arrived : arrived + 1] + [end for end, _ in running])
        free += sum(jobs.gpus[job] for end, job in running if end == now)
        running = [(end, job) for end, job in running if end != now]
        while arrived < len(jobs.submit) and jobs.submit[arrived] == now:
            waiting.append(arrived)
            arrived += 1
        begun = []
        until = spare = -1
        for job in waiting:
            need, end = jobs.gpus[job], now + jobs.duration[job]
            if until < 0 and need > free:  # the head
                there = free
                for end, other in sorted(running):
                    there += jobs.gpus[other]
                    if there >= need:
                        until = end
                        break
                spare = free + sum(jobs.gpus[j] for e, j in running if e <= until) - need
            elif need <= free and (until < 0 or end <= until or need <= spare):
                spare -= need if end > until else 0
                free -= need
                start[job] = now
                running.append((end, job))
                begun.append(job)
        waiting = [job for job in waiting if job not in begun]
    return start


def shortest_remaining(
    jobs: Jobs, gpus: int, *, times_gpus: bool
) -> tuple[list[int], list[int], list[int]]:
    """Start and finish times and preemptions."""
    total = len(jobs.submit)
    left, ranked, running = list(jobs.duration), list[int](), set[int]()
    start, finish, preemptions = [-1] * total, [-1] * total, [0] * total
    now = arrived = 0
    while arrived < total or ranked:
        coming = min(jobs.submit[arrived : arrived + 1] + [now + left[job] for job in running])
        for job in running:
            left[job] -= coming - now
        now = coming
        for job in [job for job in running if left[job] == 0]:
            finish[job] = now
            running.remove(job)
            ranked.remove(job)
        while arrived < total and jobs.submit[arrived] == now:
            ranked.append(arrived)
            arrived += 1
        ranked.sort(key=lambda job: left[job] * (jobs.gpus[job] if times_gpus else 1))
        running = _allocate(jobs, ranked, gpus, running, now, start, preemptions)
    return start, finish, preemptions


def _allocate(
    jobs: Jobs, order: list[int], free: int, before: set[int], now: int,
    start: list[int], preemptions: list[int],
) -> set[int]:  # fmt: skip
    running = set()
    for job in order:
        if jobs.gpus[job] <= free:
            free -= jobs.gpus[job]
            running.add(job)
            start[job] = now if start[job] < 0 else start[job]
    for job in before - running:
        preemptions[job] += 1
    return running


def las_2d(
    jobs: Jobs, gpus: int, limits: list[int], *, tiresias: bool
) -> tuple[list[int], list[int], list[int]]:
    """Start and finish times and preemptions.

    The exact one is looked at every second; a job that crosses no limit changes nothing.
    """
    total = len(jobs.submit)
    executed, level = [0] * total, [0] * total
    start, finish, preemptions = [-1] * total, [-1] * total, [0] * total
    queues: list[list[int]] = [[] for _ in range(len(limits) + 1)]
    running: set[int] = set()
    now = arrived = 0
    wake: list[int] = []
    while arrived < total or any(queues):
        ends = [now + jobs.duration[job] - executed[job] for job in running]
        coming = min(jobs.submit[arrived : arrived + 1] + ends + wake)
        for job in running:
            executed[job] += coming - now
        now = coming
        for job in [job for job in running if executed[job] == jobs.duration[job]]:
            finish[job] = now
            running.remove(job)
            queues[level[job]].remove(job)
        while arrived < total and jobs.submit[arrived] == now:
            queues[0].append(arrived)
            arrived += 1
        for job in sorted(running):
            service, old = executed[job] * jobs.gpus[job], level[job]
            while level[job] < len(limits) and service >= limits[level[job]]:
                level[job] += 1
                if tiresias:
                    break
            if level[job] != old:
                queues[old].remove(job)
                queues[level[job]].append(job)
        order = [job for queue in queues for job in queue]
        running = _allocate(jobs, order, gpus, running, now, start, preemptions)
        for k, queue in enumerate(queues):
            queues[k] = sorted(queue, key=lambda job: job not in running)
        wake = [now + 1] if running else []
        if tiresias:
            wake = [
                now + (limits[level[job]] - executed[job]) // jobs.gpus[job]
                for job in running
                if level[job] < len(limits) and jobs.gpus[job] > 0
            ]
            wake = [time for time in wake if time > now]
    return start, finish, preemptions


def usage_is_possible(trace: Trace, start: np.ndarray, finish: np.ndarray, gpus: int) -> bool:
    """Whether jobs that run from start to finish never hold more than `gpus`."""
    times = np.concatenate([finish, start])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([-trace.num_gpus, trace.num_gpus])[order]
    return bool(np.cumsum(change).max(initial=0) <= gpus)
