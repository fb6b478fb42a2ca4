"""The openb files: the facts of the real ones, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_traces import table

from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from tests.refusal import refusal

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
SHARED = "p-2,4000,8192,1,460,V100M16|V100M32,LS,Running,120,400,150"
WHOLE = "p-1,12000,16384,2,1000,,LS,Succeeded,100,200,110"
WITHOUT = "p-0,500,0,0,0,G2,BE,Failed,120,121,120"
NODES = "sn,cpu_milli,memory_mib,gpu,model"


def test_the_real_pods(data: Path) -> None:
    path = data / "traces" / "openb" / "openb_pod_list_default.csv.gz"
    asked = OpenbReader().read_requests(path)
    assert len(asked) == 8152
    assert (asked.num_gpus == 0).sum() == 1088
    assert asked.demand_milli.sum() == 6_086_800
    assert (asked.gpu_milli[asked.num_gpus > 1] == 1000).all()
    assert asked.gpu_type.names == ()
    read = OpenbReader().read(path)
    assert (len(read.trace), read.num_rejected) == (7255, 897)
    assert [(r.field, r.excluded) for r in read.rejected] == [("scheduled_time", True)]
    duration_s = read.trace.duration_s
    assert (duration_s.min(), duration_s.max()) == (4, 12_537_496)
    assert read.trace.span_s == 12_901_761 - read.origin_s


def test_the_real_nodes(data: Path) -> None:
    cluster = read_openb_nodes(data / "traces" / "openb" / "openb_node_list_gpu_node.csv.gz")
    assert (cluster.num_nodes, cluster.num_gpus, cluster.gpus.max()) == (1213, 6212, 8)
    assert len(cluster.gpu_types) == 7
    assert (cluster.cpu_milli.sum(), cluster.memory_mib.max()) == (107_018_000, 1_048_576)


def test_requests_hold_every_pod_in_the_order_of_the_file(tmp_path: Path) -> None:
    header = "name,gpu_spec,cpu_milli,memory_mib,num_gpu,gpu_milli"
    path = table(tmp_path / "pods.csv", header, "b,G2,1000,5,1,250", "a,G3,0,0,0,0")
    asked = OpenbReader().read_requests(path)
    assert asked.job_id.tolist() == ["b", "a"]
    assert asked.demand_milli.tolist() == [250, 0]
    assert [asked.gpu_type[job] for job in range(2)] == ["G2", None]
    assert asked.name == "pods"


def test_permitted_types(tmp_path: Path) -> None:
    """Of the cluster's types G2 and P100; a type that it does not have permits nothing."""
    nodes = table(tmp_path / "nodes.csv", NODES, "n0,8000,1,2,G2", "n1,8000,1,1,P100")
    cluster = read_openb_nodes(nodes)
    assert cluster.gpu_types == ("G2", "P100")
    labels = ("", "G2", "P100|A10", "A10", "P100|G2", "P10")
    rows = [f"p{i},0,0,1,500,{spec},,,0,1,0" for i, spec in enumerate(labels)]
    asked = OpenbReader().read_requests(table(tmp_path / "pods.csv", HEADER, *rows))
    assert asked.permitted(cluster).tolist() == [3, 1, 2, 0, 3, 0]


@pytest.mark.parametrize(
    ("rows", "gpus", "types", "names"),
    [
        (["n0,32000,262144,0,", "n1,64000,1,2,P100"], [0, 2], [0, 1], ("no GPU", "P100")),
        (["n0,1,1,1,A10", "n1,1,1,1,A10"], [1, 1], [0, 0], ("A10",)),
    ],
)
def test_the_cluster_says_which_types_it_has(
    rows: list[str], gpus: list[int], types: list[int], names: tuple[str, ...], tmp_path: Path
) -> None:
    cluster = read_openb_nodes(table(tmp_path / "nodes.csv", NODES, *rows))
    assert (cluster.gpus.tolist(), cluster.gpu_type.tolist()) == (gpus, types)
    assert (cluster.gpu_types, cluster.num_racks) == (names, 1)


BAD_PODS = {
    WHOLE.replace("1000", "999"): ("gpu_milli", "is a part of several GPUs"),
    SHARED.replace("460", "0"): ("gpu_milli", "is zero"),
    SHARED.replace("460", "1001"): ("gpu_milli", "is too large"),
    SHARED.replace("460", "46.5"): ("gpu_milli", "is not a whole number"),
    WITHOUT.replace(",0,0,G2", ",0,10,G2"): ("gpu_milli", "num_gpu is zero"),
    SHARED.replace("4000", "-1"): ("cpu_milli", "is negative"),
    SHARED.replace("8192", "much"): ("memory_mib", "is not a number"),
    SHARED.replace("p-2", ""): ("name", "is missing"),
    WHOLE: ("name", "stands twice"),
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
    """Requests do not look at times."""
    field, reason = (BAD_PODS | BAD_TIMES)[row]
    path, reader = table(tmp_path / "pods.csv", HEADER, WHOLE, row), OpenbReader()
    with refusal(rf"row 2 \(line 3\): field '{field}': .*{reason}"):
        reader.read(path)
    read = reader.read(path, strict=False)
    assert [(r.field, r.rows, r.excluded) for r in read.rejected] == [(field, 1, False)]
    assert len(read.trace) == 1
    if row in BAD_TIMES:
        assert len(reader.read_requests(path)) == 2
    else:
        with refusal(f"field '{field}': .*{reason}"):
            reader.read_requests(path)


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
    with refusal(f"row 2 .*field '{field}'"):
        read_openb_nodes(table(tmp_path / "nodes.csv", NODES, "n0,1,1,1,P100", row))
