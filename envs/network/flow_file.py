"""Reader of flows on parking lots, in the CSV columns of the m3 simulator: plain or gzip.

m3: Li et al., *m3: Accurate Flow-Level Performance Estimation using Machine Learning*, SIGCOMM
2024; its fluid simulator is the independent implementation behind the column `fct_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.network.fluid import FlowSet, simulate_flows, single_paths
from envs.text_table import RowChecks, read_table
from envs.units import EXACT

COLUMNS = ("shard", "arrival_ns", "size_bytes", "src", "dst", "n_hosts")
COMPLETION = "fct_ns"  # may be missing, as a column or in some rows

BYTES_PER_NS = 1.25  # 10 Gb/s
PACKET_BYTES, HEADER_BYTES = 1000, 48
_MOST_HOSTS = 2**20


@dataclass(frozen=True, eq=False)
class Shard:
    """The flows of one parking lot; its times are nanoseconds, its rates bytes/ns."""

    name: str
    rows: IntArray  # (F,) the flows' places in the file
    hosts: int
    flows: FlowSet


@dataclass(frozen=True, eq=False)
class FlowFile:
    """F flows of a file, in shards that do not know of each other; columns in the file's order."""

    shards: tuple[Shard, ...]
    ideal_ns: FloatArray  # (F,) ns each flow takes alone
    fct_ns: FloatArray | None  # (F,) as the file gives them, nan where it does not

    @property
    def num_flows(self) -> int:
        return len(self.ideal_ns)

    def completion_ns(self) -> FloatArray:
        """(F,) ns from arrival to end of each flow, every shard simulated by itself."""
        found = np.zeros(self.num_flows)
        for shard in self.shards:
            capacity = np.full(4 * shard.hosts - 2, BYTES_PER_NS)
            found[shard.rows] = simulate_flows(capacity, shard.flows).completion
        return found


def read_flow_file(path: str | Path) -> FlowFile:
    """The flows in a CSV file with a header; columns may stand in any order, others are not read.

    A row is a flow: in parking lot `shard` of `n_hosts` hosts, `size_bytes` arrive at `arrival_ns`
    at host `src` for host `dst`. All links carry 10 Gb/s. Every packet of up to 1000 bytes has 48
    bytes of headers, so that size + 48 ceil(size / 1000) bytes are sent. `fct_ns`, where given, is
    the completion time found elsewhere.

    Raises:
        InputError: naming file, row (the first flow is row 1) and field.
    """
    table = read_table(path, COLUMNS)
    checks = RowChecks(table)
    name = np.array(table.columns["shard"].to_list(), np.str_)
    checks.reject(name == "", "shard", "is missing")
    arrival = checks.numbers("arrival_ns")
    checks.reject(arrival > EXACT, "arrival_ns", "is above 2^53, where nanoseconds are not exact")
    size = checks.whole("size_bytes", 1)
    hosts = checks.whole("n_hosts", 2, _MOST_HOSTS)
    source, destination = checks.whole("src"), checks.whole("dst")
    for field, host in (("src", source), ("dst", destination)):
        checks.reject(host >= hosts, field, "is no host: they are 0 to n_hosts - 1")
    checks.reject(source == destination, "dst", "is the source too")
    _, first, group = np.unique(name, return_index=True, return_inverse=True)
    other = hosts != hosts[first][group]
    checks.reject(other, "n_hosts", "is not that of the shard's other rows")
    fct = None
    if (cells := table.get(COMPLETION)) is not None:
        fct = np.where((cells != "").to_numpy(), checks.numbers(COMPLETION, blank="1"), np.nan)
        checks.reject(fct <= 0.0, COMPLETION, "is not positive")
    checks.finish(strict=True)
    volume = (size + HEADER_BYTES * -(-size // PACKET_BYTES)).astype(np.float64)
    shards = []
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    for own in sorted(members, key=lambda rows: int(rows[0])):
        count = int(hosts[own[0]])
        links = routes(count, source[own], destination[own])
        flows = single_paths(arrival[own], volume[own], *links)
        shards.append(Shard(str(name[own[0]]), own, count, flows))
    return FlowFile(tuple(shards), volume / BYTES_PER_NS, fct)


def routes(hosts: int, source: IntArray, destination: IntArray) -> tuple[IntArray, IntArray]:
    """The only path of each of F flows between different hosts, as rows: pointer and links.

    n hosts stand at n switches in a row; every cable is two links. Links, in order: from host h to
    its switch (n), from the switch to host h (n), from switch i to i + 1 (n - 1), from switch i + 1
    to i (n - 1).
    """
    hops = np.abs(destination - source)
    ptr = sums_before(hops + 2)
    links = np.empty(ptr[-1], np.int64)
    links[ptr[:-1]] = source
    links[ptr[1:] - 1] = hosts + destination
    before = np.cumsum(hops) - hops
    hop = np.arange(hops.sum()) - np.repeat(before, hops)  # 0.. within each flow
    slot = np.repeat(ptr[:-1] + 1, hops) + hop
    start, up = np.repeat(source, hops), np.repeat(destination > source, hops)
    links[slot] = np.where(up, 2 * hosts + start + hop, 3 * hosts - 1 + start - hop - 1)
    return ptr, links
