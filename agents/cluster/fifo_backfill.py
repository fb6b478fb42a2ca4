"""First in, first out, among what fits."""

from __future__ import annotations

import numpy as np

from agents.cluster.non_preemptive import IntArray, NonPreemptive
from agents.cluster.policy import Knowledge
from envs.cluster.workload.trace import Trace


class FIFOBackfill(NonPreemptive):
    """Jobs start in the order of their submission; one that does not fit is passed over.

    Nothing is reserved: large gangs may wait for as long as small ones keep coming.
    """

    name = "fifo_backfill"
    knows: Knowledge = "nothing"
    blocking = False

    def priority(self, trace: Trace) -> IntArray:
        """(J,) all equal."""
        return np.zeros(len(trace), np.int64)
