"""How busy the hours of a week are."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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
    def flat(cls) -> WeeklyClock:
        """Every hour is as busy as any other."""
        return cls(np.ones(DAY_H), np.ones(WEEK_D))

    @classmethod
    def fit(cls, clock_s: IntArray) -> WeeklyClock:
        """The shape of arrivals at `clock_s` seconds after a Monday 0:00, ascending.

        Jobs come in bursts, so hours differ by chance alone. A shape is kept only when the hours
        (days) differ more than after shifting every day (week) by a random number of hours (days),
        at a chance of 1 in 100; else it is flat. So it is with too few arrivals to tell.
        """
        if len(clock_s) < LEAST_ARRIVALS:
            return cls.flat()
        hour = clock_s // HOUR_S
        whole = np.arange(-(-hour[0] // DAY_H), (hour[-1] + 1) // DAY_H)  # days fully covered
        counts = np.bincount(hour - hour[0], minlength=1)
        by_day = np.zeros((len(whole), DAY_H))
        for row, day in enumerate(whole):
            by_day[row] = counts[day * DAY_H - hour[0] :][:DAY_H]
        daily = _shape(by_day) if len(whole) >= LEAST_DAYS else np.ones(DAY_H)
        mondays = np.flatnonzero(whole % WEEK_D == 0)
        first = mondays[0] if len(mondays) else len(whole)
        weeks = (len(whole) - first) // WEEK_D
        by_week = by_day.sum(axis=1)[first : first + weeks * WEEK_D].reshape(weeks, WEEK_D)
        weekly = _shape(by_week) if weeks >= LEAST_WEEKS else np.ones(WEEK_D)
        return cls(daily, weekly)

    @property
    def rates(self) -> FloatArray:
        """(168,) rate of every hour of a week; mean 1."""
        return np.asarray(np.outer(self.weekly, self.daily).ravel())

    def busy_time(self, clock_s: IntArray) -> FloatArray:
        """Busy seconds from 0 to each of `clock_s`."""
        ends = np.concatenate([[0.0], np.cumsum(self.rates * HOUR_S)])
        week, rest = clock_s // WEEK_S, clock_s % WEEK_S
        hour = rest // HOUR_S
        return np.asarray(week * ends[-1] + ends[hour] + (rest % HOUR_S) * self.rates[hour])


def _shape(counts: FloatArray) -> FloatArray:
    """(C,) relative column means of `counts` (R, C), or ones where chance explains them."""
    rows, columns = counts.shape
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


@numba.njit(cache=True)
def arrival_times(
    gap: FloatArray, burst: NDArray[np.bool_], scale: float, rates: FloatArray
) -> FloatArray:
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
