"""Shortest job first."""

from __future__ import annotations

from agents.cluster.non_preemptive import IntArray, NonPreemptive
from agents.cluster.policy import Knowledge
from envs.cluster.workload.trace import Trace


class SJFStrict(NonPreemptive):
    """The shortest jobs start first and run to their end; one that does not fit blocks the others.

    So do the baselines of Helios' simulator (Hu et al., SC 2021).
    """

    name = "sjf_strict"
    knows: Knowledge = "durations"
    blocking = True

    def priority(self, trace: Trace) -> IntArray:
        """(J,) seconds."""
        return trace.duration_s
