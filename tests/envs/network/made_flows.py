"""Flow sets from plain sequences, and between the devices of a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.network import Network
from envs.network.fluid import FlowSet

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def flow_set(
    arrival: Sequence[float] | FloatArray,
    volume: Sequence[float] | FloatArray,
    paths: Sequence[Sequence[Sequence[int]]],
    *,
    priority: Sequence[int] | IntArray | None = None,
    weight: Sequence[float] | FloatArray | None = None,
    latency: Sequence[float] | FloatArray | None = None,
    limit: Sequence[float] | FloatArray | None = None,
) -> FlowSet:
    """Flows from plain sequences; `paths[f]` are the paths of flow f, each a list of links.

    By default all flows are of class 0 and weight 1, without latency and without limit.

    Raises:
        InputError: see `FlowSet`.
    """
    flows = len(arrival)
    if len(paths) != flows:
        raise InputError(f"is not one list for each of {flows} flows", field="paths")
    every = [path for own in paths for path in own]
    links = [link for path in every for link in path]
    return _of_rows(
        np.asarray(arrival, dtype=np.float64),
        np.asarray(volume, dtype=np.float64),
        _pointers([len(own) for own in paths]),
        _pointers([len(path) for path in every]),
        np.array(links, dtype=np.int64),
        priority=priority, weight=weight, latency=latency, limit=limit,
    )  # fmt: skip


def flows_between(
    network: Network,
    arrival: Sequence[float] | FloatArray,
    volume: Sequence[float] | FloatArray,
    source: Sequence[int] | IntArray,
    destination: Sequence[int] | IntArray,
    *,
    priority: Sequence[int] | IntArray | None = None,
    weight: Sequence[float] | FloatArray | None = None,
    latency: Sequence[float] | FloatArray | None = None,
    limit: Sequence[float] | FloatArray | None = None,
) -> FlowSet:
    """Flows from device to device of a network, each over all paths of its pair.

    Raises:
        InputError: a device is not in the network, a pair has no path, or see `FlowSet`.
    """
    d = network.num_devices
    ends = np.stack(
        [np.asarray(source, dtype=np.int64), np.asarray(destination, dtype=np.int64)], axis=1
    )
    for flow, end in np.argwhere((ends < 0) | (ends >= d)):
        raise InputError(
            f"{ends[flow, end]} is not one of {d} devices",
            record=f"flow {flow}",
            field=("source", "destination")[end],
        )
    pair = ends[:, 0] * d + ends[:, 1]
    path_ptr, paths = _rows_of(network.pair_ptr, pair)
    for flow in np.flatnonzero(np.diff(path_ptr) == 0):
        raise InputError(
            f"device {ends[flow, 0]} has no path to device {ends[flow, 1]}", record=f"flow {flow}"
        )
    link_ptr, entries = _rows_of(network.path_ptr, paths)
    return _of_rows(
        np.asarray(arrival, dtype=np.float64),
        np.asarray(volume, dtype=np.float64),
        path_ptr,
        link_ptr,
        network.path_links[entries],
        priority=priority, weight=weight, latency=latency, limit=limit,
    )  # fmt: skip


def _of_rows(
    arrival: FloatArray,
    volume: FloatArray,
    path_ptr: IntArray,
    link_ptr: IntArray,
    path_links: IntArray,
    *,
    priority: Sequence[int] | IntArray | None,
    weight: Sequence[float] | FloatArray | None,
    latency: Sequence[float] | FloatArray | None,
    limit: Sequence[float] | FloatArray | None,
) -> FlowSet:
    def column(values: Sequence[float] | FloatArray | None, otherwise: float) -> FloatArray:
        if values is None:
            return np.full(len(arrival), otherwise)
        return np.asarray(values, dtype=np.float64)

    zeros = np.zeros(len(arrival), dtype=np.int64)
    return FlowSet(
        arrival=arrival,
        volume=volume,
        path_ptr=path_ptr,
        link_ptr=link_ptr,
        path_links=path_links,
        priority=zeros if priority is None else np.asarray(priority, dtype=np.int64),
        weight=column(weight, 1.0),
        latency=column(latency, 0.0),
        limit=column(limit, np.inf),
    )


def _pointers(lengths: Sequence[int] | IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _rows_of(ptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """The pointer of the chosen rows, and the entries they hold, one row after the other."""
    lengths = np.diff(ptr)[rows]
    chosen = _pointers(lengths)
    entries = np.arange(chosen[-1]) + np.repeat(ptr[rows] - chosen[:-1], lengths)
    return chosen, entries
