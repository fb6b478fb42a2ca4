"""The unit in which a picture shows times."""

from __future__ import annotations

from matplotlib.ticker import FuncFormatter

from experiments.step.problem import TimeUnit

UNITS = (
    TimeUnit("days", 86400.0), TimeUnit("h", 3600.0), TimeUnit("min", 60.0), TimeUnit("s", 1.0)
)  # fmt: skip
LEAST = 3  # of a unit that an axis is to show
_SHORT = {"days": "d", "h": "h", "min": "min", "s": "s"}


def unit_for(span_s: float) -> TimeUnit:
    """The largest unit of which `span_s` seconds hold a few."""
    for unit in UNITS:
        if span_s >= LEAST * unit.seconds:
            return unit
    return UNITS[-1]


def in_words(seconds: float) -> str:
    """A duration with its unit: "45 s", "2.5 h", "3 d"."""
    for unit in UNITS:
        if seconds >= unit.seconds:
            return f"{seconds / unit.seconds:.3g} {_SHORT[unit.name]}"
    return f"{seconds:.3g} s"


def duration_ticks(low_s: float, high_s: float) -> list[float]:
    """Round durations from `low_s` to `high_s` seconds, for a logarithmic axis."""
    day = 86400
    steps = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, day, 7 * day, 30 * day, 365 * day, 3650 * day)
    return [float(step) for step in steps if low_s <= step <= high_s]


def duration_formatter() -> FuncFormatter:
    """Ticks of a logarithmic axis in seconds, each in its own unit."""
    return FuncFormatter(lambda value, _: in_words(float(value)))
