"""Problems from random windows of traces, for episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from envs.bounds import Count, Positive, bounded
from envs.cluster.workload.slicing import at_most_gpus, to_offered_load
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.papers.malleable_jobs.generated import SpeedName, problem_of_trace
from experiments.papers.malleable_jobs.problem import AllocationProblem


@bounded
class TraceProblems:
    """Consecutive jobs of a random trace from a random one on, made malleable.

    Args:
        traces: their jobs; those with fewer than a window are left out.
        speeds: models of speed, of which each problem has one.
        machines: least and most of a problem, of `gpus` each.
        gpus: of a machine.
        load: least and most offered load that the window is stretched to, by the jobs' own GPUs.
        jobs: of a window, before those that the slots do not reach are cut off.
        slots: of a problem.
        slot_s: seconds of a slot.

    Raises:
        InputError: no trace has that many jobs.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        *,
        speeds: Annotated[Sequence[SpeedName], MinLen(1)] = ("ring", "parameter_server", "layered"),
        machines: tuple[int, int] = (4, 4),
        gpus: Count = 8,
        load: tuple[float, float] = (1.5, 4.0),
        jobs: Count = 180,
        slots: Count = 60,
        slot_s: Positive = 1800.0,
    ) -> None:
        fitting = [at_most_gpus(trace, machines[0] * gpus) for trace in traces]
        self.traces = [trace for trace in fitting if len(trace) >= jobs]
        if not self.traces:
            raise InputError(
                f"no trace has {jobs}, the most of them {max(map(len, fitting), default=0)}",
                field="jobs",
            )
        self.speeds, self.machines, self.gpus, self.load = list(speeds), machines, gpus, load
        self.jobs, self.slots, self.slot_s = jobs, slots, slot_s
        self._last: tuple[Any, AllocationProblem, Any] | None = None

    def __call__(self, rng: np.random.Generator) -> AllocationProblem:
        """A problem; the one before again where the generator is where it was then."""
        before = rng.bit_generator.state
        if self._last is None or self._last[0] != before:
            problem = self._drawn(rng)
            self._last = before, problem, rng.bit_generator.state
        rng.bit_generator.state = self._last[2]
        return self._last[1]

    def _drawn(self, rng: np.random.Generator) -> AllocationProblem:
        trace = self.traces[int(rng.integers(len(self.traces)))]
        machines = int(rng.integers(self.machines[0], self.machines[1] + 1))
        first = int(rng.integers(len(trace) - self.jobs + 1))
        window = trace.take(slice(first, first + self.jobs)).canonical()
        window = to_offered_load(window, float(rng.uniform(*self.load)), machines * self.gpus)
        return problem_of_trace(
            window, rng, self.speeds[int(rng.integers(len(self.speeds)))], machines=machines,
            slots=self.slots, gpus=self.gpus, slot_s=self.slot_s,
        )  # fmt: skip
