"""A trace split by time into parts to train, validate and test on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from envs.cluster.workload.slicing import submitted_between
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


@dataclass(frozen=True, eq=False)
class Window:
    """The jobs submitted at `start_s` or later and before `end_s`."""

    name: str
    start_s: int
    end_s: int
    trace: Trace  # its submissions are those of the whole trace


def split_by_time(trace: Trace, shares: Mapping[str, float]) -> tuple[Window, ...]:
    """Windows one after the other; each takes its share of the span of submissions.

    A job belongs to the window in which it is submitted, whenever it ends: every job is in exactly
    one. The first window starts with the first submission, the last ends a second after the last;
    limits between them are whole seconds.

    Args:
        trace: J jobs, at least one.
        shares: of the span, by the name of the window, in order of time.

    Raises:
        InputError: no job, a share that is not above 0, shares that do not sum to 1.
    """
    if not len(trace):
        raise InputError("no job to split", file=trace.name)
    for name, share in shares.items():
        if not share > 0:
            raise InputError(f"{share} is not above 0", field=name)
    if not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-9):
        raise InputError(f"the shares sum to {sum(shares.values()):g}, not to 1", field="windows")
    first, span = int(trace.submit_s[0]), trace.span_s + 1
    windows, start, passed = [], first, 0.0
    for number, (name, share) in enumerate(shares.items(), start=1):
        passed += share
        end = first + (span if number == len(shares) else round(passed * span))
        windows.append(Window(name, start, end, submitted_between(trace, start, end)))
        start = end
    return tuple(windows)
