"""Weighted max-min shares of the channels of a network, as an allocation of its bandwidth."""

from __future__ import annotations

import numpy as np

from envs.errors import InputError
from envs.hardware.network import Network
from envs.network.max_min import FloatArray, max_min_rates
from envs.step.plans import BandwidthAllocation


def weighted_allocation(network: Network, weight: FloatArray) -> BandwidthAllocation:
    """The weighted max-min shares of the channels: what weights (C,) make of a network.

    Every channel is a flow over its links. Any weights that are finite and not negative give a
    feasible allocation, in which no channel of positive weight can get more without taking from
    one that has no more per weight. A channel of weight 0 gets nothing.

    Raises:
        InputError: a weight is negative or not finite, their number is not C, or a channel has no
            link of finite capacity.
    """
    if np.shape(weight) != (network.num_channels,):
        raise InputError(
            f"has shape {np.shape(weight)}, there are {network.num_channels} channels",
            field="weight",
        )
    return BandwidthAllocation(
        max_min_rates(
            network.link_capacity, network.channel_ptr, network.channel_links, weight=weight
        )
    )
