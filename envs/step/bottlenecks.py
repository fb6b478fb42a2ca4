"""The links that transfers between devices can fill, as few as decide the max-min rates.

The max-min rates of a network are the same in a smaller one:

* **Equal paths.** Paths of a pair that no load can tell apart (the spines between two servers) have
  equal rates. The coarsest partition of paths and links that is stable, in which links of a class
  have one capacity and are crossed by equally many paths of every class, is found by colour
  refinement; one link of a class stands for all.
* **Redundant links.** A link that is full only when others on each of its paths are full changes no
  rate: the set of feasible rates is the same without it. Links that one other link dominates, or
  together the tightest links before them, or those after them, on their paths, are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, sums_before
from envs.errors import InputError
from envs.hardware.network import NO_CHANNEL
from envs.hardware.topology import Topology

IndexArray = NDArray[np.uint32]

Paths = list[tuple[int, tuple[int, ...]]]  # pair, links
Merged = tuple[list[tuple[int, int]], list[dict[int, int]], FloatArray]  # classes: see `_merged`
Use = dict[int, dict[int, float]]  # link -> class -> share of the link one subflow takes
_ROUNDING = 1e-12  # relative; by how much a dominated link may be the tighter one


class Bottlenecks(NamedTuple):
    """K links and the classes of equal paths of D * D pairs, for kernels.

    A transfer of pair i * D + j has `size[p]` subflows of one rate in each class p of its row.
    Together they put `path_load` subflows on each link of the class.
    """

    capacity: FloatArray  # (K,) bytes/s
    pair_ptr: IndexArray  # (D * D + 1,) classes of each pair
    pair: IndexArray  # (P,) the pair of each class
    size: FloatArray  # (P,) paths in each class
    path_ptr: IndexArray  # (P + 1,)
    path_link: IndexArray  # links of each class
    path_load: FloatArray  # subflows of one transfer on that link, a whole number
    path: IndexArray  # the class of each of these rows
    scale: FloatArray  # (L,) bytes that a second beyond the latency stands for, by link class


def bottlenecks(topology: Topology, multipath: bool) -> Bottlenecks:
    """The links of `topology`, whose transfers take all paths of their pair or one of them.

    The one path leaves by the NIC of the pair's route; of several, that of number j mod their count
    is taken, j the receiving device (the static D-mod-K routing of fat-trees).

    A topology of tabulated times has ports, but no bandwidths. There every port has capacity 1 and
    a transfer the volume of its own seconds: ports share their time instead of their bytes.

    Raises:
        InputError: no path leads from a device to another one.
    """
    paths: Paths
    d = topology.num_devices
    away = ~np.eye(d, dtype=bool)
    if np.isinf(topology.bandwidth[away]).any():
        send, receive = topology.send_port, topology.receive_port
        paths = [
            (i * d + j, (int(send[i, j]), int(receive[i, j])))
            for i in range(d)
            for j in range(d)
            if i != j
        ]
        capacity = np.ones(topology.num_ports)
        scale = np.ones(len(topology.class_bandwidth))
    else:
        network, capacity = topology.network, topology.network.link_capacity
        for pair in np.flatnonzero(np.diff(network.pair_ptr) == 0):
            i, j = (topology.devices[index].name for index in divmod(int(pair), d))
            if i != j:
                raise InputError(
                    f"no path leads from {i!r} to {j!r}", file=f"topology {topology.name}"
                )
        paths = [
            (pair, tuple(k for k in network.links_on(path).tolist() if np.isfinite(capacity[k])))
            for pair in range(d * d)
            for path in (network.paths_of(pair) if multipath else _one_path(topology, pair))
        ]
        scale = topology.class_bandwidth
    return _arrays(d * d, _fewer(*_merged(paths, capacity)), scale)


def _one_path(topology: Topology, pair: int) -> list[int]:
    network = topology.network
    paths = network.paths_of(pair)
    i, j = divmod(pair, topology.num_devices)
    if len(paths) == 0:
        return []
    port = topology.port_names[topology.send_port[i, j]]
    nic = network.channel_source_nic
    near = [
        path
        for path in paths
        if (channel := network.path_channel[path]) != NO_CHANNEL
        and port in (nic[channel], f"{nic[channel]} send")
    ] or list(paths)
    return [near[j % len(near)]]


def _merged(paths: Paths, capacity: FloatArray) -> Merged:
    """Classes of paths as (pair, number of paths) with their loads by link, and the capacities."""
    crossed: dict[int, list[int]] = {}
    for path, (_, links) in enumerate(paths):
        for link in links:
            crossed.setdefault(link, []).append(path)
    link_class = _numbered({link: float(capacity[link]) for link in crossed})
    path_class = _numbered({path: pair for path, (pair, _) in enumerate(paths)})
    while True:
        sizes = len(set(link_class.values())), len(set(path_class.values()))
        path_class = _numbered(
            {
                path: (path_class[path], tuple(sorted(link_class[link] for link in links)))
                for path, (_, links) in enumerate(paths)
            }
        )
        link_class = _numbered(
            {
                link: (link_class[link], tuple(sorted(path_class[path] for path in over)))
                for link, over in crossed.items()
            }
        )
        if sizes == (len(set(link_class.values())), len(set(path_class.values()))):
            break
    size = Counter(path_class.values())
    pairs = [(0, 0)] * len(size)
    for path, (pair, _) in enumerate(paths):
        pairs[path_class[path]] = (pair, size[path_class[path]])
    loads: list[dict[int, int]] = [{} for _ in size]
    for path, (_, links) in enumerate(paths):
        if not loads[path_class[path]]:  # the first of its class sets the order of the links
            loads[path_class[path]] = {link_class[link]: 0 for link in links}
    limits = np.zeros(len(set(link_class.values())))
    for link, number in link_class.items():
        if limits[number] == 0.0:  # the first of its class stands for it
            limits[number] = capacity[link]
            for path in crossed[link]:
                loads[path_class[path]][number] += 1
    return pairs, loads, limits


def _numbered(values: Mapping[int, Hashable]) -> dict[int, int]:
    """Equal values get equal numbers, counted from 0 in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return {item: numbers.setdefault(value, len(numbers)) for item, value in values.items()}


def _fewer(
    pairs: list[tuple[int, int]], loads: list[dict[int, int]], capacity: FloatArray
) -> Merged:
    """The same without links that change no rate."""
    use: Use = {}
    for path, load in enumerate(loads):
        for link, times in load.items():
            use.setdefault(link, {})[path] = times / float(capacity[link])
    # the slackest links first: what covers them is then still there
    for link in sorted(use, key=lambda link: (max(use[link].values()), -len(use[link]), link)):
        mine = use[link]
        others = set.intersection(*(set(loads[path]) for path in mine)) - {link}
        if (
            any(_covered(mine, [other] * len(mine), use) for other in others)
            or _covered(mine, [_tightest(loads[path], link, path, use, 1) for path in mine], use)
            or _covered(mine, [_tightest(loads[path], link, path, use, -1) for path in mine], use)
        ):
            del use[link]
            for path in mine:
                del loads[path][link]
    kept = {link: number for number, link in enumerate(sorted(use))}
    return (
        pairs,
        [{kept[link]: times for link, times in load.items()} for load in loads],
        capacity[sorted(use)],
    )


def _tightest(load: dict[int, int], link: int, path: int, use: Use, way: int) -> int | None:
    """The link on the way to `link` (1), or from it on (-1), that a path fills first."""
    found = None
    for other in list(load)[::way]:
        if other == link:
            break
        if found is None or use[other][path] > use[found][path]:
            found = other
    return found


def _covered(mine: dict[int, float], family: list[int | None], use: Use) -> bool:
    """Whether a weighted mean of the links of `family` is always at least as full as `mine`."""
    weight: dict[int, float] = {}
    for (path, part), other in zip(mine.items(), family, strict=True):
        if other is None:
            return False
        weight[other] = max(weight.get(other, 0.0), part / use[other][path])
    return sum(weight.values()) <= 1.0 + _ROUNDING


def _arrays(
    num_pairs: int,
    merged: Merged,
    scale: FloatArray,
) -> Bottlenecks:
    pairs, loads, capacity = merged
    order = sorted(range(len(pairs)), key=lambda path: (pairs[path][0], path))
    pair = np.array([pairs[path][0] for path in order], dtype=np.uint32)
    path_link = np.array([link for path in order for link in loads[path]], dtype=np.uint32)
    sizes = np.array([len(loads[path]) for path in order], dtype=np.uint32)
    return Bottlenecks(
        capacity=np.ascontiguousarray(capacity, dtype=np.float64),
        pair_ptr=np.searchsorted(pair, np.arange(num_pairs + 1)).astype(np.uint32),
        pair=pair,
        size=np.array([pairs[path][1] for path in order], dtype=np.float64),
        path_ptr=sums_before(sizes).astype(np.uint32),
        path_link=path_link,
        path_load=np.array(
            [times for path in order for times in loads[path].values()], dtype=np.float64
        ),
        path=np.repeat(np.arange(len(order), dtype=np.uint32), sizes),
        scale=np.ascontiguousarray(scale, dtype=np.float64),
    )
