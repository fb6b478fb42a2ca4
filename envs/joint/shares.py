"""Weights of pipes and what they make of a network, for compiled look-ahead."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.hardware.network import Network
from envs.network.filling import Filling, fill, filling

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Shares(NamedTuple):
    """A network whose channels have the weight of their pipe, with working memory.

    The pipe from server s to server e has number s x S + e and, at level l, the weight 2^(l step).
    """

    capacity: FloatArray  # (K,) bytes/s
    channel_ptr: IntArray  # (C + 1,)
    channel_links: IntArray
    pipe: IntArray  # (C,)
    active: IntArray  # (C,) 0..C-1
    priority: IntArray  # (C,) 0
    weight: FloatArray  # (C,) scratch
    rate: FloatArray  # (C,) scratch
    filling: Filling
    step: float  # octaves from a level to the next


def shares_of(network: Network, step: float) -> Shares:
    """The arrays of `network`."""
    c = network.num_channels
    return Shares(
        capacity=np.ascontiguousarray(network.link_capacity, dtype=np.float64),
        channel_ptr=np.ascontiguousarray(network.channel_ptr, dtype=np.int64),
        channel_links=np.ascontiguousarray(network.channel_links, dtype=np.int64),
        pipe=network.channel_pipe,
        active=np.arange(c),
        priority=np.zeros(c, dtype=np.int64),
        weight=np.zeros(c),
        rate=np.zeros(c),
        filling=filling(network.num_links, len(network.channel_links)),
        step=step,
    )


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
def pipe_rates(shares: Shares, level: IntArray, rate: FloatArray) -> None:
    """Write `rate` (S * S,) bytes/s of every pipe where all have `level` (S * S,).

    The weighted max-min shares of the channels (`envs.network.max_min`), added up by pipe.
    """
    top = level[shares.pipe[0]]
    for c in range(len(shares.pipe)):
        top = max(top, level[shares.pipe[c]])
    for c in range(len(shares.pipe)):
        shares.weight[c] = 2.0 ** ((level[shares.pipe[c]] - top) * shares.step)
    fill(
        shares.active, len(shares.active), shares.channel_ptr, shares.channel_links, shares.weight,
        shares.priority, shares.capacity, shares.rate, shares.filling,
    )  # fmt: skip
    rate[:] = 0.0
    for c in range(len(shares.pipe)):
        rate[shares.pipe[c]] += shares.rate[c]
