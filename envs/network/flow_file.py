"""Reader of flows on parking lots, in the CSV columns of the m3 simulator: plain or gzip.

m3: Li et al., *m3: Accurate Flow-Level Performance Estimation using Machine Learning*, SIGCOMM
2024; its fluid simulator is the independent implementation behind the column `fct_ns`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.files import read_content
from envs.network.fluid import FlowSet, simulate_flows

COLUMNS = ("shard", "arrival_ns", "size_bytes", "src", "dst", "n_hosts")
COMPLETION = "fct_ns"  # may be missing, as a column or in some rows

BYTES_PER_NS = 1.25  # 10 Gb/s
PACKET_BYTES, HEADER_BYTES = 1000, 48
_EXACT = 2.0**53 - 1  # above it not every whole number is a float
_MOST_HOSTS = 2**20


@dataclass(frozen=True, eq=False)
class Shard:
    """The flows of one parking lot; its times are nanoseconds, its rates bytes/ns."""

    name: str
    rows: IntArray  # (F,) the flows' places in the file
    network: ParkingLot
    flows: FlowSet

    def completion_ns(self) -> FloatArray:
        """(F,) ns from arrival to end, from the max-min fluid simulator."""
        return simulate_flows(self.network.capacity, self.flows).completion


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
            found[shard.rows] = shard.completion_ns()
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
    rows, lines = _rows(path)
    column = {name: index for index, name in enumerate(rows[0])}
    table = _Table(path, lines[1:], dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True)))
    name = np.array([cell.strip() for cell in table.cells["shard"]])
    table.refuse("shard", name == "", "is missing")
    arrival = table.numbers("arrival_ns")
    table.refuse("arrival_ns", arrival < 0.0, "is negative")
    table.refuse("arrival_ns", arrival > _EXACT, "is above 2^53, where nanoseconds are not exact")
    size = table.whole("size_bytes", 1)
    hosts = table.whole("n_hosts", 2)
    table.refuse("n_hosts", hosts > _MOST_HOSTS, f"is above {_MOST_HOSTS}")
    source, destination = table.whole("src", 0), table.whole("dst", 0)
    for field, host in (("src", source), ("dst", destination)):
        table.refuse(field, host >= hosts, "is no host: they are 0 to n_hosts - 1")
    table.refuse("dst", source == destination, "is the source too")
    volume = (size + HEADER_BYTES * -(-size // PACKET_BYTES)).astype(np.float64)
    shards = []
    _, first, group = np.unique(name, return_index=True, return_inverse=True)
    table.refuse("n_hosts", hosts != hosts[first][group], "is not that of the shard's other rows")
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    for own in sorted(members, key=lambda rows: int(rows[0])):
        network = ParkingLot(int(hosts[own[0]]), BYTES_PER_NS)
        shards.append(
            Shard(
                name=str(name[own[0]]),
                rows=own,
                network=network,
                flows=_flows(network, arrival[own], volume[own], source[own], destination[own]),
            )
        )
    fct = None
    if COMPLETION in column:
        fct = table.numbers(COMPLETION, blank=np.nan)
        table.refuse(COMPLETION, fct <= 0.0, "is not positive")
    return FlowFile(tuple(shards), volume / BYTES_PER_NS, fct)


def _flows(
    network: ParkingLot,
    arrival: FloatArray,
    volume: FloatArray,
    source: IntArray,
    destination: IntArray,
) -> FlowSet:
    flows = len(arrival)
    link_ptr, path_links = network.routes(source, destination)
    return FlowSet(
        arrival=arrival,
        volume=volume,
        path_ptr=np.arange(flows + 1),
        link_ptr=link_ptr,
        path_links=path_links,
        priority=np.zeros(flows, dtype=np.int64),
        weight=np.ones(flows),
        latency=np.zeros(flows),
        limit=np.full(flows, np.inf),
    )


@dataclass(frozen=True)
class _Table:
    """The cells by column, and the checks that name the row of a wrong one."""

    path: str | Path
    lines: Sequence[int]  # of each row in the file
    cells: dict[str, Sequence[str]]

    def numbers(self, field: str, blank: float | None = None) -> FloatArray:
        """A column of finite numbers; a blank cell is `blank`, where that is given."""
        cells = self.cells[field]
        try:
            if any("_" in cell for cell in cells):
                raise ValueError  # Python reads 1_000, the format does not know it
            values = np.array([float(cell) for cell in cells])
        except ValueError:
            values = np.array([self._number(row, field, blank) for row in range(len(cells))])
        known = np.array([cell.strip() != "" for cell in cells])
        self.refuse(field, known & ~np.isfinite(values), "is not finite")
        return values

    def whole(self, field: str, least: int) -> IntArray:
        """A column of whole numbers, at least `least`."""
        values = self.numbers(field)
        self.refuse(field, values != np.floor(values), "is not a whole number")
        self.refuse(field, values < least, f"is below {least}")
        self.refuse(field, values > _EXACT, "is too large")
        return values.astype(np.int64)

    def refuse(self, field: str, wrong: BoolArray, why: str) -> None:
        """Raises InputError for the first wrong row."""
        for row in np.flatnonzero(wrong):
            raise self._error(int(row), field, why)

    def _number(self, row: int, field: str, blank: float | None) -> float:
        cell = self.cells[field][row].strip()
        if cell == "" and blank is not None:
            return blank
        try:
            if "_" in cell:
                raise ValueError
            return float(cell)
        except ValueError:
            raise self._error(row, field, "is not a number") from None

    def _error(self, row: int, field: str, why: str) -> InputError:
        cell = self.cells[field][row].strip()
        where = f"row {row + 1} (line {self.lines[row]})"
        message = f"{cell!r} {why}" if cell else "is missing"
        return InputError(message, file=self.path, record=where, field=field)


def _rows(path: str | Path) -> tuple[list[list[str]], list[int]]:
    """The header and the rows, all of one length, without blank lines; and their line numbers."""
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"is no text in UTF-8 ({error.reason})", file=path) from error
    reader = csv.reader(text.splitlines(), strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(
            f"is no CSV: {error}", file=path, record=f"line {reader.line_num}"
        ) from error
    if not rows:
        raise InputError("is empty", file=path)
    header = rows[0] = [cell.strip() for cell in rows[0]]
    for name in COLUMNS:
        if name not in header:
            raise InputError("is missing", file=path, record="header", field=name)
    for name in (*COLUMNS, COMPLETION):
        if header.count(name) > 1:
            raise InputError("stands twice", file=path, record="header", field=name)
    for index, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise InputError(
                f"has {len(row)} cells, the header has {len(header)}",
                file=path,
                record=f"row {index} (line {lines[index]})",
            )
    if len(rows) == 1:
        raise InputError("holds no flow", file=path)
    return rows, lines


@dataclass(frozen=True)
class ParkingLot:
    """n hosts at n switches in a row; every cable is two links of one capacity.

    Links, in order: from host h to its switch (n), from the switch to host h (n), from switch i to
    i + 1 (n - 1), from switch i + 1 to i (n - 1).
    """

    hosts: int
    link_capacity: float  # bytes per unit of time

    @property
    def capacity(self) -> FloatArray:
        """(4 n - 2,) of each link."""
        return np.full(4 * self.hosts - 2, self.link_capacity)

    def routes(self, source: IntArray, destination: IntArray) -> tuple[IntArray, IntArray]:
        """The only path of each of F flows between different hosts, as rows: pointer and links."""
        n = self.hosts
        hops = np.abs(destination - source)
        ptr = np.concatenate(([0], np.cumsum(hops + 2)))
        links = np.empty(ptr[-1], dtype=np.int64)
        links[ptr[:-1]] = source
        links[ptr[1:] - 1] = n + destination
        before = np.cumsum(hops) - hops
        hop = np.arange(hops.sum()) - np.repeat(before, hops)  # 0.. within each flow
        slot = np.repeat(ptr[:-1] + 1, hops) + hop
        start, up = np.repeat(source, hops), np.repeat(destination > source, hops)
        links[slot] = np.where(up, 2 * n + start + hop, 3 * n - 1 + start - hop - 1)
        return ptr, links
