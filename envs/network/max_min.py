"""Weighted max-min fair rates by progressive filling.

Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2: the rates of all flows grow in
proportion to their weights until a link is full; its flows are frozen there and the others grow on.
With strict priorities the flows of class 0 are filled first, those of class 1 on what class 0
leaves, and so on. `max_min_rates` is the checked face of the kernel `fill`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import unchecked, unchecked_inner
from envs.errors import InputError

_LIGHTEST = 1e-200  # of the heaviest weight; lighter ones would overflow


def max_min_rates(
    capacity: FloatArray,
    flow_ptr: IntArray,
    flow_links: IntArray,
    *,
    weight: FloatArray | None = None,
    limit: FloatArray | None = None,
    priority: IntArray | None = None,
) -> FloatArray:
    """(F,) bytes/s: the weighted max-min fair rates of F flows over K links.

    Args:
        capacity: (K,) bytes/s of each link, not negative; inf for a link that is never full.
        flow_ptr: (F + 1,) flow f crosses `flow_links[flow_ptr[f]:flow_ptr[f + 1]]`, none twice.
        flow_links: the links of each flow.
        weight: (F,) finite, not negative; a flow of weight 0 gets rate 0. All 1 by default.
        limit: (F,) bytes/s a flow never exceeds, not negative; inf by default.
        priority: (F,) class of each flow, the smallest is served first. All 0 by default.

    Raises:
        InputError: naming a flow whose weight is none, or a flow of positive weight that nothing
            holds back: no link of finite capacity and no limit.
    """
    capacity, flow_links = _floats(capacity), np.ascontiguousarray(flow_links, dtype=np.int64)
    flow_ptr = np.ascontiguousarray(flow_ptr, dtype=np.int64)
    flows = len(flow_ptr) - 1
    weight = np.ones(flows) if weight is None else _floats(weight)
    limit = np.full(flows, np.inf) if limit is None else _floats(limit)
    priority = np.zeros(flows, np.int64) if priority is None else np.asarray(priority, np.int64)
    weight = checked_weights(weight)
    ptr, links, rooms = with_limits(capacity, flow_ptr, flow_links, limit, np.arange(flows))
    active = np.argsort(priority, kind="stable")
    rate = np.zeros(flows)
    work = filling(len(rooms), len(links))
    fill(active, flows, ptr, links, weight, priority, rooms, rate, work)
    for flow in np.flatnonzero(np.isinf(rate)):
        raise InputError("has no link of finite capacity and no limit", record=f"flow {flow}")
    return rate


def with_limits(
    capacity: FloatArray,  # (K,)
    path_ptr: IntArray,  # (P + 1,)
    path_links: IntArray,
    limit: FloatArray,  # (F,)
    path_flow: IntArray,  # (P,)
) -> tuple[IntArray, IntArray, FloatArray]:
    """Limits as links: each flow with a finite limit gets a private link that its paths share.

    Returns the new `path_ptr`, `path_links` and `capacity`; the private links stand behind the K.
    """
    held = np.isfinite(limit)
    private = len(capacity) - 1 + np.cumsum(held)  # (F,) where it is held
    limited = np.flatnonzero(held[path_flow])  # paths
    links = np.insert(path_links, path_ptr[limited + 1], private[path_flow[limited]])
    ptr = path_ptr + np.searchsorted(limited, np.arange(len(path_ptr)))
    return ptr, links, np.concatenate((capacity, limit[held]))


def checked_weights(weight: FloatArray) -> FloatArray:
    """The weights over the heaviest; rates do not depend on the scale of weights.

    Raises:
        InputError: naming the flow of a weight that is negative, not finite, or positive and less
            than 1e-200 of the heaviest.
    """
    _refuse(~(np.isfinite(weight) & (weight >= 0.0)), weight, "is not a weight")
    heaviest = weight.max(initial=0.0)
    if heaviest == 0.0:
        return weight
    scaled: FloatArray = weight / heaviest
    light = (weight > 0.0) & (scaled < _LIGHTEST)
    _refuse(light, weight, f"is too small beside the largest, {heaviest}")
    return scaled


def _refuse(wrong: BoolArray, weight: FloatArray, why: str) -> None:
    for flow in np.flatnonzero(wrong):
        raise InputError(f"{weight[flow]} {why}", record=f"flow {flow}", field="weight")


def _floats(values: FloatArray) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float64)


_FULL = 1e-12  # a link with less than this share of its capacity left is full for the next class
_STALE = 0.125  # weights are summed anew when subtraction has taken all but this share of a sum


class Filling(NamedTuple):
    """Working memory of `fill`; one per thread."""

    room: FloatArray  # (K,) bytes/s that frozen flows leave
    crowd: FloatArray  # (K,) sum of the weights of growing flows
    kept: FloatArray  # (K,) the last exact sum
    level: FloatArray  # (K,) rate per weight at which the link is full
    taken: FloatArray  # (K,) weights frozen in this round, not yet taken from room and crowd
    growing: IntArray  # (K,) flows not frozen; zero between calls
    start: IntArray  # (K,) first member in `member`
    end: IntArray  # (K,)
    member: IntArray  # flows of each link; as long as all rows of links together
    touched: IntArray  # (K,) links in use
    seen: IntArray  # (K,) the last call that used a link
    ticket: IntArray  # (1,) number of calls


def filling(num_links: int, num_entries: int) -> Filling:
    """Fresh working memory for K links and flows that cross `num_entries` links altogether."""
    room, crowd, kept, level, taken = np.zeros((5, num_links))
    growing, start, end, touched, seen = np.zeros((5, num_links), dtype=np.int64)
    member, ticket = np.zeros(num_entries, np.int64), np.zeros(1, np.int64)
    return Filling(
        room, crowd, kept, level, taken, growing, start, end, member, touched, seen, ticket
    )


@unchecked
def fill(
    active: IntArray,  # flows, the classes of `priority` ascending
    num_active: int,  # how many of `active` are meant
    flow_ptr: IntArray,  # (F + 1,)
    flow_links: IntArray,  # links of each flow, none twice
    weight: FloatArray,  # (F,) >= 0
    priority: IntArray,  # (F,)
    capacity: FloatArray,  # (K,) bytes/s, inf allowed
    rate: FloatArray,  # (F,) out: bytes/s of the active flows; others stay as they are
    work: Filling,
) -> None:
    """Weighted max-min rates of `active[:num_active]`, class after class.

    A flow of weight 0 gets rate 0, one that no finite link holds back gets inf. Every link is
    frozen once at most, so that the loop ends after K rounds in each class.
    """
    work.ticket[0] += 1
    ticket = work.ticket[0]
    low = 0
    while low < num_active:
        high = low + 1
        while high < num_active and priority[active[high]] == priority[active[low]]:
            high += 1
        links = _gather(
            active, low, high, flow_ptr, flow_links, weight, capacity, rate, ticket, work
        )
        level = 0.0
        while links > 0:
            links, level = _next_level(links, level, weight, rate, work)
            for t in range(links):
                link = work.touched[t]
                if work.level[link] == level and work.growing[link] > 0:
                    _freeze(link, level, flow_ptr, flow_links, weight, rate, work)
        if high < num_active:
            _close_full_links(active, low, high, flow_ptr, flow_links, capacity, work)
        low = high


@unchecked_inner
def _gather(
    active: IntArray,
    low: int,
    high: int,
    flow_ptr: IntArray,
    flow_links: IntArray,
    weight: FloatArray,
    capacity: FloatArray,
    rate: FloatArray,
    ticket: int,
    work: Filling,
) -> int:
    """Marks the flows as growing (rate -1), lists them by link; returns the number of links."""
    links = 0
    for a in range(low, high):
        flow = active[a]
        if weight[flow] == 0.0:
            rate[flow] = 0.0
            continue
        rate[flow] = np.inf if flow_ptr[flow] == flow_ptr[flow + 1] else -1.0
        for k in range(flow_ptr[flow], flow_ptr[flow + 1]):
            link = flow_links[k]
            if work.seen[link] != ticket:
                work.seen[link] = ticket
                work.room[link] = capacity[link]
            if work.growing[link] == 0:
                work.touched[links] = link
                work.crowd[link] = 0.0
                links += 1
            work.growing[link] += 1
            work.crowd[link] += weight[flow]
    slot = 0
    for t in range(links):
        link = work.touched[t]
        work.kept[link] = work.crowd[link]
        work.level[link] = max(work.room[link], 0.0) / work.crowd[link]
        work.start[link] = slot
        work.end[link] = slot
        slot += work.growing[link]
    for a in range(low, high):
        flow = active[a]
        if rate[flow] == -1.0:
            for k in range(flow_ptr[flow], flow_ptr[flow + 1]):
                link = flow_links[k]
                work.member[work.end[link]] = flow
                work.end[link] += 1
    return links


@unchecked_inner
def _next_level(
    links: int, level: float, weight: FloatArray, rate: FloatArray, work: Filling
) -> tuple[int, float]:
    """The number of links still in use, and the rate per weight at which the next of them fill.

    First the flows frozen at the last `level` are taken from their links, all those of a link in
    one subtraction.
    """
    left = 0
    lowest = np.inf
    for t in range(links):
        link = work.touched[t]
        if work.taken[link] > 0.0:
            if level < np.inf:
                work.room[link] -= work.taken[link] * level
            work.crowd[link] -= work.taken[link]
            work.taken[link] = 0.0
            if work.growing[link] > 0:
                if work.crowd[link] < _STALE * work.kept[link]:
                    _sum_again(link, weight, rate, work)
                work.level[link] = max(work.room[link], 0.0) / work.crowd[link]
        if work.growing[link] > 0:
            work.touched[left] = link
            left += 1
            lowest = min(lowest, work.level[link])
    return left, lowest


@unchecked_inner
def _freeze(
    full: int,
    level: float,
    flow_ptr: IntArray,
    flow_links: IntArray,
    weight: FloatArray,
    rate: FloatArray,
    work: Filling,
) -> None:
    """Ends the growth of all flows on link `full`."""
    alone = work.growing[full] == 1 and work.taken[full] == 0.0
    for m in range(work.start[full], work.end[full]):
        flow = work.member[m]
        if rate[flow] == -1.0:
            rate[flow] = max(work.room[full], 0.0) if alone else weight[flow] * level
            for k in range(flow_ptr[flow], flow_ptr[flow + 1]):
                work.growing[flow_links[k]] -= 1
                work.taken[flow_links[k]] += weight[flow]
    work.taken[full] = 0.0
    if level < np.inf:
        work.room[full] = 0.0


@unchecked_inner
def _sum_again(link: int, weight: FloatArray, rate: FloatArray, work: Filling) -> None:
    """The sum of the weights still growing on a link, free of the errors of subtraction."""
    slot = work.start[link]
    total = 0.0
    for m in range(work.start[link], work.end[link]):
        flow = work.member[m]
        if rate[flow] == -1.0:
            work.member[slot] = flow
            total += weight[flow]
            slot += 1
    work.end[link] = slot
    work.crowd[link] = total
    work.kept[link] = total


@unchecked_inner
def _close_full_links(
    active: IntArray,
    low: int,
    high: int,
    flow_ptr: IntArray,
    flow_links: IntArray,
    capacity: FloatArray,
    work: Filling,
) -> None:
    """Leaves nothing to the next class of links on which only rounding is left."""
    for a in range(low, high):
        flow = active[a]
        for k in range(flow_ptr[flow], flow_ptr[flow + 1]):
            link = flow_links[k]
            if work.seen[link] == work.ticket[0] and work.room[link] < _FULL * capacity[link]:
                work.room[link] = 0.0
