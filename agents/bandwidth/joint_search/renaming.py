"""Servers that can change places without a difference to the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.bandwidth.joint_search.pipes import IntArray
from envs.hardware.network import Network


def servers_alike(network: Network, a: int, b: int) -> bool:
    """Whether swapping servers `a` and `b` maps the network onto itself.

    True only with a proof: a renaming of links and channels that swaps the two servers and keeps
    capacities and what runs over what. The renaming tried takes the k-th link (or channel) of a
    kind to the k-th of the swapped kind; a network alike under another renaming only is not seen.
    """
    if a == b:
        return True
    swap = np.arange(network.num_servers)
    swap[[a, b]] = b, a
    ends = list(
        zip(network.channel_source.tolist(), network.channel_destination.tolist(), strict=True)
    )
    channel = _renamed(ends, [(int(swap[s]), int(swap[d])) for s, d in ends])
    if channel is None:
        return False
    rows = [np.flatnonzero(row).tolist() for row in network.incidence]
    capacity = network.link_capacity.tolist()
    before = [(c, tuple(sorted(row))) for c, row in zip(capacity, rows, strict=True)]
    after = [
        (c, tuple(sorted(channel[row].tolist()))) for c, row in zip(capacity, rows, strict=True)
    ]
    return _renamed(before, after) is not None


def _renamed(
    names: Sequence[tuple[object, ...]], wanted: Sequence[tuple[object, ...]]
) -> IntArray | None:
    """(n,) which of `names` each of `wanted` is, the k-th of equal ones the k-th; or None."""
    places: dict[tuple[object, ...], list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    found = []
    for name in wanted:
        if not places.get(name):
            return None
        found.append(places[name].pop(0))
    return np.array(found, dtype=np.int64)
