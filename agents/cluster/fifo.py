"""First in, first out."""

from __future__ import annotations

import numpy as np

from agents.cluster.non_preemptive import IntArray, NonPreemptive
from agents.cluster.policy import Knowledge
from envs.cluster.workload.trace import Trace


class FIFO(NonPreemptive):
    """Jobs start in the order of their submission; one that does not fit blocks the others."""

    name = "fifo"
    knows: Knowledge = "nothing"
    blocking = True

    def priority(self, trace: Trace) -> IntArray:
        """(J,) all equal."""
        return np.zeros(len(trace), np.int64)
