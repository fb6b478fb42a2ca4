"""The least sum of JCT of a handful of jobs, by trying everything."""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations

from envs.cluster.workload.trace import Trace


def best_preemptive(trace: Trace, gpus: int) -> int:
    """Over all schedules that change at whole seconds, on a pool of GPUs."""
    submit = [int(t) for t in trace.submit_s]
    need = [int(g) for g in trace.num_gpus]
    last = max(submit)

    @cache
    def cost(now: int, left: tuple[int, ...]) -> int:
        there = [j for j, rest in enumerate(left) if rest and submit[j] <= now]
        if not any(left):
            return 0
        best = None
        for size in range(len(there), -1, -1):
            for chosen in combinations(there, size):
                if sum(need[j] for j in chosen) > gpus or (not chosen and now >= last):
                    continue
                after = tuple(rest - (j in chosen) for j, rest in enumerate(left))
                value = cost(min(now + 1, last), after)
                best = value if best is None else min(best, value)
        assert best is not None
        return len(there) + best

    return cost(0, tuple(int(d) for d in trace.duration_s))


def best_non_preemptive(trace: Trace, gpus: int) -> int:
    """Over all orders in which jobs take the first hole they fit into; one of these is the best."""
    submit = [int(t) for t in trace.submit_s]
    duration = [int(d) for d in trace.duration_s]
    need = [int(g) for g in trace.num_gpus]
    horizon = max(submit) + sum(duration)
    best = None
    for order in permutations(range(len(trace))):
        free = [gpus] * horizon
        total = 0
        for job in order:
            start = submit[job]
            while min(free[start : start + duration[job]]) < need[job]:
                start += 1
            for second in range(start, start + duration[job]):
                free[second] -= need[job]
            total += start + duration[job] - submit[job]
        best = total if best is None else min(best, total)
    assert best is not None
    return best
