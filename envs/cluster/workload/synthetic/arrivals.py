"""When jobs come: a clock of the week, and sessions of jobs of one user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.compilation import compiled
from envs.errors import InputError
from envs.forms import Form

HOUR_S, DAY_H, WEEK_D = 3600, 24, 7
DAY_S, WEEK_S = HOUR_S * DAY_H, HOUR_S * DAY_H * WEEK_D
EPOCH_S = 3 * DAY_S  # 1970 began on a Thursday: seconds from a Monday 0:00 to it
SHIFTS = 999  # random shifts that a shape is compared with
CHANCE = 0.01  # of finding a shape where there is none
LEAST_DAYS, LEAST_WEEKS, LEAST_ARRIVALS = 7, 4, 1000  # below these no shape is looked for


@dataclass(frozen=True, eq=False)
class WeeklyClock:
    """Arrival rates by hour of the day and day of the week, relative to their mean.

    Its *busy time* passes at the rate of the hour: as fast as time over a week, faster in busy
    hours. The week begins on Monday at 0:00.

    Raises:
        InputError: not 24 and 7 rates above 0 with a mean of 1.
    """

    daily: FloatArray  # (24,)
    weekly: FloatArray  # (7,)

    def __post_init__(self) -> None:
        for field, count in (("daily", DAY_H), ("weekly", WEEK_D)):
            rates = getattr(self, field)
            if rates.shape != (count,) or not (rates > 0).all():
                raise InputError(f"needs {count} rates above 0", field=field)
            if abs(rates.mean() - 1) > 1e-3:
                raise InputError(f"has mean {rates.mean():.6g} instead of 1", field=field)

    @classmethod
    def fit(cls, clock_s: IntArray) -> WeeklyClock:
        """The shape of arrivals at `clock_s` seconds after a Monday 0:00, ascending.

        Jobs come in bursts, so hours differ by chance alone. A shape is kept only when the hours
        (days) differ more than after shifting every day (week) by a random number of hours (days),
        at a chance of 1 in 100; else it is flat. So it is with too few arrivals to tell.
        """
        if len(clock_s) < LEAST_ARRIVALS:
            return cls(np.ones(DAY_H), np.ones(WEEK_D))
        hour = clock_s // HOUR_S
        first = -(-hour[0] // DAY_H)  # day fully covered, of so many
        days = max((hour[-1] + 1) // DAY_H - first, 0)
        counts = np.bincount(hour - hour[0])[first * DAY_H - hour[0] :]
        by_day = counts[: days * DAY_H].reshape(days, DAY_H).astype(np.float64)
        monday = -first % WEEK_D  # the first of them
        weeks = max(days - monday, 0) // WEEK_D
        by_week = by_day.sum(axis=1)[monday:][: weeks * WEEK_D].reshape(weeks, WEEK_D)
        return cls(_shape(by_day, LEAST_DAYS), _shape(by_week, LEAST_WEEKS))

    @property
    def rates(self) -> FloatArray:
        """(168,) rate of every hour of a week; mean 1."""
        return np.asarray(np.outer(self.weekly, self.daily).ravel())

    def busy_time(self, clock_s: IntArray) -> FloatArray:
        """Busy seconds from 0 to each of `clock_s`."""
        ends = sums_before(self.rates * HOUR_S)
        week, rest = clock_s // WEEK_S, clock_s % WEEK_S
        hour = rest // HOUR_S
        return np.asarray(week * ends[-1] + ends[hour] + (rest % HOUR_S) * self.rates[hour])


def _shape(counts: FloatArray, least: int) -> FloatArray:
    """(C,) relative column means of `counts` (R, C).

    They are ones where chance explains them, or there are fewer than `least` rows.
    """
    rows, columns = counts.shape
    if rows < least:
        return np.ones(columns)
    damped = np.sqrt(counts)  # one burst shall not make a shape
    rng = np.random.default_rng(0)
    shift = rng.integers(columns, size=(SHIFTS, rows, 1))
    shifted = damped[np.arange(rows)[:, None], (np.arange(columns) + shift) % columns]
    chance = shifted.mean(axis=1).var(axis=1)
    beaten = np.count_nonzero(chance >= damped.mean(axis=0).var())
    if (1 + beaten) / (1 + SHIFTS) > CHANCE:
        return np.ones(columns)
    total = counts.sum(axis=0) + 1  # no hour without any arrival
    return np.asarray(total / total.mean())


@compiled
def arrival_times(gap: FloatArray, burst: BoolArray, scale: float, rates: FloatArray) -> FloatArray:
    """(J,) seconds since the first arrival, which is on a Monday at 0:00.

    Args:
        gap: (J,) between each arrival and the one before; the first is not used. Seconds within a
            burst, else busy seconds.
        burst: (J,) whether the gap is within a burst.
        scale: factor of all gaps.
        rates: (168,) of the hours of a week.
    """
    time = np.zeros(len(gap))
    now = 0.0
    for job in range(1, len(gap)):
        left = gap[job] * scale
        if burst[job]:
            now += left
        else:
            hour = int(now // HOUR_S)
            room = ((hour + 1) * HOUR_S - now) * rates[hour % len(rates)]
            while left > room:
                left -= room
                hour += 1
                now = float(hour * HOUR_S)
                room = HOUR_S * rates[hour % len(rates)]
            now += left / rates[hour % len(rates)]
        time[job] = now
    return time


LEAST_PAIRS = 20  # gaps of a kind below which it is taken as those of all sizes


class SessionShape(Form):
    """By gang size. Gaps are described by their mean normal score: 0 is as the mean gap, 1 long."""

    length: Sequence[float]  # mean jobs of a session
    gap_within: Sequence[float]  # score of the gaps between the jobs of a session
    gap_before: Sequence[float]  # score of the gap before a session


def fit_sessions(ranks: FloatArray, size: IntArray, num_sizes: int) -> SessionShape:
    """The sessions of a trace.

    Args:
        ranks: (J-1,) of the gaps from each job to the next, 0..1.
        size: (J,) index of each job's gang size.
        num_sizes: G.
    """
    starts = np.concatenate([[True], size[1:] != size[:-1]])
    sessions = np.bincount(size[starts], minlength=num_sizes)
    length = np.bincount(size, minlength=num_sizes) / np.maximum(sessions, 1)
    score = normal_scores(ranks)

    def mean_scores(of_kind: BoolArray) -> list[float]:
        overall = float(score[of_kind].mean()) if of_kind.any() else 0.0
        chosen = [score[of_kind & (size[1:] == index)] for index in range(num_sizes)]
        return [float(x.mean()) if len(x) >= LEAST_PAIRS else overall for x in chosen]

    return SessionShape(
        length=length.tolist(),
        gap_within=mean_scores(~starts[1:]),
        gap_before=mean_scores(starts[1:]),
    )


def normal_scores(ranks: FloatArray) -> FloatArray:
    """The standard normal values of these ranks, 0 < rank < 1."""
    values, inverse = np.unique(ranks, return_inverse=True)
    return np.array([NormalDist().inv_cdf(float(value)) for value in values])[inverse]


def gap_scores(shape: SessionShape, size: IntArray, starts: BoolArray) -> FloatArray:
    """(J,) the mean score of the gap before each job."""
    within, before = np.array(shape.gap_within), np.array(shape.gap_before)
    return np.asarray(np.where(starts, before[size], within[size]))


def deal_sizes(
    shape: SessionShape, count: IntArray, rng: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """(J,) index of each job's gang size, and whether it begins a session.

    A session ends after each job with the chance 1 / length. The next one is of another size,
    drawn by the sessions that the remaining jobs of each size make, so that every size has exactly
    the jobs asked for; the last size that is left goes on to the end.

    Args:
        shape: of the sessions.
        count: (G,) jobs of each size, J in all.
        rng: draws.
    """
    end = 1 / np.array(shape.length)
    size, starts = _deal(count, end, rng.random((int(count.sum()), 2)))
    return size, starts


@compiled
def _deal(count: IntArray, end: FloatArray, draws: FloatArray) -> tuple[IntArray, BoolArray]:
    left = count.copy()
    size = np.zeros(len(draws), np.int64)
    starts = np.zeros(len(draws), np.bool_)
    now = -1
    for job in range(len(draws)):
        if now < 0 or left[now] == 0 or draws[job, 0] < end[now]:
            total = 0.0
            for index in range(len(left)):
                if index != now:
                    total += left[index] * end[index]
            if total > 0.0:
                starts[job] = True
                before = now
                mark = draws[job, 1] * total
                for index in range(len(left)):
                    if index != before and left[index] > 0:
                        now = index
                        mark -= left[index] * end[index]
                        if mark < 0.0:
                            break
        size[job] = now
        left[now] -= 1
    return size, starts
