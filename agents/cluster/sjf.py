"""Shortest job first, among what fits."""

from __future__ import annotations

from agents.cluster.non_preemptive import IntArray, NonPreemptive
from agents.cluster.policy import Knowledge
from envs.cluster.workload.trace import Trace


class SJF(NonPreemptive):
    """The shortest jobs start first and run to their end; one that does not fit is passed over."""

    name = "sjf"
    knows: Knowledge = "durations"
    blocking = False

    def priority(self, trace: Trace) -> IntArray:
        """(J,) seconds."""
        return trace.duration_s
