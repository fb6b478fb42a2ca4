"""ONNX models: counts worked out by hand, the captured module's, and files that cannot be read."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from envs.graphs.capture import capture_training_step
from envs.graphs.op_graph import Kind, OpGraph, Phase
from envs.graphs.readers import OnnxReader, read_graph_file
from tests.refusal import refusal

FLOAT = TensorProto.FLOAT


def weight(name: str, *shape: int) -> Any:
    return helper.make_tensor(name, FLOAT, shape, np.zeros(shape, dtype=np.float32).tobytes(), True)


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int | str | None]],
    weights: Sequence[Any] = (),
    outputs: Sequence[str] = ("y",),
    **opsets: int,
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        list(weights),
    )
    domains = [helper.make_opsetid("", 20), *(helper.make_opsetid(d, v) for d, v in opsets.items())]
    path.write_bytes(helper.make_model(graph, opset_imports=domains).SerializeToString())
    return path


def perceptron(path: Path, batch: int | str | None = 4) -> Path:
    """8 -> 16 -> 2 features, both layers with the same bias-free kind of product."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["c"]),
        helper.make_node("Gemm", ["c", "w2", "bias"], ["y"], transB=1),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 16])
    weights = [weight("w1", 8, 16), weight("w2", 2, 16), weight("bias", 2), shape]
    return write(path, nodes, {"x": [batch, 8]}, weights)


def facts(graph: OpGraph) -> dict[str, tuple[float, float, float]]:
    columns = (graph.flop, graph.bytes_read, graph.bytes_written)
    return {n: tuple(float(c[i]) for c in columns) for i, n in enumerate(graph.op_names)}  # type: ignore[misc]


def test_a_forward_pass_by_hand(tmp_path: Path) -> None:
    file = read_graph_file(perceptron(tmp_path / "model.onnx"))
    graph = file.graph
    assert file.provenance == {"format": "onnx", "file": "model.onnx"}
    assert facts(graph) == {
        "mb0/forward/first/MatMul": (2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16), 4 * 4 * 16),
        "mb0/forward/Relu_1/Relu": (0, 4 * 64, 4 * 64),
        "mb0/forward/Gemm_3/Gemm": (2 * 4 * 16 * 2, 4 * (64 + 32 + 2), 4 * 8),
    }
    assert graph.edges[:, :2].tolist() == [[0, 1], [1, 2]]  # the view is no operator
    assert [Kind(kind).name for kind in graph.kind] == ["MATMUL", "ELEMENTWISE", "MATMUL"]
    sizes = dict(zip(graph.parameter_names, graph.parameter_bytes, strict=True))
    assert sizes == {"w1": 512.0, "w2": 128.0, "bias": 8.0}
    assert not graph.gradient_bytes.any()


def test_a_training_step_by_hand(tmp_path: Path) -> None:
    path = perceptron(tmp_path / "model.onnx")
    graph = OnnxReader(training=True, micro_batches=2).read(path).graph
    found = facts(graph)
    product = 2 * 4 * 16 * 2
    assert found["mb1/backward/Gemm_3/Gemm"][0] == product
    assert found["mb1/backward/Gemm_3/Gemm_weight"][0] == product
    assert "mb0/backward/first/MatMul" not in found  # nobody wants the gradient of the data
    assert found["mb0/backward/first/MatMul_weight"] == (1024, 4 * (64 + 32), 512)
    assert found["mb0/backward/Relu_1/Relu"] == (0, 4 * (64 + 64), 4 * 64)
    assert found["optimizer/w1"] == (0, 4 * 512, 3 * 512)
    assert graph.backward_flop() == 2 * (1024 + 2 * product)
    assert graph.gradient_bytes.sum() == graph.parameter_bytes.sum()
    assert graph.optimizer_bytes.sum() == 2 * graph.parameter_bytes.sum()
    names = list(graph.op_names)
    for m in range(2):
        back = names.index(f"mb{m}/backward/Gemm_3/Gemm")
        assert graph.mirror[back] == names.index(f"mb{m}/forward/Gemm_3/Gemm")
        assert graph.colocation[back] == graph.colocation[graph.mirror[back]]


def test_a_product_of_activations_has_two_gradients_and_a_table_is_read_where_asked(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["a"], name="g"),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
        helper.make_node("MatMul", ["a", "b"], ["y"], name="m"),
    ]
    path = write(tmp_path / "scores.onnx", nodes, {"x": [3]}, [weight("table", 50, 4)])
    found = facts(OnnxReader(training=True).read(path).graph)
    assert found["mb0/forward/g/Gather"] == (0, 4 * (12 + 3), 4 * 12)
    assert found["mb0/forward/m/MatMul"][0] == 2 * 3 * 3 * 4
    assert found["mb0/backward/m/MatMul"] == (2 * 2 * 3 * 3 * 4, 4 * (12 + 12 + 9), 4 * (12 + 12))
    assert found["mb0/backward/g/Gather_weight"][2] == 4 * 50 * 4


def test_a_weight_of_two_layers_has_one_gradient(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    path = write(tmp_path / "tied.onnx", nodes, {"x": [4, 8]}, [weight("w", 8, 8)])
    graph = OnnxReader(training=True).read(path).graph
    assert graph.parameter_names == ("w",)
    assert "mb0/backward/w/sum" in graph.op_names
    assert len(set(graph.colocation[graph.phase != Phase.OPTIMIZER])) == 1


@pytest.mark.parametrize(
    ("node", "shapes", "flop"),
    [
        (("Conv", {"group": 2}), [(1, 4, 8, 8), (6, 2, 3, 3)], 2 * 6 * 36 * 2 * 9),
        (("ConvTranspose", {"strides": [2, 2]}), [(1, 4, 8, 8), (4, 3, 2, 2)], 2 * 256 * 12),
        (("Gemm", {"transA": 1}), [(8, 3), (8, 5)], 2 * 3 * 5 * 8),
        (("MatMul", {}), [(7, 3, 8), (8, 5)], 2 * 7 * 3 * 5 * 8),
        (("Einsum", {"equation": "bij,bjk->bik"}), [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (("LSTM", {"hidden_size": 3}), [(5, 2, 4), (1, 12, 4), (1, 12, 3)], 2 * 10 * 12 * 7),
        (("GRU", {"hidden_size": 3}), [(5, 2, 4), (1, 9, 4), (1, 9, 3)], 2 * 10 * 9 * 7),
        (("Softmax", {}), [(4, 4)], 0),
    ],
)
def test_flop_by_hand(
    node: tuple[str, dict[str, Any]], shapes: list[tuple[int, ...]], flop: float, tmp_path: Path
) -> None:
    names = ["x", *(f"w{i}" for i in range(len(shapes) - 1))]
    weights = [weight(n, *s) for n, s in zip(names[1:], shapes[1:], strict=True)]
    nodes = [helper.make_node(node[0], names, ["y"], **node[1])]
    graph = read_graph_file(write(tmp_path / "m.onnx", nodes, {"x": shapes[0]}, weights)).graph
    assert graph.flop.tolist() == [flop]


def test_open_dimensions_are_asked_for_by_name(tmp_path: Path) -> None:
    path = perceptron(tmp_path / "open.onnx", "batch")
    with refusal(r"record input x: axis 0 has no size: give dims=\{batch: <"):
        read_graph_file(path)
    graph = OnnxReader(dims={"batch": 4}).read(path).graph
    assert facts(graph) == facts(read_graph_file(perceptron(tmp_path / "fixed.onnx")).graph)
    nameless = perceptron(tmp_path / "nameless.onnx", None)
    assert OnnxReader(dims={"x.0": 2}).read(nameless).graph.flop[0] == 2 * 2 * 8 * 16
    for dims, message in (
        ({"rows": 4}, "input x: axis 0"),
        ({"batch": 4, "rows": 4}, "'rows' is no open"),
        ({"batch": 0}, "0 is no size"),
        ({"batch": True}, "True is no size"),
    ):
        with refusal(message):
            OnnxReader(dims=dims).read(path)


def test_weights_in_other_files_are_not_opened(tmp_path: Path) -> None:
    model = onnx.load(perceptron(tmp_path / "model.onnx"))
    for name in ("../secret", "/etc/passwd"):
        outside = model.graph.initializer[0]
        outside.ClearField("raw_data")
        outside.data_location = TensorProto.EXTERNAL
        del outside.external_data[:]
        outside.external_data.add(key="location", value=name)
        path = tmp_path / "external.onnx"
        path.write_bytes(model.SerializeToString())
        assert read_graph_file(path).graph.parameter_bytes.sum() == 648.0


def loop() -> Any:
    body = helper.make_graph([helper.make_node("Identity", ["c"], ["d"])], "body", [], [])
    return helper.make_node("Loop", ["", "", "x"], ["y"], body=body)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([helper.make_node("Relu", ["z"], ["y"], name="n")], "node n: reads 'z', which nothing"),
        (
            [helper.make_node("Gelu", ["x"], ["y"], domain="com")],
            r"com\.Gelu is no operator of ONNX",
        ),
        ([helper.make_node("NonZero", ["x"], ["y"])], "value 'y': has no size that can be found"),
        ([helper.make_node("Identity", ["x"], ["y"])], "has no operators"),
        ([helper.make_node("Einsum", ["x", "x"], ["y"], equation="...i,...i->...")], "do not fit"),
        ([loop()], "Loop runs operators of its own; how often, the file leaves open"),
    ],
)
def test_models_that_cannot_be_read_are_told(
    nodes: list[Any], message: str, tmp_path: Path
) -> None:
    with refusal(message):
        read_graph_file(write(tmp_path / "bad.onnx", nodes, {"x": [2, 3]}, com=1))


def test_damaged_files_and_models_without_weights_are_told(tmp_path: Path) -> None:
    path = perceptron(tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes()[:-20])
    with refusal("is no readable ONNX model"):
        read_graph_file(path)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    with refusal("has no weights to train"):
        OnnxReader(training=True).read(write(path, nodes, {"x": [2, 3]}))


class Network(nn.Module):
    """Convolutions, attention, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, groups=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.down = nn.Linear(64, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(torch.relu(self.conv(x))).flatten(2)
        hidden = torch.relu(self.down(hidden.reshape(len(x), -1, 64)))
        hidden, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        out: Tensor = self.out(torch.cat([hidden, self.norm(hidden)], dim=-1))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.rnn = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, 50)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.rnn(self.embed(x))[0])
        return out


@pytest.mark.proof
@pytest.mark.parametrize(
    ("module", "example", "backward"),
    [
        # the backward pass of fused attention computes its scores again
        (Network, torch.zeros(2, 3, 8, 8), 0.03),
        # of the first position no gradient leads further back, which the capture sees
        (Recurrent, torch.zeros(2, 9, dtype=torch.int64), 0.03),
    ],
)
def test_an_exported_module_has_the_flop_of_the_captured_one(
    module: type[nn.Module], example: Tensor, backward: float, tmp_path: Path
) -> None:
    program = torch.onnx.export(module().eval(), (example,), dynamo=True, verbose=False)
    assert program is not None
    written = io.BytesIO()
    program.save(written)
    path = tmp_path / "module.onnx"
    path.write_bytes(written.getvalue())
    read = OnnxReader(training=True).read(path).graph
    captured = capture_training_step(
        module, lambda: {"x": example}, lambda output: output.sum(), name="module",
        micro_batches=1, optimizer=torch.optim.Adam,
    )  # fmt: skip
    assert read.forward_flop() == captured.forward_flop() > 0
    assert read.backward_flop() == pytest.approx(captured.backward_flop(), rel=backward)
    assert read.gradient_bytes.sum() == pytest.approx(captured.gradient_bytes.sum(), rel=0.02)
