"""Flows through allocated pipes: static rates that are not borrowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.network import NO_CHANNEL, Network
from envs.step.plans import BandwidthAllocation

FloatArray = NDArray[np.float64]


def piped_network(network: Network, allocation: BandwidthAllocation) -> Network:
    """The network with K + C links: what the allocation leaves of each link, then the pipes.

    The pipe of channel c is link K + c, of the rate allocated to c, and stands in the place of the
    links of c in the channel and in every path that runs over it. Flows over these paths share
    their own pipe and nothing else between the NICs; flows over the links below K (the paths of
    `network`) share what no pipe has been given.

    Raises:
        InputError: the allocation breaks a rule of `BandwidthAllocation.violations`.
    """
    violations = allocation.violations(network)
    if violations:
        raise InputError("; ".join(violations), file="allocation")
    k, channels = network.num_links, network.num_channels
    given = network.incidence @ allocation.rate
    left = np.maximum(network.link_capacity - given, 0.0)  # violations allow for rounding
    paths, path_ptr = [], [0]
    for path, channel in enumerate(network.path_channel):
        links = network.path_links[network.path_ptr[path] : network.path_ptr[path + 1]]
        if channel != NO_CHANNEL:
            own = np.isin(links, network.links_of(channel))
            first = int(np.argmax(own))
            links = np.concatenate((links[:first], [k + channel], links[first:][~own[first:]]))
        paths.append(links)
        path_ptr.append(path_ptr[-1] + len(links))
    return replace(
        network,
        link_names=(*network.link_names, *(f"pipe {name}" for name in network.channel_names)),
        link_capacity=np.concatenate((left, allocation.rate)),
        channel_ptr=np.arange(channels + 1),
        channel_links=k + np.arange(channels),
        path_ptr=np.array(path_ptr, dtype=np.int64),
        path_links=np.concatenate([*paths, np.zeros(0, dtype=np.int64)]).astype(np.int64),
    )
