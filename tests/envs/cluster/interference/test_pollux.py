"""Pollux' step times: exact where measured, linear between."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from made_up import named_trace

from envs.cluster.interference.pollux import PolluxLocality, read_pollux, smallest_rotation
from envs.cluster.interference.rates import ALONE, CONTENTION
from envs.cluster.nodes import Cluster
from tests.refusal import refusal

TIMES = "local_bsz,step_time,sync_time"
PLACEMENTS = (
    "1,10,1,0", "1,20,2,0", "2,10,1.1,0.1", "4,10,1.2,0.2", "11,10,1.6,0.6", "22,10,2,1",
    "13,10,3,2", "112,10,1.5,0.5",
)  # fmt: skip
SCALABILITY = ("6,6,10,4,3", "6,12,10,5,4")


def folder(
    tmp_path: Path,
    placements: tuple[str, ...] = PLACEMENTS,
    scalability: tuple[str, ...] = SCALABILITY,
) -> str:
    (tmp_path / "net").mkdir(exist_ok=True)
    (tmp_path / "net/placements.csv").write_text("\n".join([f"placement,{TIMES}", *placements]))
    header = f"num_nodes,num_replicas,{TIMES}"
    (tmp_path / "net/scalability.csv").write_text("\n".join([header, *scalability]))
    return str(tmp_path)


@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"])
def test_exact_at_every_measured_point(data: Path, name: str) -> None:
    place = data / "interference/pollux"
    model = read_pollux(place)[name]
    measured = defaultdict(lambda: defaultdict(list))  # times by batch, then nodes and replicas
    for file in ("placements.csv", "scalability.csv"):
        with open(place / name / file, newline="") as stream:
            for row in csv.DictReader(stream):
                batch = int(row["local_bsz"])
                times = float(row["step_time"]), float(row["sync_time"])
                if "placement" in row:
                    ring = [int(d) for d in row["placement"]]
                    assert model.placements[smallest_rotation(ring[1:] + ring[:1])][batch] == times
                    key = len(ring), sum(ring)
                else:
                    key = int(row["num_nodes"]), int(row["num_replicas"])
                measured[batch][key].append(times)
    batch = sorted(measured)[len(measured) // 2]
    spread = model.spread(batch)
    for (nodes, replicas), found in measured[batch].items():
        assert spread.seconds(nodes, replicas) == pytest.approx(np.mean(found, axis=0))


def test_interpolation(tmp_path: Path) -> None:
    model = read_pollux(Path(folder(tmp_path)))["net"]
    assert model.spread(15).seconds(1, 1) == (1.5, 0.0)
    spread = model.spread(10)
    assert spread.seconds(2, 4) == (2.5, 1.5)  # the mean of 22 and 13
    assert spread.seconds(2, 3) == pytest.approx((2.05, 1.05))  # between 11 and that
    assert spread.seconds(1, 3) == pytest.approx((1.15, 0.15))
    assert spread.seconds(6, 9) == pytest.approx((4.5, 3.5))
    assert spread.seconds(4, 9) == pytest.approx((1.5 + 3.0 / 3, 0.5 + 3.0 / 3))
    assert spread.seconds(9, 99) == (5.0, 4.0)  # the nearest measurement
    with refusal("no time at 21 samples per GPU"):
        model.spread(21)


def test_rates_by_nodes(tmp_path: Path) -> None:
    trace, cluster = named_trace(["net"] * 3, [1, 2, 4]), Cluster.uniform(4, 2, nodes_per_rack=2)
    alone, contending = (
        PolluxLocality(folder(tmp_path), {"net": 10}, eta, 0).tables(trace, cluster)
        for eta in (None, 0.2)
    )
    assert alone.kind == ALONE
    assert alone.locality[0, 0].min() == 1.0
    assert alone.locality[1, 0, 2, :2] == pytest.approx([1.0, 1.1 / 1.6])
    assert alone.locality[2, 0, 1, :3] == pytest.approx([1.0, 1.0, 1.0])
    assert (contending.kind, contending.eta) == (CONTENTION, 0.2)
    assert contending.communication[1, 0, :, 1] == pytest.approx([0.0, 0.6 / 1.6, 0.6 / 1.6])


def test_rotations() -> None:
    assert smallest_rotation([3, 0, 1, 2]) == (1, 2, 3)
    assert smallest_rotation([2, 1, 2, 1]) == (1, 2, 1, 2)
    assert smallest_rotation([0]) == ()


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        ("placements", ("1,10,1",), r"placements.csv: record row 1 \(line 2\): has 3 cells"),
        ("placements", ("101,10,1,0",), "row 1 .*: field 'placement': '101' is no placement"),
        ("placements", ("1,0,1,0",), "field 'local_bsz': '0' is zero"),
        ("placements", ("1,10,x,0",), "field 'step_time': 'x' is not a number"),
        ("placements", ("1,10,1,1",), "field 'sync_time': '1' is not below the step"),
        (
            "placements",
            ("12,10,2,1", "21,10,2,1"),
            "row 2 .*: field 'local_bsz': '10' stands twice",
        ),
        (
            "scalability",
            ("6,5,10,2,1",),
            "row 1 .*: field 'num_replicas': '5' is less than num_nodes",
        ),
    ],
)
def test_a_malformed_file_names_the_place(
    tmp_path: Path, file: str, rows: tuple[str, ...], message: str
) -> None:
    with refusal(message):
        PolluxLocality(folder(tmp_path, **{file: rows}), {"net": 10})


def test_other_bad_input(tmp_path: Path) -> None:
    with refusal("has no model"):
        PolluxLocality(str(tmp_path), {"net": 10})
    path = folder(tmp_path)
    with refusal("'local_batch': no model 'web'"):
        PolluxLocality(path, {"web": 10})
    with refusal(r"'local_batch.net': -1 is negative"):
        PolluxLocality(path, {"net": -1})
    (tmp_path / "net/scalability.csv").write_text("nodes\n")
    with refusal("record header: field 'num_nodes': is missing"):
        PolluxLocality(path, {"net": 10})
