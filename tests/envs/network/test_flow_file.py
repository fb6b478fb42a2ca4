"""The flow file: what it says, the published completion times, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference_fluid import reference_completion

from envs.network.flow_file import read_flow_file, routes
from tests.envs.network.made_flows import flow_set
from tests.refusal import refusal

HEADER = "shard,arrival_ns,size_bytes,src,dst,fct_ns,n_hosts"
ROWS = (
    "0,1000.0,1000,0,2,,3",
    "b,500.0,999,1,0,1618.4,2",
    "0,1000.0,2001,1,2,,3",
    "0,0.0,50,2,0,78.4,3",
    "b,400.0,1000,1,0,838.4,2",
)


def written(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "flows.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


@pytest.mark.slow
def test_the_published_completion_times(data: Path) -> None:
    file = read_flow_file(data / "network" / "m3" / "flows.csv.gz")
    assert len(file.shards) == 50
    assert file.num_flows == 12_400
    assert file.fct_ns is not None
    assert_allclose(file.completion_ns(), file.fct_ns, rtol=1e-9)


def test_every_shard_is_a_parking_lot_of_its_own(tmp_path: Path) -> None:
    """Unsorted and equal arrivals, both directions, headers; two shards, rows of one scattered."""
    file = read_flow_file(written(tmp_path, *ROWS))
    assert [(shard.name, shard.hosts) for shard in file.shards] == [("0", 3), ("b", 2)]
    assert [shard.rows.tolist() for shard in file.shards] == [[0, 2, 3], [1, 4]]
    sent = np.array([1048.0, 999 + 48.0, 2001 + 144.0, 98.0, 1048.0])
    assert_allclose(file.ideal_ns, sent / 1.25, rtol=1e-15)
    assert file.fct_ns is not None
    assert np.flatnonzero(np.isnan(file.fct_ns)).tolist() == [0, 2]
    # Both flows to host 2 share its link until the smaller has gone; the others are alone, but
    # flow 1 waits in part for flow 4: 100 ns alone, then half each.
    alone = sent / 1.25
    shared = 2 * alone[4] - 100.0
    expected = [2 * alone[0], alone[4] + alone[1] - 100.0, alone[0] + alone[2], alone[3], shared]
    assert_allclose(file.completion_ns(), expected, rtol=1e-12)


def test_a_random_shard_agrees_with_exact_arithmetic(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    hosts, rows, paths = 5, [], []
    for _ in range(40):
        source, destination = rng.permutation(hosts)[:2]
        up = range(source, destination)
        down = range(source - 1, destination - 1, -1)
        between = [2 * hosts + i for i in up] + [3 * hosts - 1 + i for i in down]
        paths.append([[int(source), *between, hosts + int(destination)]])
        rows.append(f"x,{rng.integers(20_000)},{rng.integers(1, 9000)},{source},{destination},,5")
    file = read_flow_file(written(tmp_path, *rows))
    cells = [row.split(",") for row in rows]
    size = np.array([int(row[2]) for row in cells])
    volume = size + 48 * np.ceil(size / 1000)
    flows = flow_set([float(row[1]) for row in cells], volume, paths)
    expected = reference_completion([1.25] * (4 * hosts - 2), flows)
    assert_allclose(file.completion_ns(), expected, rtol=1e-9)


def test_other_columns_in_another_order_are_the_same_flows(tmp_path: Path) -> None:
    path = written(tmp_path, *ROWS)
    expected = read_flow_file(path).completion_ns()
    order = [6, 3, 0, 4, 2, 1]
    rows = [row.split(",") for row in (HEADER, *ROWS)]
    lines = [",".join(["extra", *(row[c] for c in order)]) for row in rows]
    file = read_flow_file(written(tmp_path, *lines[1:], header=lines[0]))
    assert_array_equal(file.completion_ns(), expected)
    assert file.fct_ns is None


GOOD = "0,5.0,1000,0,1,838.4,2"
BAD = {
    "negative size": ("0,5.0,-7,0,1,838.4,2", r"row 2 \(line 3\): field 'size_bytes': '-7' is neg"),
    "late": ("0,1e16,1000,0,1,838.4,2", r"field 'arrival_ns': '1e16' is above 2\^53"),
    "unknown source": ("0,5.0,1000,2,1,838.4,2", "field 'src': '2' is no host"),
    "to itself": ("0,5.0,1000,1,1,838.4,2", "field 'dst': '1' is the source too"),
    "one host": ("1,5.0,1000,0,0,838.4,1", "field 'n_hosts': '1' is below 2"),
    "other hosts": ("0,5.0,1000,0,1,838.4,3", "field 'n_hosts': '3' is not that of the shard"),
    "no shard": (" ,5.0,1000,0,1,838.4,2", "field 'shard': is missing"),
    "no time": ("0,5.0,1000,0,1,0.0,2", "field 'fct_ns': '0.0' is not positive"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_row_is_refused_by_file_row_and_field(fault: str, tmp_path: Path) -> None:
    row, words = BAD[fault]
    path = written(tmp_path, GOOD, row)
    with refusal(words) as refused:
        read_flow_file(path)
    assert refused.value.file == path


def test_routes_go_up_and_down_the_row() -> None:
    """Four hosts: links from the hosts 0-3, to the hosts 4-7, up the row 8-10, down it 11-13."""
    pairs = np.array([(0, 3), (2, 1), (3, 0), (1, 2)])
    ptr, links = routes(4, pairs[:, 0], pairs[:, 1])
    rows = [links[ptr[f] : ptr[f + 1]].tolist() for f in range(4)]
    assert rows == [[0, 8, 9, 10, 7], [2, 12, 5], [3, 13, 12, 11, 4], [1, 9, 6]]
    ptr, links = routes(4, pairs[:0, 0], pairs[:0, 1])
    assert (ptr.tolist(), links.tolist()) == ([0], [])
