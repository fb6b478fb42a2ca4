"""The openb files: the facts of the real ones, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_traces import left_out, table

from envs.cluster.nodes import Cluster
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from tests.refusal import refusal

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)


def test_the_real_pods(data: Path) -> None:
    path = data / "traces" / "openb" / "openb_pod_list_default.csv.gz"
    asked = OpenbReader().read_requests(path)
    assert (len(asked), (asked.num_gpus == 0).sum()) == (8152, 1088)
    assert (asked.demand_milli.sum(), asked.gpu_type.names) == (6_086_800, ())
    assert (asked.gpu_milli[asked.num_gpus > 1] == 1000).all()
    found = OpenbReader().read(path)
    assert len(found.trace) == 7255
    assert left_out(found) == [
        "no job: 897 from row 62 (line 63): scheduled_time was never scheduled"
    ]
    duration_s = found.trace.duration_s
    assert (duration_s.min(), duration_s.max()) == (4, 12_537_496)
    assert found.trace.span_s == 12_901_761 - found.origin_s


def test_the_real_nodes(data: Path) -> None:
    cluster = read_openb_nodes(data / "traces" / "openb" / "openb_node_list_gpu_node.csv.gz")
    assert (cluster.num_nodes, cluster.num_gpus, cluster.gpus.max()) == (1213, 6212, 8)
    assert (cluster.cpu_milli.sum(), cluster.memory_mib.max()) == (107_018_000, 1_048_576)
    assert len(cluster.gpu_types) == 7


def test_requests_hold_every_pod_in_the_order_of_the_file(tmp_path: Path) -> None:
    header = "name,gpu_spec,cpu_milli,memory_mib,num_gpu,gpu_milli"
    path = table(tmp_path / "pods.csv", header, "b,G2,1000,5,1,250", "a,G3,0,0,0,0")
    asked = OpenbReader().read_requests(path)
    assert (asked.name, asked.job_id.tolist()) == ("pods", ["b", "a"])
    assert asked.demand_milli.tolist() == [250, 0]
    assert (asked.gpu_type[0], asked.gpu_type[1]) == ("G2", None)


def nodes(folder: Path, *rows: str) -> Cluster:
    return read_openb_nodes(table(folder / "nodes.csv", "sn,cpu_milli,memory_mib,gpu,model", *rows))


def test_the_cluster_says_which_types_it_has_and_pods_may_run_on(tmp_path: Path) -> None:
    """A type that the cluster does not have permits nothing."""
    for rows, gpus, types, names in (
        (["n0,32000,262144,0,", "n1,64000,1,2,P100"], [0, 2], [0, 1], ("no GPU", "P100")),
        (["n0,1,1,1,A10", "n1,1,1,1,A10"], [1, 1], [0, 0], ("A10",)),
        (["n0,8000,1,2,G2", "n1,8000,1,1,P100"], [2, 1], [0, 1], ("G2", "P100")),
    ):
        cluster = nodes(tmp_path, *rows)
        assert (cluster.gpus.tolist(), cluster.gpu_type.tolist()) == (gpus, types)
        assert (cluster.gpu_types, cluster.num_racks) == (names, 1)
    labels = ("", "G2", "P100|A10", "A10", "P100|G2", "P10")
    pods = [f"p{i},0,0,1,500,{spec},,,0,1,0" for i, spec in enumerate(labels)]
    asked = OpenbReader().read_requests(table(tmp_path / "pods.csv", HEADER, *pods))
    assert asked.permitted(cluster).tolist() == [3, 1, 2, 0, 3, 0]


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
        nodes(tmp_path, "n0,1,1,1,P100", row)
