"""Parts of a trace, by number, time or size, and traces submitted faster or slower."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from envs.cluster.workload.trace import UNKNOWN, Labels, Trace
from envs.errors import InputError
from envs.units import EXACT

_SHOWN = 12  # known names in an error


def submitted_between(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The jobs submitted at `start_s` or later and before `end_s`.

    Raises:
        InputError: the end is before the start.
    """
    if not start_s <= end_s:
        raise InputError(f"{end_s} is before {start_s}", field="end_s")
    first, last = np.searchsorted(trace.submit_s, [start_s, end_s], side="left")
    return trace.take(slice(int(first), int(last)))


def labelled(trace: Trace, field: str, *wanted: str) -> Trace:
    """The jobs of some virtual clusters, `field` queue, or of some users, `field` user.

    Raises:
        InputError: the trace does not name such a queue or user.
    """
    labels: Labels = getattr(trace, field)
    present = [labels.names[code] for code in np.unique(labels.codes[labels.codes != UNKNOWN])]
    for label in wanted:
        if label not in present:
            known = ", ".join(present[:_SHOWN]) + (", ..." if len(present) > _SHOWN else "")
            message = f"{label!r} is no {field} of this trace (known: {known or 'none'})"
            raise InputError(message, file=trace.name, field=field)
    codes = [labels.names.index(label) for label in wanted]
    return trace.take(np.flatnonzero(np.isin(labels.codes, codes)))


def at_most_gpus(trace: Trace, gpus: int) -> Trace:
    """The jobs that ask for at most `gpus` GPUs."""
    return trace.take(np.flatnonzero(trace.num_gpus <= gpus))


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
    passed = list(accumulate(shares.values()))[:-1]
    limits = [first, *(first + round(share * span) for share in passed), first + span]
    return tuple(
        Window(name, start, end, submitted_between(trace, start, end))
        for name, (start, end) in zip(shares, pairwise(limits), strict=True)
    )


def stretch(trace: Trace, factor: float) -> Trace:
    """Every job `factor` times as long after the first as before, to the nearest second.

    Jobs that were submitted in an order are submitted in it still, some perhaps in one second.

    Raises:
        InputError: the factor is not above 0, or a submission would be too late to be exact.
    """
    if not (factor > 0 and np.isfinite(factor)):
        raise InputError(f"{factor} is not above 0", field="stretch")
    if not len(trace):
        return trace
    since = (trace.submit_s - trace.submit_s[0]) * float(factor)
    if since[-1] + trace.submit_s[0] > EXACT:
        raise InputError(f"{factor} makes the trace too long", file=trace.name, field="stretch")
    return replace(trace, submit_s=trace.submit_s[0] + np.rint(since).astype(np.int64))


def to_offered_load(trace: Trace, load: float, gpus: int) -> Trace:
    """The trace stretched so that it offers `load` to `gpus` GPUs, up to rounding to seconds.

    Raises:
        InputError: the load is not above 0, `gpus` is below 1, all jobs are submitted at once, or
            the span would be below a second.
    """
    if not (load > 0 and np.isfinite(load)):
        raise InputError(f"{load} is not above 0", field="load")
    stretched = stretch(trace, trace.offered_load(gpus) / load)
    if stretched.span_s == 0:
        raise InputError(f"{load} would have all jobs submitted at once", field="load")
    return stretched
