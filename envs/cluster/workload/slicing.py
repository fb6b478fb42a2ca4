"""Parts of a trace. Submissions stay what they were: `Trace.canonical` moves a part to second 0."""

from __future__ import annotations

import numpy as np

from envs.cluster.workload.trace import UNKNOWN, Labels, Trace
from envs.errors import InputError

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


def of_queue(trace: Trace, *queues: str) -> Trace:
    """The jobs of some virtual clusters.

    Raises:
        InputError: the trace does not name such a queue.
    """
    return trace.take(_labelled(trace.queue, queues, trace.name, "queue"))


def of_user(trace: Trace, *users: str) -> Trace:
    """The jobs of some users.

    Raises:
        InputError: the trace does not name such a user.
    """
    return trace.take(_labelled(trace.user, users, trace.name, "user"))


def at_most_gpus(trace: Trace, gpus: int) -> Trace:
    """The jobs that ask for at most `gpus` GPUs."""
    return trace.take(np.flatnonzero(trace.num_gpus <= gpus))


def head(trace: Trace, jobs: int) -> Trace:
    """The first jobs; all of them where there are fewer.

    Raises:
        InputError: `jobs` is negative.
    """
    if jobs < 0:
        raise InputError(f"{jobs} is negative", field="head")
    return trace.take(slice(0, jobs))


def _labelled(
    labels: Labels, wanted: tuple[str, ...], name: str, field: str
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    present = [labels.names[code] for code in np.unique(labels.codes[labels.codes != UNKNOWN])]
    for label in wanted:
        if label not in present:
            known = ", ".join(present[:_SHOWN]) + (", ..." if len(present) > _SHOWN else "")
            message = f"{label!r} is no {field} of this trace (known: {known or 'none'})"
            raise InputError(message, file=name, field=field)
    codes = [labels.names.index(label) for label in wanted]
    return np.flatnonzero(np.isin(labels.codes, codes))
