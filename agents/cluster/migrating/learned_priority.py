"""The order of a learned Gittins index over the work jobs still need, and of what else counts.

What counts beside the index: the job's own state, and what its siblings will tell. Siblings of a
job are those submitted shortly before and after it that ask for the same GPUs. They take similar
times, so that what one of them still needs is learned from another that is ahead of it. An index
of the job alone does not see that: as long as somebody else finds out, a job had better wait, and
one that many wait to learn from had better run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import create_model

from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.cluster.environment.duration_features import DurationFeatures, newly_finished
from envs.cluster.environment.observation import minutes, neighbours
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import attained_by
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, NONE, RUNNING, ClusterState
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError, refused_in
from envs.forms import Form, read_form
from models.artifacts import read_json_object
from models.durations.index import read_posterior

SIBLINGS = 12  # of a job on either side
FADES_RANKS = 4.0  # places in the order of submission in which a sibling's weight falls to 1 / e
PATIENCE = 5.0  # times the work that a job is believed to be in all, after which it is overdue
FADES_S = 3600.0  # seconds between two submissions in which it does

RUNS = "runs"  # changes within an instant, and is no column
COLUMNS = (
    "gpus", "fresh", "attained", "gpus_attained", "age", "expected", "spread", "unseen",
    "finished_long", "finished", "ahead_running", "ahead_waiting", "ahead_together",
    "behind", "behind_running", "behind_together", "before", "before_together", "overdue",
)  # fmt: skip
NAMES = (RUNS, *COLUMNS)


class PriorityFeatures:
    """Columns about jobs, of the order of 1.

    *Time* of t seconds is ln(1 + t / 60) / 4. A sibling weighs e^(-r/4), r its rank in the order of
    submission seen from the job, or, *together*, e^(-h), h the hours between the two submissions.
    It is *ahead* where it has done more work, *behind* where it has done no more, and among those
    *before* where neither has done any and it was submitted first.

    | column | |
    |---|---|
    | gpus | ln GPUs |
    | fresh | 1 if it has done no work |
    | attained | time of the work it has done - 1, or -1 |
    | gpus_attained | ln GPUs if it has done some work, or 0 |
    | age | time since it was submitted - 1.5 |
    | expected | (mean of ln remaining seconds - 10) / 3, of the posterior |
    | spread | deviation of ln remaining / 2 - 1 |
    | unseen | share of the siblings that have not arrived, or do not exist |
    | finished_long | mean time of finished siblings' work less that of all finished jobs; 0: none |
    | finished | weight of finished siblings / 4 |
    | ahead_running, ahead_waiting | weight of the siblings ahead that run; that wait |
    | ahead_together | weight of the siblings ahead, together, / 2 |
    | behind | weight of the siblings behind / 3 |
    | behind_running | weight of those of them that run |
    | behind_together | weight of the siblings behind, together, / 4 |
    | before, before_together | weight of the siblings before / 2; together / 4 |
    | overdue | ln of the age over 5 times its work done and expected, e^(mean of ln); 0: less |

    Args:
        simulator: at its start.
    """

    def __init__(self, simulator: ClusterSimulator) -> None:
        self._siblings = neighbours(simulator.trace, SIBLINGS)
        self._finished = np.zeros(2)  # jobs that have finished, sum of their times
        self._told = np.zeros(len(simulator.trace), np.bool_)

    def rows(self, state: ClusterState, jobs: IntArray, expected: FloatArray) -> FloatArray:
        """(A, 19) of settled jobs that have arrived.

        Args:
            state: of the cluster.
            jobs: (A,).
            expected: (A, 2) mean and deviation of the logarithm of their remaining seconds.
        """
        out = np.zeros((len(jobs), len(COLUMNS)))
        fill(state, self._siblings, self._finished, self._told, jobs, expected, out)
        return out


@compiled
def fill(
    state: ClusterState,
    siblings: NDArray[np.int32],
    finished: FloatArray,
    done_before: NDArray[np.bool_],
    jobs: IntArray,
    expected: FloatArray,
    out: FloatArray,
) -> None:
    """Write the rows of `jobs`, once the jobs that have finished since are known."""
    state = borrowed(state)
    if state.clock[0].finished != finished[0]:
        for job in newly_finished(state, done_before):
            finished[1] += minutes(state.jobs[job].work)
        finished[0] = state.clock[0].finished
    usual = finished[1] / max(finished[0], 1.0)
    now = state.clock[0].now
    for place in range(len(jobs)):
        job, row = jobs[place], out[place]
        record = state.jobs[job]
        mine = attained_by(record, now)
        gpus = log(max(record.gpus, 1))
        row[0] = gpus
        row[1] = mine == 0.0
        row[2] = minutes(mine) - 1.0
        row[3] = gpus if mine > 0.0 else 0.0
        row[4] = minutes(now - record.submit) - 1.5
        row[5] = (expected[place, 0] - 10.0) / 3.0
        row[6] = expected[place, 1] / 2.0 - 1.0
        in_all = mine + exp(expected[place, 0])
        row[18] = log(max((now - record.submit) / (PATIENCE * in_all), 1.0))
        compare(state, job, mine, siblings[job], usual, row)


@compiled_inner
def compare(
    state: ClusterState,
    job: int,
    mine: float,
    siblings: NDArray[np.int32],
    usual: float,
    row: FloatArray,
) -> None:
    """Write the columns about the siblings of a job that has done so many seconds of work."""
    half, now = len(siblings) // 2, state.clock[0].now
    absent, ended, took = 0, 0, 0.0
    for column in range(len(siblings)):
        other = siblings[column]
        if other == NONE or state.jobs[other].status == FUTURE:
            absent += 1
            continue
        beside = state.jobs[other]
        near = exp(-(column % half + 1) / FADES_RANKS)
        together = exp(-abs(beside.submit - state.jobs[job].submit) / FADES_S)
        runs = 1.0 if beside.status == RUNNING else 0.0
        if beside.status == FINISHED:
            ended += 1
            took += minutes(beside.work)
            row[9] += near / 4.0
        elif attained_by(beside, now) > mine:
            row[10] += runs * near
            row[11] += (1.0 - runs) * near
            row[12] += together / 2.0
        else:
            row[13] += near / 3.0
            row[14] += runs * near
            row[15] += together / 4.0
            if mine == 0.0 and other < job:
                row[16] += near / 2.0
                row[17] += together / 4.0
    row[7] = absent / len(siblings)
    if ended:
        row[8] = took / ended - usual


Posterior = Callable[[NDArray[np.float32]], NDArray[np.float32]]
# Added to a log index where nothing else is given; by `COLUMNS`, and `runs` for a running job.
# A literal: the keys of a config are read from it without an import.
WEIGHTS: Mapping[str, float] = MappingProxyType({
    "runs": 1.0, "gpus": -0.85, "fresh": 0.0, "attained": 0.0, "gpus_attained": 0.0, "age": 0.0,
    "expected": 0.0, "spread": 0.0, "unseen": 0.0, "finished_long": 0.0, "finished": 0.0,
    "ahead_running": 0.0, "ahead_waiting": 0.0, "ahead_together": 0.0, "behind": 0.0,
    "behind_running": 0.0, "behind_together": 0.0, "before": 0.0, "before_together": 0.0,
    "overdue": 1.0,
})  # fmt: skip
_columns: dict[str, Any] = dict.fromkeys(NAMES, float)
Weights: type[Form] = create_model("Weights", __base__=Form, **_columns)
WEIGHTS_KIND = "meshwright.priority_weights"


class LearnedPriority:
    """Jobs by descending log Gittins index and what else counts for them.

    Indices are those of Gittins (1979) for the posterior of a network: the best chance to finish
    per second of work. A weighted sum of `PriorityFeatures` is added to their logarithms. Both are
    worked out once for every job and instant.

    Source:
        Own work (`docs/learned_schedulers.md`); the index is that of Gittins, "Bandit Processes and
        Dynamic Allocation Indices", Journal of the Royal Statistical Society B 41(2), 1979.

    Args:
        posterior: (A, 3) of rows of `DurationFeatures`: log index; mean and deviation of the
            logarithm of the remaining seconds: `models.durations.index.GittinsPriority`.
        history: K of the rows.
        weights: of `NAMES`, all of them: `runs` is added for a running job, and
            for one that has just stopped: where jobs stop one after the other, the order does not
            change by it.
        folder: that the posterior was read from.

    Attributes:
        believed: (J, 2) mean and deviation of the logarithm of the remaining seconds, when last
            asked about; nan of jobs not asked about.

    Raises:
        InputError: a weight is missing, unknown or not finite.
    """

    name = "learned_gittins"
    knows: Knowledge = "predictions"

    def __init__(
        self,
        posterior: Posterior,
        history: int,
        weights: Mapping[str, float],
        folder: Path | None = None,
    ) -> None:
        self.posterior, self.history, self.folder = posterior, history, folder
        self.weights = checked(weights)
        self._columns = np.array([self.weights[name] for name in COLUMNS])

    def reset(self, simulator: ClusterSimulator) -> None:
        self._durations = DurationFeatures(simulator, self.history)
        self._features = PriorityFeatures(simulator)
        self._at = -np.inf  # the instant of `_known`
        self._known = np.full(len(simulator.trace), np.nan)  # nan: not asked yet
        self.believed = np.full((len(simulator.trace), 2), np.nan)

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) keys of settled jobs, the least first."""
        now = float(state.clock[0]["now"])
        if self._at != now:
            self._at = now
            self._known[:] = np.nan
        new = jobs[np.isnan(self._known[jobs])]
        if len(new):
            found = self.posterior(self._durations.rows(state, new)).astype(np.float64)
            rows = self._features.rows(state, new, found[:, 1:])
            self._known[new] = found[:, 0] + rows @ self._columns
            self.believed[new] = found[:, 1:]
        records = state.jobs[jobs]
        ran = (records["executed"] > 0.0) & (records["since"] == now)  # until this instant
        runs = (records["status"] == RUNNING) | ran
        key: FloatArray = -(self._known[jobs] + self.weights[RUNS] * runs)
        return key


def checked(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights in the order of `NAMES`.

    Raises:
        InputError: one is missing, unknown or not finite.
    """
    return read_form(Weights, dict(weights), inside="weights").model_dump()


def from_folder(path: str, weights: Mapping[str, float] | str = WEIGHTS) -> LearnedPriority:
    """A fresh order by the posterior in a folder, which is read when it is first asked for.

    Args:
        path: the folder that `experiments.train task=durations` wrote.
        weights: of `NAMES`, or the file that `experiments.train task=priority` wrote.

    Raises:
        InputError: the folder holds no posterior, the file no weights, or a weight is missing,
            unknown or not finite.
    """
    given = read_weights(Path(weights)) if isinstance(weights, str) else weights
    return LearnedPriority(*read_posterior(Path(path)), given, Path(path))


def read_weights(file: Path) -> dict[str, float]:
    """The weights in a file that `experiments.train task=priority` wrote.

    Raises:
        InputError: naming the file and what is wrong with it.
    """
    document = read_json_object(file)
    if document.get("kind") != WEIGHTS_KIND or not isinstance(document.get("weights"), dict):
        raise InputError(f"is not of kind {WEIGHTS_KIND}", file=file, field="kind")
    with refused_in(file):
        return checked(document["weights"])
