"""Max-min fair rates of the pairs of devices that have transfers under way.

`envs.network.filling` fills links with flows that take the same of every link they cross. Here a
flow is a class of equal paths of a pair (`envs.step.bottlenecks`), which takes several shares
of a link that several of its paths cross.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.step.bottlenecks import Bottlenecks

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_NONE = -1


class RateScratch(NamedTuple):
    """Working memory of `fair_rates`; one per thread."""

    links: IntArray  # (K,) those that are crossed
    seen: IntArray  # (K,) the filling that crossed each last
    room: FloatArray  # (K,) bytes/s that are not taken
    rest: FloatArray  # (K,) subflows without a rate
    share: FloatArray  # (K,) the level at which these fill the room
    first: IntArray  # (K,) the first row of `Bottlenecks.path_link` on each link
    after: IntArray  # the next row on the same link
    frozen: IntArray  # (P,) the filling in which each class got its rate last
    ticket: IntArray  # (1,) number of the filling


def rate_scratch(network: Bottlenecks) -> RateScratch:
    """Fresh working memory."""
    k, rows = len(network.capacity), len(network.path_link)
    return RateScratch(
        links=np.zeros(k, dtype=np.int64),
        seen=np.zeros(k, dtype=np.int64),
        room=np.zeros(k),
        rest=np.zeros(k),
        share=np.zeros(k),
        first=np.zeros(k, dtype=np.int64),
        after=np.zeros(rows, dtype=np.int64),
        frozen=np.zeros(len(network.pair), dtype=np.int64),
        ticket=np.zeros(1, dtype=np.int64),
    )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fair_rates(
    network: Bottlenecks,
    work: RateScratch,
    busy: IntArray,  # (B or more,) pairs that have transfers
    count: int,  # B
    flows: FloatArray,  # (D * D,) transfers of each pair
    rate: FloatArray,  # (D * D,) out: bytes/s of one transfer of each busy pair
) -> None:
    """Progressive filling of the links that busy pairs cross.

    All classes of paths rise at one level until a link is full; the classes on it keep that rate
    and the others go on (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). One filling
    takes a pass over the links of the busy pairs and one over those links for every level.
    """
    capacity, pair_ptr, path_ptr = network.capacity, network.pair_ptr, network.path_ptr
    path_link, path_load = network.path_link, network.path_load
    links, seen, room, rest, share = work.links, work.seen, work.room, work.rest, work.share
    first, after, frozen = work.first, work.after, work.frozen
    work.ticket[0] += 1
    ticket = work.ticket[0]
    crossed = 0
    for b in range(count):
        pair = busy[b]
        rate[pair] = 0.0
        for x in range(path_ptr[pair_ptr[pair]], path_ptr[pair_ptr[pair + 1]]):
            link = path_link[x]
            if seen[link] != ticket:
                seen[link] = ticket
                links[crossed] = link
                crossed += 1
                room[link], rest[link], first[link] = capacity[link], 0.0, _NONE
            rest[link] += flows[pair] * path_load[x]
            after[x] = first[link]
            first[link] = x
    for y in range(crossed):
        share[links[y]] = room[links[y]] / rest[links[y]]
    reached = 0.0
    while True:
        level = np.inf
        tight = links[0]
        y = 0
        while y < crossed:
            link = links[y]
            if rest[link] <= 0.0:  # everything on it has its rate
                crossed -= 1
                links[y] = links[crossed]
                continue
            if share[link] < level:
                tight, level = link, share[link]
            y += 1
        if crossed == 0:
            break
        reached = level = max(level, reached)  # rounding may not lower it
        row = first[tight]
        while row != _NONE:
            p = network.path[row]
            if frozen[p] != ticket:
                frozen[p] = ticket
                pair = network.pair[p]
                rate[pair] += network.size[p] * level
                for x in range(path_ptr[p], path_ptr[p + 1]):
                    link, taken = path_link[x], flows[pair] * path_load[x]
                    rest[link] -= taken
                    room[link] -= taken * level
                    share[link] = room[link] / rest[link]
            row = after[row]
