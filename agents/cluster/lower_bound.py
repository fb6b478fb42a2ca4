"""A proved lower bound on the sum of completion times of every schedule.

Job j of G_j GPUs needs d_j seconds at speed 1 and is submitted at r_j. On GPU type t it has the
speed s_jt, at best b_j; locality, neighbours, restarts and failures only ever slow it down or set
it back. Let f_j(u) be the share of the job that a schedule does per second at time u, counted once
where it is done again: it sums to 1, begins at r_j and is at most b_j / d_j.

* A *price* p_t > 0 for a GPU-second of each type gives the job the area w_j = G_j d_j a_j with
  a_j = min_t p_t / s_jt over the types it may use. A gang is as slow as its slowest GPU, so with
  x_t of its GPUs on type t its area shrinks at w_j f_j = G_j a_j rate <= sum_t x_t a_j s_jt <=
  sum_t x_t p_t. Over all jobs the areas shrink by at most S = sum_t p_t GPUs_t: any schedule is one
  of a single preemptive machine of speed S with jobs of size w_j.
* The mean busy time M_j = integral of u f_j(u) du is at most C_j - d_j / (2 b_j), because f_j is at
  most b_j / d_j (Goemans, Queyranne, Schulz, Skutella and Wang, "Single machine scheduling with
  release dates", SIAM J. Discrete Math. 15, 2002, section 2). Also C_j >= r_j + d_j / b_j. So for
  every l_j in [0, 1], C_j >= l_j (M_j + d_j / (2 b_j)) + (1 - l_j) (r_j + d_j / b_j).
* On one machine the sum of l_j M_j is least when at all times the submitted job with the largest
  l_j / w_j is worked on (ibid., section 2; Goemans, SODA 1996): a transport problem in which any
  other schedule can be improved by an exchange.
* Of the same machine, the least sum of completion times is that of the shortest remaining area
  first (Schrage, Operations Research 16, 1968).

Every p and l proves a bound; the search only looks for good ones. p is searched by pattern search,
l by supergradient steps: for given p the bound is concave in l.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray
from envs.cluster.interference.rates import NoInterference, RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.compilation import compiled
from envs.errors import InputError

ROUNDING = 1e-9  # relative; covers sums of millions of terms
FIRST_STEP, LAST_STEP = 2.0, 1.05  # factors by which a price is changed
ROUNDS, STEPS = 2, 24  # of the search for l and p in turn, of supergradients in each


@dataclass(frozen=True)
class CompletionBound:
    """No schedule has a smaller sum of completion time minus submission than `sum_jct_s`."""

    sum_jct_s: float  # the largest of the three below
    mean_busy_s: float  # by mean busy times
    shortest_first_s: float  # by the shortest remaining area on one fast machine
    alone_s: float  # every job at its best speed, alone
    jobs: int

    @property
    def mean_jct_s(self) -> float:
        """Of the mean; NaN without a job."""
        return self.sum_jct_s / self.jobs if self.jobs else float("nan")


class _Jobs(NamedTuple):
    """Jobs with GPUs, by submission; times in seconds."""

    submit: FloatArray  # (J,)
    least: FloatArray  # (J,) d / b
    work: FloatArray  # (J,) G d, GPU-seconds at speed 1
    speed: FloatArray  # (J, T) 0 where a job cannot run
    gpus: FloatArray  # (T,)


def completion_bound(
    trace: Trace, cluster: Cluster, rates: RateModel | None = None
) -> CompletionBound:
    """The bound for the jobs of `trace` on `cluster`.

    Args:
        trace: J jobs.
        cluster: where they run, T GPU types.
        rates: how fast jobs run where they run; None: at rate 1.

    Raises:
        InputError: a job runs on no GPU of the cluster.
    """
    kinds = np.bincount(cluster.gpu_type, cluster.gpus, len(cluster.gpu_types)).astype(np.float64)
    tables = (rates or NoInterference()).tables(trace, cluster)
    masks = cluster.type_masks(trace.gpu_type.names)[trace.gpu_type.codes]
    runs = ((masks[:, None] >> np.arange(len(kinds))) & 1 == 1) & (kinds > 0.0)
    speed = np.where(runs, tables.speed[tables.profile], 0.0)  # (J, T)
    gpus = trace.num_gpus * (trace.gpu_milli / WHOLE_GPU)
    # a job without GPUs runs anywhere, at rate 1
    some, best = gpus > 0.0, np.where(gpus > 0.0, speed.max(axis=1), 1.0)
    if (best <= 0.0).any():
        problem, lost = "runs on no GPU of the cluster", int(np.argmax(best <= 0.0))
        raise InputError(problem, file=trace.name, record=lost)
    least = trace.duration_s / best
    alone, rest = float(least.sum()), float(least[~some].sum())
    busy = shortest = alone
    if some.any():
        used = (speed[some] > 0.0).any(axis=0)
        jobs = _Jobs(
            submit=trace.submit_s[some].astype(np.float64),
            least=least[some],
            work=(gpus * trace.duration_s)[some],
            speed=np.ascontiguousarray(speed[some][:, used]),
            gpus=kinds[used],
        )
        weight = np.ones(len(jobs.submit))
        prices, busy = _search(jobs, jobs.speed.max(axis=0), weight)
        for _ in range(ROUNDS):
            weight = _ascend(jobs, prices, weight)
            prices, busy = _search(jobs, prices, weight)
        areas, machine = _areas(jobs, prices)
        busy += rest
        shortest = rest + float(_one_machine(jobs.submit, areas / machine, areas, True)[1])
    proved = max(busy, shortest, alone) * (1.0 - ROUNDING) if some.any() else alone
    return CompletionBound(proved, busy, shortest, alone, len(trace))


def _areas(jobs: _Jobs, prices: FloatArray) -> tuple[FloatArray, float]:
    """(J,) w, and the speed S of the machine."""
    runs = jobs.speed > 0.0
    rate = np.where(runs, prices / np.where(runs, jobs.speed, 1.0), np.inf).min(axis=1)
    return jobs.work * rate, float(prices @ jobs.gpus)


def _bound(jobs: _Jobs, prices: FloatArray, weight: FloatArray) -> tuple[float, FloatArray]:
    """The bound for p = `prices` and l = `weight`, and its supergradient in l (J,)."""
    areas, machine = _areas(jobs, prices)
    order = np.lexsort((areas, -weight / areas))
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order))
    busy, _ = _one_machine(jobs.submit, areas / machine, rank, False)
    gain = (busy - jobs.submit) - jobs.least / 2.0
    return float(jobs.least.sum() + weight @ gain), gain


def _search(jobs: _Jobs, prices: FloatArray, weight: FloatArray) -> tuple[FloatArray, float]:
    """The best prices that a pattern search from `prices` finds, and their bound."""
    best, step, kinds = _bound(jobs, prices, weight)[0], FIRST_STEP, len(prices)
    while step > LAST_STEP and kinds > 1:
        before = best
        for kind, factor in product(range(1, kinds), (step, 1.0 / step)):  # only ratios matter
            changed = np.where(np.arange(kinds) == kind, prices * factor, prices)
            value, _ = _bound(jobs, changed, weight)
            if value > best:
                best, prices = value, changed
        if best == before:
            step = step**0.5
    return prices, best


def _ascend(jobs: _Jobs, prices: FloatArray, weight: FloatArray) -> FloatArray:
    """The l of the largest bound found by projected supergradient steps from `weight`."""
    best, gain = _bound(jobs, prices, weight)
    there = weight
    for step in range(1, STEPS + 1):
        moved = gain / (np.abs(gain) + jobs.least) / step**0.5
        there = np.clip(there + moved, 0.0, 1.0)
        value, gain = _bound(jobs, prices, there)
        if value > best:
            best, weight = value, there
    return weight


@compiled
def _one_machine(
    submit: FloatArray, seconds: FloatArray, rank: FloatArray, shortest: bool
) -> tuple[FloatArray, float]:
    """One machine that works on the submitted job of least rank, or on that with the least left.

    Returns:
        (J,) mean busy times; the sum of completion minus submission.
    """
    jobs = len(submit)
    left, busy = seconds.copy(), np.zeros(jobs)
    heap = [(0.0, 0)]
    heap.pop()
    came = 0
    now = total = 0.0
    while came < jobs or len(heap) > 0:
        if len(heap) == 0:
            now = max(now, submit[came])
        while came < jobs and submit[came] <= now:
            heapq.heappush(heap, (left[came] if shortest else rank[came], came))
            came += 1
        until = submit[came] if came < jobs else np.inf
        while len(heap) > 0 and now < until:
            key, job = heapq.heappop(heap)
            ends = now + left[job] <= until
            run = left[job] if ends else until - now
            busy[job] += run * (now + run / 2.0)
            left[job] -= run
            if ends:
                now += run
                total += now - submit[job]
            else:
                now = until
                heapq.heappush(heap, (left[job] if shortest else key, job))
    return busy / seconds, total
