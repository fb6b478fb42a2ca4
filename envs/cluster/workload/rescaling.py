"""The same jobs submitted faster or slower: another load on the same cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.cluster.workload.trace import Trace
from envs.errors import InputError

_LATEST = 2**53  # seconds; above it not every whole number is a float


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
    if since[-1] + trace.submit_s[0] > _LATEST:
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
