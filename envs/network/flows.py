"""`FlowSet`: volumes that cross a network, each over one path or several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.network import Network

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FlowSet:
    """F flows in columns, over P paths.

    A flow waits for its latency, then drains its volume over all its paths at once: every path is a
    subflow with a max-min fair rate of its own, and the flow drains at their sum. `limit` holds
    that sum. Times are seconds and rates bytes/s; another unit of time serves as well where all
    times and rates of a simulation are in it.

    Raises:
        InputError: naming the flow and the column at fault.
    """

    arrival: FloatArray  # (F,) s
    volume: FloatArray  # (F,) bytes
    path_ptr: IntArray  # (F + 1,) paths of flow f are rows path_ptr[f] to the next
    link_ptr: IntArray  # (P + 1,) links of each path
    path_links: IntArray  # links of the paths, none twice in a path
    priority: IntArray  # (F,) class; the smallest is served first, the next from what it leaves
    weight: FloatArray  # (F,) of each of its subflows
    latency: FloatArray  # (F,) s
    limit: FloatArray  # (F,) bytes/s, inf for none

    def __post_init__(self) -> None:
        flows = len(self.arrival)
        for name in ("volume", "priority", "weight", "latency", "limit"):
            if getattr(self, name).shape != (flows,):
                raise InputError(f"is not one value for each of {flows} flows", field=name)
        for name in ("arrival", "volume", "weight", "latency"):
            self._refuse(~np.isfinite(getattr(self, name)), name, "is not finite")
        for name in ("volume", "weight", "latency"):
            self._refuse(getattr(self, name) < 0.0, name, "is negative")
        self._refuse(~(self.limit >= 0.0), "limit", "is not a rate")
        _check_rows("path_ptr", self.path_ptr, flows, len(self.link_ptr) - 1)
        _check_rows("link_ptr", self.link_ptr, len(self.link_ptr) - 1, len(self.path_links))
        for flow in np.flatnonzero(np.diff(self.path_ptr) == 0):
            raise InputError("has no path", record=f"flow {flow}", field="path_ptr")
        path = np.repeat(np.arange(self.num_paths), np.diff(self.link_ptr))
        order = np.lexsort((self.path_links, path))
        again = (np.diff(path[order]) == 0) & (np.diff(self.path_links[order]) == 0)
        for entry in order[1:][again]:
            flow = self.path_flow[path[entry]]
            raise InputError(
                f"crosses link {self.path_links[entry]} twice",
                record=f"flow {flow}",
                field="path_links",
            )

    def _refuse(self, wrong: NDArray[np.bool_], name: str, why: str) -> None:
        for flow in np.flatnonzero(wrong):
            value = getattr(self, name)[flow]
            raise InputError(f"{value} {why}", record=f"flow {flow}", field=name)

    @property
    def num_flows(self) -> int:
        """F."""
        return len(self.arrival)

    @property
    def num_paths(self) -> int:
        """P."""
        return len(self.link_ptr) - 1

    @cached_property
    def path_flow(self) -> IntArray:
        """(P,) the flow of each path."""
        return np.repeat(np.arange(self.num_flows), np.diff(self.path_ptr))


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
            f"{ends[flow, end]} is none of {d} devices",
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


def _check_rows(name: str, ptr: IntArray, rows: int, entries: int) -> None:
    if ptr.shape != (rows + 1,) or ptr[0] != 0 or ptr[-1] != entries or np.any(np.diff(ptr) < 0):
        raise InputError(f"does not divide {entries} entries into {rows} rows", field=name)
