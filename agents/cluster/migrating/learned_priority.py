"""The order of a learned Gittins index over the work that jobs still need."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from envs.cluster.duration_features import DurationFeatures
from envs.errors import InputError
from envs.simulation.cluster import ClusterSimulator
from envs.simulation.cluster_state import RUNNING, ClusterState
from models.artifacts import read_json_object, sha256_of
from models.duration import GittinsPriority
from models.duration_file import SPEC_FILE, load_durations

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Index = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class LearnedPriority:
    """Jobs by descending Gittins index per GPU; those that run count a little more.

    Indices are those of Gittins (1979) for the posterior of a network: the best chance to finish
    per second of work. They are worked out once for every job and instant.

    Args:
        index: log indices of rows of `DurationFeatures`: `models.duration.GittinsPriority`.
        history: K of the rows.
        gpus: exponent of the GPUs by which an index is divided; 1: per GPU.
        staying: added to the log index of a running job, and of one that has just stopped: where
            jobs stop one after the other, the order does not change by it.

    Raises:
        InputError: a number is not finite.
    """

    name = "learned_gittins"
    knows: Knowledge = "predictions"

    def __init__(self, index: Index, history: int, gpus: float, staying: float) -> None:
        for field, value in (("gpus", gpus), ("staying", staying)):
            if not np.isfinite(value):
                raise InputError(f"{value} is not finite", field=field)
        self.index, self.history, self.gpus, self.staying = index, history, gpus, staying

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing has finished."""
        self._features = DurationFeatures(simulator, self.history)
        self._at = -np.inf  # the instant of `_known`
        self._known = np.full(len(simulator.trace), np.nan)  # log indices; nan: nobody asked yet

    def copy(self) -> LearnedPriority:
        """An independent copy."""
        twin = copy.copy(self)
        twin._features, twin._known = self._features.copy(), self._known.copy()
        return twin

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) keys of settled jobs, the least first."""
        now = float(state.clock[0]["now"])
        if self._at != now:
            self._at = now
            self._known[:] = np.nan
        new = jobs[np.isnan(self._known[jobs])]
        if len(new):
            self._known[new] = self.index(self._features.rows(state, new))
        records = state.jobs[jobs]
        ran = (records["executed"] > 0.0) & (records["since"] == now)  # until this instant
        index = self._known[jobs] + self.staying * ((records["status"] == RUNNING) | ran)
        key: FloatArray = self.gpus * np.log(np.maximum(records["gpus"], 1)) - index
        return key


def from_folder(path: str, gpus: float, staying: float, temperature: float) -> LearnedPriority:
    """A fresh order by the posterior in a folder, which is read when it is first asked for.

    Args:
        path: the folder that `experiments.train model=durations` wrote.
        gpus: exponent of the GPUs by which an index is divided.
        staying: added to the log index of a running job.
        temperature: by which the logits of the posterior are divided.

    Raises:
        InputError: the folder holds no posterior, a number is not finite, or the temperature not
            positive.
    """
    folder = Path(path)
    read_json_object(folder / SPEC_FILE)  # before its hash: says what is wrong with it
    index, history = _read(folder, sha256_of(folder / SPEC_FILE), temperature)
    return LearnedPriority(index, history, gpus, staying)


@lru_cache(maxsize=4)
def _read(folder: Path, spec_sha256: str, temperature: float) -> tuple[GittinsPriority, int]:
    """Indices and K; the hash tells a folder that was written anew from what it was before."""
    del spec_sha256
    posterior = load_durations(folder)
    return GittinsPriority.of(posterior, temperature), posterior.config.history
