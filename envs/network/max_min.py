"""Weighted max-min fair rates: Bertsekas and Gallager, *Data Networks*, section 6.5.2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.network.filling import fill, filling

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

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
        InputError: naming the flow or link and the argument at fault, or a flow of positive weight
            that nothing holds back: no link of finite capacity and no limit.
    """
    capacity, flow_links = _floats(capacity), np.ascontiguousarray(flow_links, dtype=np.int64)
    flow_ptr = np.ascontiguousarray(flow_ptr, dtype=np.int64)
    flows = len(flow_ptr) - 1
    _check_routes(capacity, flow_ptr, flow_links)
    weight = np.ones(flows) if weight is None else _floats(weight)
    limit = np.full(flows, np.inf) if limit is None else _floats(limit)
    priority = np.zeros(flows, np.int64) if priority is None else np.asarray(priority, np.int64)
    for name, values in (("weight", weight), ("limit", limit), ("priority", priority)):
        if values.shape != (flows,):
            raise InputError(f"has shape {values.shape}, there are {flows} flows", field=name)
    weight = checked_weights(weight, "flow")
    _refuse(~(limit >= 0.0), limit, "flow", "limit", "is not a rate")
    ptr, links, rooms = with_limits(capacity, flow_ptr, flow_links, limit)
    active = np.argsort(priority, kind="stable")
    rate = np.zeros(flows)
    work = filling(len(rooms), len(links))
    fill(active, flows, ptr, links, weight, priority, rooms, rate, work)
    for flow in np.flatnonzero(np.isinf(rate)):
        raise InputError("has no link of finite capacity and no limit", record=f"flow {flow}")
    return rate


def with_limits(
    capacity: FloatArray, flow_ptr: IntArray, flow_links: IntArray, limit: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Limits as links: each flow with a finite limit gets a private link of that capacity.

    Returns the new `flow_ptr`, `flow_links` and `capacity`; the private links stand behind the K.
    """
    held = np.flatnonzero(np.isfinite(limit))
    links = np.insert(flow_links, flow_ptr[held + 1], len(capacity) + np.arange(len(held)))
    ptr = flow_ptr + np.searchsorted(held + 1, np.arange(len(flow_ptr)), side="right")
    return ptr, links, np.concatenate((capacity, limit[held]))


def checked_weights(weight: FloatArray, owner: str) -> FloatArray:
    """The weights over the heaviest; rates do not depend on the scale of weights.

    Raises:
        InputError: naming `owner` and number of a weight that is negative, not finite, or positive
            and less than 1e-200 of the heaviest.
    """
    _refuse(~(np.isfinite(weight) & (weight >= 0.0)), weight, owner, "weight", "is not a weight")
    heaviest = weight.max(initial=0.0)
    if heaviest == 0.0:
        return weight
    scaled: FloatArray = weight / heaviest
    light = (weight > 0.0) & (scaled < _LIGHTEST)
    _refuse(light, weight, owner, "weight", f"is too small beside the largest, {heaviest}")
    return scaled


def _check_routes(capacity: FloatArray, flow_ptr: IntArray, flow_links: IntArray) -> None:
    _refuse(~(capacity >= 0.0), capacity, "link", "capacity", "is not a rate")
    if (
        flow_ptr.ndim != 1
        or not len(flow_ptr)
        or flow_ptr[0] != 0
        or flow_ptr[-1] != len(flow_links)
        or np.any(np.diff(flow_ptr) < 0)
    ):
        raise InputError("is no row pointer of flow_links", field="flow_ptr")
    flow = np.repeat(np.arange(len(flow_ptr) - 1), np.diff(flow_ptr))
    for entry in np.flatnonzero((flow_links < 0) | (flow_links >= len(capacity))):
        raise InputError(
            f"link {flow_links[entry]} is none of the {len(capacity)}",
            record=f"flow {flow[entry]}",
            field="flow_links",
        )
    order = np.lexsort((flow_links, flow))
    again = (np.diff(flow[order]) == 0) & (np.diff(flow_links[order]) == 0)
    for entry in order[1:][again]:
        raise InputError(
            f"crosses link {flow_links[entry]} twice",
            record=f"flow {flow[entry]}",
            field="flow_links",
        )


def _refuse(wrong: NDArray[np.bool_], values: FloatArray, owner: str, field: str, why: str) -> None:
    for index in np.flatnonzero(wrong):
        raise InputError(f"{values[index]} {why}", record=f"{owner} {index}", field=field)


def _floats(values: FloatArray) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float64)
