"""Traces by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Gt
from scipy.stats import rankdata

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.cluster.workload.synthetic.arrivals import arrival_times, deal_sizes, gap_scores
from envs.cluster.workload.synthetic.parameters import Memory, WorkloadParameters
from envs.cluster.workload.trace import Labels, Trace
from envs.errors import InputError
from envs.memory import require_memory

JOB_BYTES = 500  # of a job while a trace is made and replayed, at least
_HALVINGS = 60  # of the interval in which the scale of a load is looked for


@bounded
@dataclass(frozen=True)
class TargetLoad:
    """GPU-seconds asked for per GPU-second of `gpus` GPUs between first and last submission."""

    load: Annotated[float, Gt(0.0)]
    gpus: Count


def generate(
    parameters: WorkloadParameters,
    jobs: int,
    seed: int,
    *,
    load: TargetLoad | None = None,
    models: Sequence[str] = (),
) -> Trace:
    """`jobs` jobs with the statistics of `parameters`; one seed, one trace, on every machine.

    The first job is submitted at second 0, a Monday 0:00. Gaps, gang sizes and durations are
    systematic samples (`QuantileTable.sample`) put in an order in which neighbours are alike:

    * jobs come in sessions of one gang size, with gaps of their own (`arrivals`);
    * gaps are long or short in episodes;
    * within a session durations are alike.

    Args:
        parameters: what the trace shall be like.
        jobs: number of jobs.
        seed: at least 0.
        load: gaps are scaled to offer this load; days keep their 24 hours. None: as fitted.
        models: names of profiles of which each job gets one at random; none: jobs have none.

    Raises:
        InputError: no job, a negative seed, a load that whole seconds do not allow.
    """
    for field, value, least in (("jobs", jobs, 1), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"{value} is below {least}", field=field)
    require_memory(JOB_BYTES * jobs, f"{jobs:,} jobs", field="jobs")
    gap_draws, size_draws, duration_draws, session_draws, gap_order, duration_order, model_draws = (
        np.random.Generator(np.random.PCG64(child))
        for child in np.random.SeedSequence(seed).spawn(7)
    )
    # jobs of each gang size: its share to within one job
    ends = np.cumsum(parameters.gang_shares)
    position = (np.arange(jobs) + size_draws.random()) / jobs * ends[-1]
    size = np.minimum(np.searchsorted(ends, position, side="right"), len(ends) - 1)
    counts = np.bincount(size, minlength=len(ends)).astype(np.int64)
    size, starts = deal_sizes(parameters.sessions, counts, session_draws)
    num_gpus = np.array(parameters.gang_sizes, np.int32)[size]

    # gaps in the order of normal values whose means are the scores of sessions
    score = gap_scores(parameters.sessions, size, starts)[1:]
    bursts = int(np.floor((jobs - 1) * parameters.burst_share + gap_draws.random()))
    ascending = np.concatenate(
        [
            parameters.burst_gap.sample(bursts, gap_draws),
            parameters.pause.sample(jobs - 1 - bursts, gap_draws),
        ]
    )
    explained = min(float(score.var()), 1.0) if jobs > 1 else 0.0
    own = _latent(parameters.gap_memory, np.zeros(jobs - 1, np.bool_), gap_order)
    place = _places(score + np.sqrt(1 - explained) * own)
    gap, burst = np.r_[0.0, ascending[place]], np.r_[True, place < bursts]

    latent = _latent(parameters.duration_memory, starts, duration_order)
    duration = np.zeros(jobs)
    for entry in parameters.durations:
        alike = np.flatnonzero(np.isin(num_gpus, entry.num_gpus))
        duration[alike] = entry.sample(len(alike), duration_draws)[_places(latent[alike])]
    duration_s = np.maximum(np.rint(duration), 1).astype(np.int64)

    rates = parameters.clock.rates
    submit_s = np.floor(arrival_times(gap, burst, 1.0, rates)).astype(np.int64)
    if load is not None:
        work = float((num_gpus * duration_s.astype(np.float64)).sum())
        submit_s = _loaded(gap, burst, rates, work / (load.gpus * load.load))
    trace = Trace.of(f"{parameters.name}-seed{seed}", submit_s, duration_s, num_gpus)
    if not models:
        return trace
    codes = model_draws.integers(len(models), size=jobs).astype(np.int32)
    return replace(trace, model=Labels(codes, tuple(models)))


def _latent(memory: Memory, breaks: BoolArray, rng: np.random.Generator) -> FloatArray:
    """(J,) normal values that are alike within episodes, which end at `breaks` and by chance.

    Two values of one episode have the rank correlation `memory.strength`: that of normal values
    with correlation 2 sin(pi/6 strength) (Pearson 1907).
    """
    jobs = len(breaks)
    if jobs == 0:
        return np.zeros(0)
    # episodes end by chance as often as breaks leave to be done
    kept = 1 - float(breaks.mean())
    chance = 1 - min(memory.persistence / kept, 1.0) if kept > 0 else 1.0
    starts = breaks | (rng.random(jobs) < chance)
    starts[0] = True
    episode = np.cumsum(starts) - 1
    alike = 2 * np.sin(np.pi / 6 * memory.strength)
    common = rng.standard_normal(episode[-1] + 1)[episode]
    return np.asarray(np.sqrt(alike) * common + np.sqrt(1 - alike) * rng.standard_normal(jobs))


def _places(values: FloatArray) -> IntArray:
    """(J,) rank of each value from 0; equal values by their place."""
    return np.asarray(rankdata(values, "ordinal"), np.int64) - 1


def _loaded(gap: FloatArray, burst: BoolArray, rates: FloatArray, span: float) -> IntArray:
    """(J,) submissions whose last is at `span` seconds, to the second."""
    low, high = 0.0, 1.0
    while arrival_times(gap, burst, high, rates)[-1] < span:
        low, high = high, 2 * high
        if high > 2.0**40:
            raise InputError("gaps of this sum reach no such load", field="load")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if arrival_times(gap, burst, middle, rates)[-1] < span:
            low = middle
        else:
            high = middle
    submit_s: IntArray = np.floor(arrival_times(gap, burst, high, rates)).astype(np.int64)
    if submit_s[-1] < 1:
        raise InputError("the jobs would all be submitted at once", field="load")
    return submit_s
