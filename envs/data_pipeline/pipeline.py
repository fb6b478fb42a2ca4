"""Eight stages that bring sampled neighbourhoods to GPUs: what each takes for a batch.

Stores hold the graph and the features, a partition each; one machine of GPUs trains, with a cache
of features that they share. Stages work on different batches at the same time, so a batch comes out
whenever the slowest stage has done one: throughput is the least over the stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.data_pipeline.graph import NodeArray
from envs.data_pipeline.requests import Policy, Requests

STAGES = (
    "sample", "gather", "network", "convert", "copy structure", "cache", "copy features", "train",
)  # fmt: skip
# Stages that share a resource, in the order of `Machines.units`: cores of a store, cores of the
# machine that trains, shares of its PCIe.
GROUPS = ((0, 1), (3, 5), (4, 6))
_ID = 8  # bytes of a node's number; an edge has two


@bounded
@dataclass(frozen=True)
class Machines:
    """What there is, and what work costs; seconds are those of one core."""

    gpus: Count = 8
    train_s: Positive = 2.2e-08  # of one GPU, for each sampled edge
    store_cores: Annotated[int, Ge(2)] = 4  # of each store
    worker_cores: Annotated[int, Ge(2)] = 32  # of the machine of GPUs
    pcie_shares: Annotated[int, Ge(2)] = 16  # that PCIe is divided into
    pcie: Positive = 50000000000.0  # bytes/s, all GPUs together
    nic: Positive = 12500000000.0  # bytes/s, of a store and of the machine that trains
    feature_bytes: Count = 512  # of a node
    edge_s: NonNegative = 1e-07  # sampling an edge
    request_s: NonNegative = 1e-05  # answering another store that asks for the neighbours of a node
    row_s: NonNegative = 5e-07  # gathering the features of a node
    convert_s: NonNegative = 1e-07  # numbering the nodes of an edge anew
    lookup_s: NonNegative = 1e-07  # looking up a row in the cache, on any core
    # giving a row its place in the cache, one row after another
    update_s: Mapping[str, NonNegative] = field(
        default_factory=lambda: {"fifo": 1e-08, "lru": 1e-07, "lfu": 1e-07}
    )  # by policy: the row's place in line, one after another

    @property
    def units(self) -> tuple[int, int, int]:
        return self.store_cores, self.worker_cores, self.pcie_shares


@dataclass(frozen=True, eq=False)
class Demand:
    """Seconds of each stage for a batch: divided[s] / units of s + serial[s]; and bytes."""

    divided: FloatArray  # (8,)
    serial: FloatArray  # (8,)
    hit_ratio: float
    crossing: float  # share of the nodes found by sampling that another store has to expand
    crossing_bytes: float  # between stores
    missed_bytes: float  # of features

    def seconds(self, units: FloatArray) -> FloatArray:
        """(8,) of every stage, with so many units of its resource (8,)."""
        found: FloatArray = self.divided / units + self.serial
        return found


def demand(
    machines: Machines, requests: Requests, policy: Policy, hit: BoolArray, part: NodeArray
) -> Demand:
    """What the batches of `requests` ask of the stages, where store part[v] holds node v.

    A node that was found at a node of another store is expanded there: a request, and an answer
    with the neighbours. GPUs train on as many batches at a time, a round; the stores' work of a
    round is that of the busiest store.
    """
    m, batches, stores = machines, len(requests.offset) - 1, int(part.max()) + 1
    home = part[requests.node]
    key = np.repeat(np.arange(batches, dtype=np.int32), np.diff(requests.offset)) * stores + home

    def by_store(weight: NDArray[np.generic]) -> FloatArray:
        """(rounds, stores)"""
        found = np.bincount(key, weight, batches * stores).reshape(batches, stores)
        return np.add.reduceat(found, np.arange(0, batches, m.gpus))

    def busiest(load: FloatArray) -> float:
        return float(load.max(axis=1).sum() / batches)

    inner = (requests.hop > 0) & (requests.hop < requests.hop.max())
    crossing = inner & (home != part[requests.parent])
    edges, rows = by_store(requests.sampled), by_store(~hit)
    answers, asked = by_store((requests.sampled + 1) * crossing), by_store(crossing)
    all_edges, missed = float(edges.sum() / batches), float(rows.sum() / batches)
    structure, features = 2.0 * _ID * all_edges, float(m.feature_bytes) * missed
    sent = busiest(2.0 * _ID * edges + m.feature_bytes * rows + _ID * answers)
    copied = m.pcie_shares / m.pcie  # seconds of a byte, on one share
    looked_up = len(hit) / batches if policy != "none" else 0.0
    touched = missed if policy == "fifo" else looked_up  # a hit leaves the order of FIFO alone
    sampling = busiest(m.edge_s * edges + m.request_s * asked)
    gathering = busiest(m.row_s * rows)
    divided = [sampling, gathering, 0.0, m.convert_s * all_edges, copied * structure,
               m.lookup_s * looked_up, copied * features, 0.0]  # fmt: skip
    serial = np.zeros(len(STAGES))
    serial[2] = max(sent, structure + features) / m.nic
    serial[5] = m.update_s.get(policy, 0.0) * touched
    serial[7] = m.train_s * all_edges / m.gpus
    crossed = float(crossing.sum() / max(inner.sum(), 1))
    between = float(_ID * answers.sum() / batches)
    return Demand(np.array(divided), serial, float(hit.mean()), crossed, between, features)


def equal_shares(machines: Machines) -> FloatArray:
    """(8,) units of each stage where the two that share a resource have a half, the first more."""
    units = np.ones(len(STAGES))
    for (a, b), most in zip(GROUPS, machines.units, strict=True):
        units[a], units[b] = (most + 1) // 2, most // 2
    return units
