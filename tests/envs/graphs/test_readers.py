"""Readers of published graphs: facts of the real files, and faults named in small ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xlrd

from envs.cost import TabulatedCost
from envs.files import read_json
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.readers import (
    PipeDreamReader,
    read_graph_file,
)
from envs.graphs.storage import graph_hash, save_graph
from envs.step.problem import StepProblem
from tests.refusal import refusal

Record = dict[str, object]

# --- dnn-partitioning


def node(identifier: int, **changes: object) -> Record:
    return {
        "id": identifier, "name": f"node{identifier}", "supportedOnFpga": 1, "cpuLatency": 10.0,
        "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 8.0,
    } | changes  # fmt: skip


def edge(source: int, target: int, **changes: object) -> Record:
    return {"sourceId": source, "destId": target, "cost": 3.0, "size": 6.0} | changes


def written(path: Path, nodes: list[Record], edges: list[Record], **header: object) -> Path:
    document = {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1} | header
    path.write_text(json.dumps(document | {"nodes": nodes, "edges": edges}))
    return path


def test_times_memory_and_topology_of_a_small_file(tmp_path: Path) -> None:
    path = written(
        tmp_path / "small.json",
        [node(7), node(3, supportedOnFpga=False, fpgaLatency=0.0)],
        [edge(7, 3)],
    )
    file = read_graph_file(path)
    graph, topology = file.graph, file.topology
    assert topology is not None
    assert graph.name == "small"
    assert graph.op_names == ("node7", "node3")
    assert graph.profile_seconds.tolist() == [[0.010, 0.001], [0.010, np.inf]]
    assert graph.state_bytes.tolist() == [8.0, 8.0]
    assert graph.bytes_written.tolist() == [6.0, 0.0]
    assert graph.link_seconds.tolist() == [[0.0, 0.003, 0.006]]
    assert [device.name for device in topology.devices] == ["accelerator0", "accelerator1", "cpu"]
    assert topology.memory_bytes.tolist() == [100.0, 100.0, np.inf]
    assert topology.link_class.tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]
    assert topology.class_bandwidth.tolist() == [np.inf, 2000.0, 1000.0]
    assert topology.num_ports == 6
    problem = StepProblem.build(graph, topology, TabulatedCost())
    assert problem.op_seconds.tolist() == [[0.001, 0.001, 0.010], [np.inf, np.inf, 0.010]]


def test_edges_of_equal_cost_and_size_are_one_tensor(tmp_path: Path) -> None:
    edges = [edge(0, 1), edge(0, 2), edge(0, 3, cost=4.0), edge(0, 4, size=7.0)]
    graph = read_graph_file(written(tmp_path / "g.json", [node(i) for i in range(5)], edges)).graph
    assert [graph.consumers(tensor).tolist() for tensor in range(3)] == [[1, 2], [3], [4]]


def test_a_missing_colour_ties_nothing(tmp_path: Path) -> None:
    nodes = [node(0, colorClass=9), node(1), node(2, colorClass=None), node(3, colorClass=9)]
    graph = read_graph_file(written(tmp_path / "g.json", nodes, [])).graph
    assert graph.colocation.tolist() == [0, NONE, NONE, 0]


def test_backward_nodes_mirror_by_name_or_by_a_class_of_one(tmp_path: Path) -> None:
    nodes = [
        node(0, name="node1", colorClass=1),
        node(1, name="MatMul1", colorClass=2),
        node(2, name="alone", colorClass=3),
        node(3, name="node1grad", isBackwardNode=1, colorClass=1),
        node(4, name="MatMul1_Grad/Gemm_0", isBackwardNode=1, colorClass=2),
        node(5, name="unnamed", isBackwardNode=1, colorClass=3),
        node(6, name="Loss", isBackwardNode=1),
    ]
    graph = read_graph_file(written(tmp_path / "g.json", nodes, [])).graph
    assert graph.mirror.tolist() == [NONE, NONE, NONE, 0, 1, 2, NONE]
    assert graph.phase.tolist() == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 4
    assert graph.kind[1] == graph.kind[4] == Kind.MATMUL


@pytest.mark.parametrize(
    ("nodes", "edges", "fault"),
    [
        ([node(0), node(0, name="b")], [], "record node 0: field 'id': stands 2 times"),
        ([node(0), node(1, name="node0")], [], "record node0: field 'id'.*stands twice"),
        ([node(0, id="x")], [], "record node node0: field 'id': 'x' is not an integer"),
        ([node(4, cpuLatency=-1.0)], [], "record node 4: field 'cpuLatency': -1.0 is negative"),
        ([node(4, fpgaLatency=None)], [], "record node 4: field 'fpgaLatency': is missing"),
        ([node(4, size="big")], [], "record node 4: field 'size': 'big' is not a number"),
        ([node(4, cpuLatency=float("nan"))], [], "record node 4: field 'cpuLatency': nan is"),
        ([node(4, isBackwardNode=None)], [], "record node 4: field 'isBackwardNode'"),
        ([node(4, colorClass=[1])], [], "record node 4: field 'colorClass'"),
        ([node(0)], [edge(0, 9)], "record edge 0 -> 9: field 'destId': unknown node 9"),
        ([node(0)], [edge(9, 0)], "record edge 9 -> 0: field 'sourceId': unknown node 9"),
        ([node(0), node(1)], [edge(0, 1, cost=-2)], "record edge 0 -> 1: field 'cost': -2 is neg"),
        ([node(0), node(1)], [edge(0, 1, cost=None)], "field 'cost': is missing"),
        ([node(0), node(1)], [edge(0, 1), edge(1, 0)], "record node0: field 'edges'.*cycle"),
        ([node(0), node(1)], [edge(1, 1)], "record node1: field 'edges'.*cycle"),
    ],
)
def test_a_fault_names_file_record_and_field(
    tmp_path: Path, nodes: list[Record], edges: list[Record], fault: str
) -> None:
    path = written(tmp_path / "faulty.json", nodes, edges)
    with refusal(fault) as caught:
        read_graph_file(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("field", ["maxFPGAs", "maxSizePerFPGA", "maxCPUs"])
def test_a_missing_device_count_is_named(tmp_path: Path, field: str) -> None:
    path = written(tmp_path / "g.json", [node(0)], [], **{field: None})
    with refusal(f"record header: field '{field}': is missing"):
        read_graph_file(path)


@pytest.mark.parametrize(
    ("path", "operators", "backward", "accelerators"),
    [
        ("latency-inputs/LayerGraphs/bert24_inference", 32, 0, 5),
        ("latency-inputs/OperatorGraphs/bert_l-3_inference", 235, 0, 4),
        ("throughput-inputs/LayerGraphs/resnet50_training", 354, 177, 6),
        ("throughput-inputs/OperatorGraphs/resnet50_training", 1243, 639, 6),
    ],
)
def test_published_operator_graphs_are_whole(
    data: Path, path: str, operators: int, backward: int, accelerators: int
) -> None:
    source = data / "graphs" / "dnn-partitioning" / f"{path}.json.gz"
    file = read_graph_file(source)
    assert file.provenance["format"] == "dnn-partitioning"
    assert file.topology is not None
    document = read_json(source)
    graph = file.graph
    assert graph.num_operators == operators
    assert (graph.phase == Phase.BACKWARD).sum() == backward
    assert len(graph.edges) == len(document["edges"])
    assert graph.state_bytes.sum() == sum(item["size"] for item in document["nodes"])
    colours = [item.get("colorClass") for item in document["nodes"]]
    assert graph.num_groups == len({colour for colour in colours if colour is not None})
    assert (graph.colocation == NONE).sum() == colours.count(None)
    assert file.topology.num_devices == accelerators + 1
    mirrored = graph.mirror[graph.mirror != NONE]
    assert (graph.phase[mirrored] == Phase.FORWARD).all()


def test_layer_costs_of_throughput_files_are_a_thousandth_of_latency_ones(data: Path) -> None:
    folder = data / "graphs" / "dnn-partitioning"
    name = "LayerGraphs/bert24_inference.json.gz"
    latency = read_graph_file(folder / "latency-inputs" / name).graph
    throughput = read_graph_file(folder / "throughput-inputs" / name).graph
    np.testing.assert_allclose(latency.link_seconds, 1000 * throughput.link_seconds)


# --- PipeDream

LAYERS = """\
node1 -- Input -- forward_compute_time=50.0, backward_compute_time=7.0, activation_size=8.0, parameter_size=0.0
node2 -- LSTM(4, 2) -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=[10.0; 20.0], parameter_size=40.0
node3 -- __getitem__(1) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=20.0, parameter_size=0.0
node4 -- Linear(in_features=2, out_features=2, bias=True) -- forward_compute_time=1.0, backward_compute_time=3.0, activation_size=5.0, parameter_size=6.0
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node4
"""  # noqa: E501


def uses(graph: OpGraph) -> set[tuple[str, str, float]]:
    return {
        (graph.op_names[u], graph.op_names[v], float(graph.tensor_bytes[t]))
        for u, v, t in graph.edges
    }


FORWARD_USES = {
    ("node1", "node2", 8.0),
    ("node2", "node3", 20.0),
    ("node2", "node4", 10.0),
    ("node2", "node4", 20.0),
    ("node3", "node4", 20.0),
}


def profile(tmp_path: Path, text: str = LAYERS) -> Path:
    path = tmp_path / "layers.txt"
    path.write_text(text)
    return path


def test_a_forward_profile_has_one_operator_per_node(tmp_path: Path) -> None:
    graph = read_graph_file(profile(tmp_path)).graph
    assert graph.op_names == ("node1", "node2", "node3", "node4")
    assert graph.profile_seconds.ravel().tolist() == [0.0, 0.002, 0.0, 0.001]
    assert uses(graph) == FORWARD_USES
    assert graph.state_bytes.tolist() == [0.0, 40.0, 0.0, 6.0]
    assert graph.kind[3] == Kind.MATMUL


def test_the_devices_of_a_profile_come_from_the_arguments(tmp_path: Path) -> None:
    reader = PipeDreamReader(devices=3, memory_bytes=64.0, bandwidth=10.0)
    file = read_graph_file(profile(tmp_path), [reader])
    assert file.topology is not None
    assert file.topology.memory_bytes.tolist() == [64.0] * 3
    problem = StepProblem.build(file.graph, file.topology, TabulatedCost())
    assert problem.transfer_seconds[:, 1].tolist() == [0.8, 1.0, 2.0, 2.0, 0.5]
    default = PipeDreamReader().read(profile(tmp_path)).topology
    assert default is not None
    assert default.num_devices == 4
    assert default.class_bandwidth[1] == 25e9 / 8


def test_training_mirrors_every_layer_and_sends_gradients_back(tmp_path: Path) -> None:
    graph = PipeDreamReader(training=True).read(profile(tmp_path)).graph
    back = FORWARD_USES | {
        ("node1", "node2.backward", 8.0),
        ("node2", "node3.backward", 20.0),
        ("node2", "node4.backward", 10.0),
        ("node2", "node4.backward", 20.0),
        ("node3", "node4.backward", 20.0),
        ("node4", "node4.backward", 5.0),
        ("node4.backward", "node3.backward", 20.0),
        ("node4.backward", "node2.backward", 10.0),
        ("node4.backward", "node2.backward", 20.0),
        ("node3.backward", "node2.backward", 20.0),
    }
    assert uses(graph) == back
    number = {name: index for index, name in enumerate(graph.op_names)}
    for name in ("node2", "node3", "node4"):
        backward = number[f"{name}.backward"]
        assert graph.mirror[backward] == number[name]
        assert graph.phase[backward] == Phase.BACKWARD
        assert graph.colocation[backward] == graph.colocation[number[name]]
    assert "node1.backward" not in number
    assert graph.profile_seconds[number["node2.backward"], 0] == 0.004
    assert graph.gradient_bytes.tolist() == graph.parameter_bytes.tolist() == [40.0, 6.0]


def test_micro_batches_conserve_the_profile(tmp_path: Path) -> None:
    whole = PipeDreamReader(training=True).read(profile(tmp_path)).graph
    split = PipeDreamReader(training=True, micro_batches=4).read(profile(tmp_path)).graph
    assert split.num_micro_batches == 4
    assert split.num_operators == 4 * whole.num_operators
    assert split.num_groups == whole.num_groups
    assert split.state_bytes.sum() == whole.state_bytes.sum() == 2 * 46.0
    for batch in range(4):
        part = {
            (u.removeprefix(f"mb{batch}/"), v.removeprefix(f"mb{batch}/"), 4 * nbytes)
            for u, v, nbytes in uses(split)
            if u.startswith(f"mb{batch}/")
        }
        assert part == uses(whole)  # no tensor leads from one to another
    number = {name: index for index, name in enumerate(split.op_names)}
    for index, name in enumerate(whole.op_names):
        copies = [number[f"mb{batch}/{name}"] for batch in range(4)]
        assert split.micro_batch[copies].tolist() == [0, 1, 2, 3]
        assert len(set(split.colocation[copies])) == 1
        assert (split.phase[copies] == whole.phase[index]).all()
        for column in ("profile_seconds", "bytes_written"):
            total = getattr(split, column)[copies].sum()
            assert total == pytest.approx(getattr(whole, column)[index].sum())
        mirrors = [split.op_names[m] for m in split.mirror[copies] if m != NONE]
        mirror = whole.mirror[index]
        expected = [] if mirror == NONE else [f"mb{b}/{whole.op_names[mirror]}" for b in range(4)]
        assert mirrors == expected


def test_a_forward_profile_in_micro_batches_keeps_each_layer_together(tmp_path: Path) -> None:
    split = PipeDreamReader(micro_batches=2).read(profile(tmp_path)).graph
    assert split.num_operators == 8
    assert split.num_groups == 4
    assert (split.phase == Phase.FORWARD).all()
    with refusal("micro_batches"):
        PipeDreamReader(micro_batches=0)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("node3 -- __getitem__(1)", "node2 -- x", "record node2: field 'id': stands twice"),
        (
            "forward_compute_time=2.0",
            "forward_compute_time=-2.0",
            "'forward_compute_time': -2.0 is",
        ),
        ("backward_compute_time=4.0", "other=4.0", "record node2: field 'backward_compute_time'"),
        ("[10.0; 20.0]", "[10.0; x]", "record node2: field 'activation_size': 'x' is not"),
        ("parameter_size=6.0", "parameter_size=", "record node4: field 'parameter_size': is miss"),
        ("\tnode3 -- node4", "\tnode3 -- node9", "record line 8: field 'destination': unknown"),
        ("\tnode1 -- node2", "\tnode0 -- node2", "record line 5: field 'source': unknown"),
        ("\tnode1 -- node2", "\tnode4 -- node2", "field 'edges'.*cycle"),
        ("\tnode1 -- node2", "\tnode1", "record line 5: is neither a node nor an edge"),
    ],
)
def test_a_fault_of_a_profile_is_named(tmp_path: Path, old: str, new: str, fault: str) -> None:
    path = profile(tmp_path, LAYERS.replace(old, new))
    with refusal(fault) as caught:
        read_graph_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "operators", "edges"),
    [
        ("image_classification-inception_v3", 326, 362),
        ("image_classification-alexnet", 23, 23),
        ("image_classification-densenet121", 429, 487),
        ("image_classification-resnet50", 177, 193),
        ("image_classification-vgg16", 41, 41),
        ("translation-gnmt", 48, 58),
    ],
)
def test_published_profiles_are_whole(data: Path, name: str, operators: int, edges: int) -> None:
    path = data / "graphs" / "pipedream" / f"{name}.txt"
    graph = read_graph_file(path).graph
    assert graph.num_operators == operators
    assert len({(u, v) for u, v, _ in graph.edges.tolist()}) == edges
    inputs = [index for index in range(operators) if graph.output_ptr[index] == 0]
    assert graph.profile_seconds[inputs[0]] == 0.0
    training = PipeDreamReader(training=True).read(path).graph
    backward = training.phase == Phase.BACKWARD
    assert operators < training.num_operators < 2 * operators
    assert (training.mirror[backward] != NONE).all()
    assert training.parameter_bytes.sum() == graph.parameter_bytes.sum()
    assert training.profile_seconds[~backward].sum() == pytest.approx(graph.profile_seconds.sum())
    split = PipeDreamReader(training=True, micro_batches=3).read(path).graph
    assert split.profile_seconds.sum() == pytest.approx(training.profile_seconds.sum())
    assert split.tensor_bytes.sum() == pytest.approx(training.tensor_bytes.sum())
    assert split.state_bytes.sum() == training.state_bytes.sum()


# --- Moirai

HEADER = [
    "task",
    "c_task",
    "dir_succ",
    "p0",
    "p1",
    "pc00",
    "pc01",
    "pc10",
    "pc11",
    "mi",
    "m0",
    "m1",
]
TASKS: list[list[object]] = [
    [0.0, "", "3,5", 0.0, 0.0, "", "", "", "", 0.0, 14.0, 16.0],
    [3.0, "1,2", "5,8", 4.0, 5.0, "0,0", "1,3", "2,4", "0,0", 6.0, "", ""],
    [5.0, 4.0, 8.0, 2.0, 3.0, 0.0, 7.0, 9.0, 0.0, 1.0, "", ""],
    [8.0, "", "", 0.0, 0.0, "", "", "", "", 0.0, "", ""],
    ["", "", "", "", "", "", "", "", "", "", "", ""],
    ["a remark", *[""] * 11],
]


class Sheet:
    def __init__(self, rows: list[list[object]]) -> None:
        self.rows, self.nrows = rows, len(rows)

    def row_values(self, index: int) -> list[object]:
        return self.rows[index]


class Book:
    def __init__(self, rows: list[list[object]]) -> None:
        self.rows = rows

    def sheet_by_index(self, index: int) -> Sheet:
        assert index == 0
        return Sheet(self.rows)


Workbook = Callable[[list[list[object]]], Path]


@pytest.fixture
def workbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbook:
    def write(rows: list[list[object]]) -> Path:
        monkeypatch.setattr(xlrd, "open_workbook", lambda file_contents: Book(rows))
        path = tmp_path / "book.xls"
        path.write_bytes(b"\xd0\xcf\x11\xe0")
        return path

    return write


def test_each_edge_of_a_workbook_is_a_tensor_with_its_own_row(workbook: Workbook) -> None:
    file = read_graph_file(workbook([HEADER, *TASKS]))
    graph, topology = file.graph, file.topology
    assert topology is not None
    assert graph.op_names == ("0", "3", "5", "8")
    assert graph.profile_seconds.tolist() == [[0.0, 0.0], [4.0, 5.0], [2.0, 3.0], [0.0, 0.0]]
    assert graph.edges[:, :2].tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]
    assert graph.link_classes == topology.class_names == ("same", "0->1", "1->0")
    assert graph.link_seconds.tolist() == [
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 1.0, 2.0],
        [0.0, 3.0, 4.0],
        [0.0, 7.0, 9.0],
    ]
    assert graph.state_bytes.tolist() == [0.0, 6.0, 1.0, 0.0]
    assert topology.memory_bytes.tolist() == [14.0, 16.0]
    assert topology.link_class.tolist() == [[0, 1], [2, 0]]
    problem = StepProblem.build(graph, topology, TabulatedCost())
    assert problem.op_seconds.tolist() == graph.profile_seconds.tolist()


@pytest.mark.parametrize(
    ("row", "column", "value", "fault"),
    [
        (2, "p1", -3.0, "record task 5: field 'p1': -3.0 is negative"),
        (2, "p0", "", "record task 5: field 'p0': is missing"),
        (1, "pc01", "1,x", "record task 3: field 'pc01': 'x' is not a number"),
        (1, "pc10", "2", "record task 3: field 'pc10': has 1 times for 2 successors"),
        (2, "pc10", "", "record task 5: field 'pc10': is missing"),
        (1, "dir_succ", "5,77", "record task 3: field 'dir_succ': unknown task 77"),
        (2, "dir_succ", "x", "record task 5: field 'dir_succ': 'x' is not a list of task numbers"),
        (2, "dir_succ", 3.0, "record 3: field 'edges'.*cycle"),
        (2, "task", 3.0, "record task 3: field 'task': stands twice"),
        (2, "mi", "", "record task 5: field 'mi': is missing"),
        (0, "m1", -1.0, "record task 0: field 'm1': -1.0 is negative"),
    ],
)
def test_a_fault_of_a_workbook_is_named(
    workbook: Workbook, row: int, column: str, value: object, fault: str
) -> None:
    rows = [list(cells) for cells in TASKS]
    rows[row][HEADER.index(column)] = value
    path = workbook([HEADER, *rows])
    with refusal(fault) as caught:
        read_graph_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_column_of_a_workbook_is_named(workbook: Workbook) -> None:
    header = ["other" if column == "pc10" else column for column in HEADER]
    with refusal("record header: field 'pc10': is missing"):
        read_graph_file(workbook([header, *TASKS]))


def test_published_workbooks_are_whole(data: Path) -> None:
    folder = data / "graphs" / "moirai"
    example = read_graph_file(folder / "example-1.xls")
    assert example.graph.num_operators == 14
    assert example.graph.num_tensors == len(example.graph.edges) == 19
    assert example.topology is not None
    assert example.topology.memory_bytes.tolist() == [14.0, 14.0, 16.0]
    googlenet = read_graph_file(folder / "GoogLeNet.xls")
    assert googlenet.graph.num_operators == 141
    assert googlenet.topology is not None
    assert googlenet.topology.num_devices == 4


# --- all formats


def test_gzip_and_plain_files_read_alike(tmp_path: Path) -> None:
    plain = profile(tmp_path)
    packed = tmp_path / "layers.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    assert read_graph_file(packed).graph.name == read_graph_file(plain).graph.name == "layers"
    assert graph_hash(read_graph_file(packed).graph) == graph_hash(read_graph_file(plain).graph)


@pytest.mark.parametrize("suffix", [".npz", ".json", ".json.gz"])
def test_stored_graphs_are_read_too(tmp_path: Path, suffix: str) -> None:
    file = read_graph_file(profile(tmp_path))
    save_graph(file.graph, tmp_path / f"stored{suffix}", file.provenance)
    stored = read_graph_file(tmp_path / f"stored{suffix}")
    assert graph_hash(stored.graph) == graph_hash(file.graph)
    assert stored.topology is None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a,b\n1,2\n", "no known format .*moirai, dnn-partitioning, pipedream"),
        (b"", "is empty"),
        (b'{"maxSizePerFPGA": ', "is not JSON"),
        (b"\xd0\xcf\x11\xe0 broken", r"not a readable \.xls workbook"),
        (gzip.compress(b"x" * 99, mtime=0)[:-9], "truncated or damaged"),
        (b'{"maxSizePerFPGA": 1, "nodes": 3}', "field 'nodes': is not a list of records"),
    ],
)
def test_a_foreign_or_damaged_file_is_named(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(content)
    with refusal(fault) as caught:
        read_graph_file(path)
    assert caught.value.file == path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refusal(r"none\.json: cannot be read \(No such file"):
        read_graph_file(tmp_path / "none.json")
