"""The order of a learned Gittins index over the work jobs still need, and of what else counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents.cluster.migrating.priority_features import COLUMNS, NAMES, RUNS, PriorityFeatures
from agents.cluster.policy import Knowledge
from envs.cluster.environment.duration_features import DurationFeatures
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import RUNNING, ClusterState
from envs.errors import InputError
from models.artifacts import read_json_object, sha256_of
from models.durations.index import GittinsPriority
from models.durations.network import SPEC_FILE, load_durations

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Told = Callable[[NDArray[np.float32]], NDArray[np.float32]]
WEIGHTS_KIND = "meshwright.priority_weights"


class LearnedPriority:
    """Jobs by descending log Gittins index and what else counts for them.

    Indices are those of Gittins (1979) for the posterior of a network: the best chance to finish
    per second of work. A weighted sum of `PriorityFeatures` is added to their logarithms. Both are
    worked out once for every job and instant.

    Args:
        told: (A, 3) of rows of `DurationFeatures`: log index; mean and deviation of the logarithm
            of the remaining seconds: `models.durations.index.GittinsPriority`.
        history: K of the rows.
        weights: of `priority_features.NAMES`, all of them: `runs` is added for a running job, and
            for one that has just stopped: where jobs stop one after the other, the order does not
            change by it.

    Raises:
        InputError: a weight is missing, unknown or not finite.
    """

    name = "learned_gittins"
    knows: Knowledge = "predictions"

    def __init__(self, told: Told, history: int, weights: Mapping[str, float]) -> None:
        self.told, self.history = told, history
        self.weights = checked(weights)
        self._columns = np.array([self.weights[name] for name in COLUMNS])

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing has finished."""
        self._durations = DurationFeatures(simulator, self.history)
        self._features = PriorityFeatures(simulator)
        self._at = -np.inf  # the instant of `_known`
        self._known = np.full(len(simulator.trace), np.nan)  # nan: nobody asked yet

    def copy(self) -> LearnedPriority:
        """An independent copy."""
        twin = copy.copy(self)
        twin._durations, twin._features = self._durations.copy(), self._features.copy()
        twin._known = self._known.copy()
        return twin

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) keys of settled jobs, the least first."""
        now = float(state.clock[0]["now"])
        if self._at != now:
            self._at = now
            self._known[:] = np.nan
        new = jobs[np.isnan(self._known[jobs])]
        if len(new):
            told = self.told(self._durations.rows(state, new)).astype(np.float64)
            rows = self._features.rows(state, new, told[:, 1:])
            self._known[new] = told[:, 0] + rows @ self._columns
        records = state.jobs[jobs]
        ran = (records["executed"] > 0.0) & (records["since"] == now)  # until this instant
        runs = (records["status"] == RUNNING) | ran
        key: FloatArray = -(self._known[jobs] + self.weights[RUNS] * runs)
        return key


def checked(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights in the order of `priority_features.NAMES`.

    Raises:
        InputError: one is missing, unknown or not finite.
    """
    for name in weights:
        if name not in NAMES:
            told = f"is unknown (known: {', '.join(NAMES)})"
            raise InputError(told, field=f"weights.{name}")
    for name in NAMES:
        if name not in weights:
            raise InputError("is missing", field=f"weights.{name}")
        value = weights[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise InputError(f"{value!r} is no finite number", field=f"weights.{name}")
    return {name: float(weights[name]) for name in NAMES}


def from_folder(path: str, weights: Mapping[str, float] | str) -> LearnedPriority:
    """A fresh order by the posterior in a folder, which is read when it is first asked for.

    Args:
        path: the folder that `experiments.train model=durations` wrote.
        weights: of `priority_features.NAMES`, or the file that `experiments.train model=priority`
            wrote.

    Raises:
        InputError: the folder holds no posterior, the file no weights, or a weight is missing,
            unknown or not finite.
    """
    folder = Path(path)
    read_json_object(folder / SPEC_FILE)  # before its hash: says what is wrong with it
    told, history = _read(folder, sha256_of(folder / SPEC_FILE))
    given = read_weights(Path(weights)) if isinstance(weights, str) else weights
    return LearnedPriority(told, history, given)


def read_weights(file: Path) -> dict[str, float]:
    """The weights in a file that `experiments.train model=priority` wrote.

    Raises:
        InputError: naming the file and what is wrong with it.
    """
    document = read_json_object(file)
    if document.get("kind") != WEIGHTS_KIND or not isinstance(document.get("weights"), dict):
        raise InputError(f"is not of kind {WEIGHTS_KIND}", file=file, field="kind")
    try:
        return checked(document["weights"])
    except InputError as error:
        raise InputError(error.message, file=file, field=error.field) from error


@lru_cache(maxsize=4)
def _read(folder: Path, spec_sha256: str) -> tuple[GittinsPriority, int]:
    """What a posterior tells, and K; by the hash a folder that was written anew is another."""
    del spec_sha256
    posterior = load_durations(folder)
    return GittinsPriority.of(posterior), posterior.config.history
