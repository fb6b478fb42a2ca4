"""A learned predictor as the interference model of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.cluster.interference.assignment import IntArray, assign
from envs.cluster.interference.measured import nearest_below
from envs.cluster.interference.rates import FloatArray, RateModel
from envs.cluster.interference.tabulated import TabulatedRates
from envs.cluster.workload.trace import Trace
from models.interference.measurements import MeasuredJob
from models.interference.predictor import InterferencePredictor, find_predictor, load_predictor


@dataclass(frozen=True)
class KnownJobs:
    """Gives every job of a trace one of the jobs that a predictor knows.

    By its label, or one drawn by seed. Of the measured gang sizes the next smaller one stands in,
    or the smallest; of its placements the one on the fewest nodes.
    """

    jobs: tuple[MeasuredJob, ...]

    def __call__(self, trace: Trace, seed: int) -> IntArray:
        """(J,) jobs of the predictor.

        Raises:
            InputError: a job has a label that the predictor does not know.
        """
        labels = tuple(dict.fromkeys(job.label for job in self.jobs))
        label = assign(trace, labels, self._suits, seed)
        wanted, of_job = np.unique(np.stack([label, trace.num_gpus]), axis=1, return_inverse=True)
        rows = [self._row(labels[at], int(gpus)) for at, gpus in wanted.T]
        return np.array(rows, np.int64)[of_job.reshape(-1)]

    def _row(self, label: str, gpus: int) -> int:
        """The known job that stands for one with this label on so many GPUs."""
        own = [(job.gpus, job.nodes, at) for at, job in enumerate(self.jobs) if job.label == label]
        size = nearest_below(sorted({row[0] for row in own}), gpus)
        return min(row for row in own if row[0] == size)[2]

    def _suits(self, gangs: IntArray) -> NDArray[np.bool_]:
        """Jobs without a label may have any."""
        return np.ones((len(gangs), len({job.label for job in self.jobs})), np.bool_)


@dataclass(frozen=True, eq=False)
class OneTable:
    """A predictor under the conditions of one of its tables, as `tabulated.Predictor`."""

    predictor: InterferencePredictor
    table: int

    def __call__(self, own: IntArray, neighbours: IntArray) -> FloatArray:
        """(B,) rates."""
        return self.predictor.rates(self.table, own, neighbours)


class LearnedInterference(TabulatedRates):
    """Rates that `models.interference.network` predicts, for up to `largest` neighbours.

    Jobs are neighbours as in the measurements: on one partial GPU (Gavel's), or on several nodes
    with a node in common (DeepShare's). Whether jobs fit into the memory of a GPU together is not
    predicted: all sets of neighbours count as feasible.

    Args:
        path: a run of `experiments.train model=interference`, or the folder of a predictor.
        source: which of the run's predictors: gavel or deepshare.
        table: conditions: a GPU type of Gavel's tables, or deepshare.
        largest: of the sets of neighbours that are tabulated: 1, 2 or 3.
        alone: speed and locality of jobs without neighbours.
        seed: of the jobs without a model.

    Raises:
        InputError: the folder or one of the values is wrong.
    """

    def __init__(
        self, path: str, source: str, table: str, largest: int, alone: RateModel, seed: int
    ) -> None:
        predictor = load_predictor(find_predictor(path, source))
        predict = OneTable(predictor, predictor.table(table))
        jobs = KnownJobs(predictor.jobs)
        super().__init__(
            "learned", predict, len(predictor.jobs), jobs, alone, largest, predictor.scope, seed
        )
