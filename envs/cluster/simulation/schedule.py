"""What became of every job of a trace: the result of a cluster simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
NEVER = -1.0  # start or finish of a job that did not


@dataclass(frozen=True, eq=False)
class Schedule:
    """Times in seconds, one entry per job, in the order of the trace."""

    submit: FloatArray  # (J,)
    start: FloatArray  # (J,) of the first run, or NEVER
    finish: FloatArray  # (J,) or NEVER
    work: FloatArray  # (J,) seconds that the job takes alone
    gpus: FloatArray  # (J,) GPUs held while it runs; fractions where it shares one
    held: FloatArray  # (J,) seconds for which the job has held its GPUs, overheads included
    preemptions: NDArray[np.int32]  # (J,)
    runs: NDArray[np.void] | None = None  # `cluster_state.RUN`; None where no log was kept

    @property
    def finished(self) -> NDArray[np.bool_]:
        """(J,) whether the job has run to its end."""
        finished: NDArray[np.bool_] = self.finish != NEVER
        return finished

    @property
    def jct(self) -> FloatArray:
        """(F,) completion time minus submission of the jobs that finished."""
        return (self.finish - self.submit)[self.finished]

    @property
    def makespan(self) -> float:
        """The last completion, in seconds since the trace's second 0."""
        return float(self.finish.max(initial=0.0))
