"""The openb files: the facts of the real ones, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.cluster.nodes import Cluster
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from tests.refusal import refusal

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
SHARED = "p-2,4000,8192,1,460,V100M16|V100M32,LS,Running,120,400,150"
WHOLE = "p-1,12000,16384,2,1000,,LS,Succeeded,100,200,110"
WITHOUT = "p-0,500,0,0,0,G2,BE,Failed,120,121,120"
WAITING = "p-3,500,0,1,1000,,BE,Pending,90,300,"


def pods(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "pods.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def nodes(folder: Path, *rows: str) -> Path:
    path = folder / "nodes.csv"
    path.write_text("\n".join(("sn,cpu_milli,memory_mib,gpu,model", *rows)) + "\n")
    return path


def test_the_real_pods(data: Path) -> None:
    path = data / "traces" / "openb" / "openb_pod_list_default.csv.gz"
    asked = OpenbReader().read_requests(path)
    assert len(asked) == 8152
    assert (asked.num_gpus == 0).sum() == 1088
    assert asked.demand_milli.sum() == 6_086_800
    assert (asked.gpu_milli[asked.num_gpus > 1] == 1000).all()
    assert asked.gpu_type.names == ()
    read = OpenbReader().read(path)
    assert len(read.trace) == 7255
    assert read.num_rejected == 897
    assert [(r.field, r.excluded) for r in read.rejected] == [("scheduled_time", True)]
    assert read.trace.duration_s.min() == 4
    assert read.trace.duration_s.max() == 12_537_496
    assert read.trace.span_s == 12_901_761 - read.origin_s


def test_the_real_nodes(data: Path) -> None:
    cluster = read_openb_nodes(data / "traces" / "openb" / "openb_node_list_gpu_node.csv.gz")
    assert cluster.num_nodes == 1213
    assert cluster.num_gpus == 6212
    assert cluster.gpus.max() == 8
    assert len(cluster.gpu_types) == 7
    assert cluster.cpu_milli.sum() == 107_018_000
    assert cluster.memory_mib.max() == 1_048_576


def test_pods_become_jobs_in_canonical_order(tmp_path: Path) -> None:
    read = OpenbReader().read(pods(tmp_path, SHARED, WHOLE, WITHOUT, WAITING))
    trace = read.trace
    assert trace.job_id.tolist() == ["p-1", "p-0", "p-2"]
    assert trace.submit_s.tolist() == [0, 20, 20]
    assert trace.duration_s.tolist() == [90, 1, 250]
    assert trace.num_gpus.tolist() == [2, 0, 1]
    assert trace.gpu_milli.tolist() == [1000, 1000, 460]
    assert trace.cpu_milli.tolist() == [12_000, 500, 4000]
    assert trace.memory_mib.tolist() == [16_384, 0, 8192]
    assert [trace.gpu_type[job] for job in range(3)] == [None, None, "V100M16|V100M32"]
    assert read.origin_s == 100
    assert [(r.reason, r.rows) for r in read.rejected] == [("was never scheduled", 1)]


def test_requests_hold_every_pod_in_the_order_of_the_file(tmp_path: Path) -> None:
    header = "name,gpu_spec,cpu_milli,memory_mib,num_gpu,gpu_milli"
    path = pods(tmp_path, "b,G2,1000,5,1,250", "a,G3,0,0,0,0", header=header)
    asked = OpenbReader().read_requests(path)
    assert asked.job_id.tolist() == ["b", "a"]
    assert asked.demand_milli.tolist() == [250, 0]
    assert [asked.gpu_type[job] for job in range(2)] == ["G2", None]
    assert asked.name == "pods"


def test_permitted_types(tmp_path: Path) -> None:
    """Of the cluster's types G2 and P100; a type that it does not have permits nothing."""
    cluster = read_openb_nodes(nodes(tmp_path, "n0,8000,1,2,G2", "n1,8000,1,1,P100"))
    assert cluster.gpu_types == ("G2", "P100")
    labels = ("", "G2", "P100|A10", "A10", "P100|G2", "P10")
    rows = [f"p{i},0,0,1,500,{spec},,,0,1,0".replace(" ", "") for i, spec in enumerate(labels)]
    asked = OpenbReader().read_requests(pods(tmp_path, *rows))
    assert asked.permitted(cluster).tolist() == [3, 1, 2, 0, 3, 0]


def test_a_node_without_gpus_has_no_type(tmp_path: Path) -> None:
    cluster = read_openb_nodes(nodes(tmp_path, "n0,32000,262144,0,", "n1,64000,1,2,P100"))
    assert cluster.gpus.tolist() == [0, 2]
    assert cluster.gpu_types == ("no GPU", "P100")


BAD_PODS = {
    WHOLE.replace("1000", "999"): ("gpu_milli", "is a part of several GPUs"),
    SHARED.replace("460", "0"): ("gpu_milli", "is zero"),
    SHARED.replace("460", "1001"): ("gpu_milli", "is too large"),
    SHARED.replace("460", "46.5"): ("gpu_milli", "is not a whole number"),
    WITHOUT.replace(",0,0,G2", ",0,10,G2"): ("gpu_milli", "num_gpu is zero"),
    SHARED.replace("4000", "-1"): ("cpu_milli", "is negative"),
    SHARED.replace("8192", "much"): ("memory_mib", "is not a number"),
    SHARED.replace("p-2", ""): ("name", "is missing"),
}
BAD_TIMES = {
    SHARED.replace(",150", ","): ("scheduled_time", "is missing"),
    SHARED.replace(",400,", ",,"): ("deletion_time", "is missing"),
    SHARED.replace(",400,", ",150,"): ("deletion_time", "no duration"),
    SHARED.replace(",400,", ",149,"): ("deletion_time", "is before scheduled_time"),
    SHARED.replace(",150", ",119"): ("scheduled_time", "is before creation_time"),
}


@pytest.mark.parametrize("row", [*BAD_PODS, *BAD_TIMES])
def test_a_faulty_pod_is_named_or_counted(row: str, tmp_path: Path) -> None:
    field, reason = (BAD_PODS | BAD_TIMES)[row]
    path = pods(tmp_path, WHOLE, row)
    with refusal(reason) as caught:
        OpenbReader().read(path)
    assert caught.value.field == field
    assert "row 2 (line 3)" in str(caught.value)
    read = OpenbReader().read(path, strict=False)
    assert len(read.trace) == 1
    assert [(r.field, r.rows, r.excluded) for r in read.rejected] == [(field, 1, False)]


@pytest.mark.parametrize("row", [*BAD_PODS, WHOLE])
def test_a_faulty_request_is_refused(row: str, tmp_path: Path) -> None:
    field, reason = {**BAD_PODS, WHOLE: ("name", "stands twice")}[row]
    with refusal(reason) as caught:
        OpenbReader().read_requests(pods(tmp_path, WHOLE, row))
    assert caught.value.field == field


@pytest.mark.parametrize("row", list(BAD_TIMES))
def test_requests_do_not_look_at_times(row: str, tmp_path: Path) -> None:
    assert len(OpenbReader().read_requests(pods(tmp_path, WHOLE, row))) == 2


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("n0,1,1,1,P100", "sn"),
        ("n1,1,1,1,", "model"),
        ("n1,1,1,x,P100", "gpu"),
        ("n1,-1,1,1,P100", "cpu_milli"),
        ("n1,1,,1,P100", "memory_mib"),
    ],
)
def test_a_faulty_node_is_refused(row: str, field: str, tmp_path: Path) -> None:
    with refusal("row 2") as caught:
        read_openb_nodes(nodes(tmp_path, "n0,1,1,1,P100", row))
    assert caught.value.field == field


def test_the_cluster_says_which_types_it_has(tmp_path: Path) -> None:
    cluster: Cluster = read_openb_nodes(nodes(tmp_path, "n0,1,1,1,A10", "n1,1,1,1,A10"))
    assert cluster.gpu_type.tolist() == [0, 0]
    assert cluster.num_racks == 1
