"""The state of a running episode as plain bytes, for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.cluster.environment.episode import SchedulingEpisode
from envs.errors import InputError


def snapshot(episode: SchedulingEpisode) -> dict[str, Tensor]:
    """Every array of the simulator's state and of what schedulers know, as (n,) uint8."""
    return {
        name: torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
        for name, array in _arrays(episode)
    }


def restored(episode: SchedulingEpisode, arrays: Mapping[str, Tensor]) -> None:
    """Bring a fresh episode of the same instance to the state of a snapshot.

    Advice begins anew from there: what it has gathered of jobs that finished it gathers again, by
    their number and not in the order in which they finished.

    Raises:
        InputError: the snapshot is of another instance.
    """
    for name, array in _arrays(episode):
        if name not in arrays or arrays[name].numel() != array.nbytes:
            raise InputError("is not of this run's episode", record=name, field="episodes")
        saved = np.frombuffer(arrays[name].numpy().tobytes(), array.dtype)
        array[...] = saved.reshape(array.shape)
    adviser = episode.observation.adviser
    if adviser is not None:
        episode.advice = adviser.begin(episode)


def _arrays(episode: SchedulingEpisode) -> Iterator[tuple[str, NDArray[Any]]]:
    for group, record in (("state", episode.simulator.state), ("book", episode.book)):
        for field, value in record._asdict().items():
            yield f"{group}.{field}", value
