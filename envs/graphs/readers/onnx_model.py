"""Reader of ONNX models: the forward pass, or the training step that mirrors it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError
from envs.files import read_content
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.readers.graph_file import GraphFile, kind_of, stem
from envs.graphs.unroll import MicroBatch, Operator, ParameterUse, Value, unrolled
from envs.units import DTYPES

Shape = tuple[int, ...]

_TYPES: dict[int, tuple[str, float]] = {  # of a tensor: the type it counts as, bytes of an element
    1: ("float32", 4), 2: ("uint8", 1), 3: ("int8", 1), 4: ("int16", 2), 5: ("int16", 2),
    6: ("int32", 4), 7: ("int64", 8), 9: ("bool", 1), 10: ("float16", 2), 11: ("float64", 8),
    12: ("int32", 4), 13: ("int64", 8), 16: ("bfloat16", 2), 17: ("float8", 1),
    18: ("float8", 1), 19: ("float8", 1), 20: ("float8", 1), 21: ("uint8", 0.5), 22: ("int8", 0.5),
}  # fmt: skip
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_SHAPES = {"Constant", "ConstantOfShape", "Range", "Shape", "Size"}
_OPEN = {"If", "Loop", "Scan", "SequenceMap"}  # how often they run what is in them
_SELECTS = {"Gather", "GatherElements", "GatherND"}  # read what they select
_LINEAR = {  # their gradients need nothing of the forward pass
    "Add", "AveragePool", "Cast", "Concat", "Expand", "Gather", "GlobalAveragePool", "Pad",
    "ReduceMean", "ReduceSum", "Slice", "Split", "Sub", "Sum", "Tile", "Transpose",
}  # fmt: skip
_BY_OUTPUT = {"Exp", "LogSoftmax", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh"}  # need the output
_RUNNING = {"BatchNormalization": (3, 4)}  # inputs that are averages, not trained


@bounded
@dataclass(frozen=True)
class OnnxReader:
    """ONNX models; needs the package `onnx`.

    * FLOP are counted as in captured graphs: products, convolutions, recurrent layers and attention
      (a multiplication and an addition are 2), 0 for everything else, which memory binds.
    * Reshape, Flatten, Squeeze, Unsqueeze and Identity move nothing and are no operators; nor is
      what depends on constants alone. Weights are parameters beside their first user; users of one
      weight are one co-location group. Only sizes are read: weights in other files stay unopened.
    * The file holds a forward pass; that is the graph, without gradients, once per micro-batch.
    * `training` mirrors it: every operator that a weight reaches has a backward one for the
      gradients of its activations, of its FLOP for each, and one for those of its weights; every
      weight has its update. An operator saves its inputs, or its output where that suffices (Relu,
      Softmax, ...), or nothing (Add, Concat, ...). Where the model ends its loss begins, which is
      not in the file.

    Args:
        training: whether the graph is a training step.
        micro_batches: equal parts of the step; the model's own batch is one of them.
        dims: sizes of open dimensions by their name, or as `<input>.<axis>` where they have none.
        optimizer_copies: state of the optimizer, in copies of the weights; Adam has 2.
    """

    training: bool = False
    micro_batches: Count = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    optimizer_copies: NonNegative = 2.0
    format: str = "onnx"

    def accepts(self, content: bytes) -> bool:
        """A serialised ModelProto: its version, then a field that one may have."""
        return re.match(rb"\x08[\x01-\x40][\x12\x1a\x22\x28\x32\x3a\x42]", content) is not None

    def read(self, path: Path) -> GraphFile:
        """The graph of the model.

        Raises:
            InputError: the file is damaged, a size is open or cannot be found out, operators run
                others (If, Loop, Scan), or one is of another domain: its FLOP is unknown.
        """
        graph = _Reading(Path(path), self).graph()
        return GraphFile(graph, None, {"format": self.format, "file": Path(path).name})


@dataclass(frozen=True, eq=False)
class _Value:
    """What a name of the model stands for."""

    shape: Shape
    type: str
    bytes: float
    tensor: int = NONE  # NONE: it is resident: data, weights, constants
    weight: str | None = None  # that it is, or is made of
    constant: bool = False


_ABSENT = _Value((0,), "float32", 0.0, constant=True)  # an optional input


@dataclass(eq=False)
class _Reading:
    path: Path
    reader: OnnxReader
    values: dict[str, _Value] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    users: dict[str, set[int]] = field(default_factory=dict)  # weight -> operators
    gradients: dict[str, list[int]] = field(default_factory=dict)  # weight -> partial gradients
    trained: list[tuple[str, int, list[_Value], list[_Value]]] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)  # tensors that a weight reaches

    def graph(self) -> OpGraph:
        model = self._model()
        for place, node in enumerate(model.graph.node):
            self._add(node, f"{node.name or f'{node.op_type}_{place}'}")
        if not self.operators:
            raise InputError("has no operators")
        if self.reader.training:
            self._mirror()
        weights = [self._use(name) for name in self.users]
        labels = (f"{op.phase.name.lower()}/{op.name}" for op in self.operators)
        step = MicroBatch.of(labels, self.operators, self.tensors)
        return unrolled(stem(self.path), step, weights, [], self.reader.micro_batches)

    def _model(self) -> Any:
        """The model with its functions written out; fills in the sizes of all its values."""
        import onnx

        try:
            model = onnx.load_model_from_string(read_content(self.path))
            if model.functions:
                model = onnx.inliner.inline_local_functions(model)
            self._close(model.graph)
            graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        except InputError:
            raise
        except Exception as error:  # protobuf's and onnx's errors share no base class
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(f"is no readable ONNX model ({first})") from error
        self.shapes: dict[str, tuple[Shape | None, int]] = {}
        for entry in (*graph.value_info, *graph.output, *graph.input):
            kind = entry.type.tensor_type
            dims = tuple(d.dim_value if d.HasField("dim_value") else NONE for d in kind.shape.dim)
            known = kind.HasField("shape") and min(dims, default=0) >= 0
            self.shapes[entry.name] = (dims if known else None, kind.elem_type)
        for weight in graph.initializer:
            self.shapes[weight.name] = (tuple(weight.dims), weight.data_type)
            own = weight.name if weight.dims else None  # a scalar is a constant
            self.values[weight.name] = replace(self._value(weight.name), weight=own, constant=True)
        for entry in graph.input:
            self.values.setdefault(entry.name, self._value(entry.name))
        return model

    def _close(self, graph: Any) -> None:
        """Give the open dimensions of inputs their sizes; others are left to inference."""
        given, weights = self.reader.dims, {weight.name for weight in graph.initializer}
        known: set[str] = set()
        for entry in graph.input:
            for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
                if dim.HasField("dim_value") or entry.name in weights:
                    continue
                name = dim.dim_param or f"{entry.name}.{axis}"
                known.add(name)
                if name not in given:
                    reason = f"axis {axis} has no size: give dims={{{name}: <size>}}"
                    raise InputError(reason, record=f"input {entry.name}")
                if type(given[name]) is not int or given[name] < 1:
                    reason = f"{given[name]!r} is no size"
                    raise InputError(reason, field=f"dims.{name}")
                dim.dim_value = given[name]
        for name in given:
            if name not in known:
                reason = (
                    f"{name!r} is no open dimension (open: {', '.join(sorted(known)) or 'none'})"
                )
                raise InputError(reason, field="dims")
        for entry in (*graph.value_info, *graph.output):
            if any(not dim.HasField("dim_value") for dim in entry.type.tensor_type.shape.dim):
                entry.type.tensor_type.ClearField("shape")

    def _value(self, name: str) -> _Value:
        shape, kind = self.shapes.get(name, (None, 1))
        if shape is None or min(shape, default=0) < 0 or kind not in _TYPES:
            fault = "has no size that can be found out" if kind in _TYPES else "is no tensor"
            raise InputError(fault, record=f"value {name!r}")
        dtype, size = _TYPES[kind]
        return _Value(shape, dtype, float(prod(shape)) * size)

    def _add(self, node: Any, label: str) -> None:
        """One node of the model: an operator, or another name of what it reads."""
        record = f"node {label}"
        if node.domain not in {"", "ai.onnx"}:
            reason = f"{node.domain}.{node.op_type} is no operator of ONNX: its FLOP is unknown"
            raise InputError(reason, record=record)
        if node.op_type in _OPEN:
            reason = f"{node.op_type} runs operators of its own; how often, the file leaves open"
            raise InputError(reason, record=record)
        for name in filter(None, node.input):
            if name not in self.values:
                reason = f"reads {name!r}, which nothing before it writes"
                raise InputError(reason, record=record)
        inputs = [self.values[name] if name else _ABSENT for name in node.input]
        outputs = [name for name in node.output if name]
        constant = node.op_type in _SHAPES or all(value.constant for value in inputs)
        if constant or node.op_type in _VIEWS:
            source = _ABSENT if node.op_type in _SHAPES else inputs[0]
            for name in outputs:
                unknown = constant and self.shapes.get(name, (None, 0))[0] is None
                made = _ABSENT if unknown else self._value(name)  # of constants it may not matter
                self.values[name] = replace(
                    made, tensor=source.tensor, weight=source.weight, constant=constant
                )
            return
        index = len(self.operators)
        written = []
        for name in outputs:
            written.append(replace(self._value(name), tensor=len(self.tensors)))
            self.values[name] = written[-1]
            self._write(written[-1], index)
        sizes = [value.bytes for value in inputs]
        if node.op_type in _SELECTS:
            sizes[0] = min(sizes[0], sum(value.bytes for value in written))
        types = [value.type for value in (*written, *inputs)]
        self.operators.append(
            Operator(
                name=f"{label.strip('/')}/{node.op_type}",
                kind=_KINDS.get(node.op_type, kind_of(node.op_type)),
                phase=Phase.FORWARD,
                flop=self._flop(node, inputs, written, record),
                bytes_read=sum(sizes),
                bytes_written=sum(value.bytes for value in written),
                dtype=DTYPES.index(next((name for name in types if "float" in name), types[0])),
            )
        )
        self._read(inputs, index)
        frozen = _RUNNING.get(node.op_type, ())
        operands = [replace(v, weight=None) if i in frozen else v for i, v in enumerate(inputs)]
        if any(_trainable(value) or value.tensor in self.reached for value in operands):
            self.reached.update(value.tensor for value in written)
            self.trained.append((node.op_type, index, operands, written))

    def _flop(self, node: Any, inputs: list[_Value], written: list[_Value], record: str) -> float:
        import onnx

        try:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            shapes = [value.shape for value in inputs], [value.shape for value in written]
            return _FLOP[node.op_type](attributes, *shapes) if node.op_type in _FLOP else 0.0
        except (LookupError, TypeError, ValueError) as error:
            reason = f"{node.op_type} has arguments that do not fit"
            raise InputError(reason, record=record) from error

    def _read(self, values: Sequence[_Value], operator: int) -> None:
        for value in values:
            if value.tensor != NONE:
                self.tensors[value.tensor].consumers.append(operator)
            if value.weight is not None:
                self.users.setdefault(value.weight, set()).add(operator)

    def _write(self, value: _Value, operator: int) -> None:
        self.tensors.append(Value(value.bytes, DTYPES.index(value.type), operator))

    def _mirror(self) -> None:
        """Backward operators, those of the last forward operator first."""
        partial: dict[int, list[_Value]] = {}  # tensor -> gradients that its readers write
        for op_type, index, inputs, written in reversed(self.trained):
            forward = self.operators[index]
            incoming = [g for value in written for g in partial.get(value.tensor, [])]
            saved = [] if op_type in _LINEAR else written if op_type in _BY_OUTPUT else inputs
            if not incoming:  # the model ends here: the loss is of what it wrote
                saved = [*saved, *written]
            saved = [value for value in saved if not value.constant]
            weights = {str(value.weight): value for value in inputs if _trainable(value)}
            activations = [value for value in inputs if value.tensor in self.reached]
            for suffix, targets in (("", activations), ("_weight", list(weights.values()))):
                if not targets:
                    continue
                held = list(weights.values()) if not suffix and forward.flop else []
                made = self._backward(
                    replace(
                        forward,
                        name=forward.name + suffix,
                        phase=Phase.BACKWARD,
                        flop=forward.flop * (1 if suffix else len(targets)),
                        mirror=index,
                    ),
                    [*incoming, *saved, *held],
                    targets,
                )
                self._read(list(weights.values()), len(self.operators) - 1)
                for value, gradient in zip(targets, made, strict=True):
                    if suffix:
                        self.gradients.setdefault(str(value.weight), []).append(gradient.tensor)
                    else:
                        partial.setdefault(value.tensor, []).append(gradient)
        for weight, tensors in self.gradients.items():
            if len(tensors) > 1:  # several users: their gradients are summed
                value, user = self.values[weight], min(self.users[weight])
                parts = [replace(value, tensor=tensor, weight=None) for tensor in tensors]
                dtype = DTYPES.index(value.type)
                summing = Operator(
                    f"{weight}/sum", Kind.ELEMENTWISE, Phase.BACKWARD, 0, 0, 0, dtype, user
                )
                self.gradients[weight] = [self._backward(summing, parts, [value])[0].tensor]
                self.users[weight].add(len(self.operators) - 1)
        if not self.gradients:
            raise InputError("has no weights to train")

    def _backward(
        self, operator: Operator, reads: list[_Value], targets: list[_Value]
    ) -> list[_Value]:
        """Add an operator that writes the gradients of these values; returns the gradients."""
        index = len(self.operators)
        operator.bytes_read = sum({id(value): value.bytes for value in reads}.values())
        operator.bytes_written = sum(value.bytes for value in targets)
        self.operators.append(operator)
        self._read(reads, index)
        first = len(self.tensors)
        for value in targets:
            self._write(value, index)
        return [replace(v, tensor=first + k, weight=None) for k, v in enumerate(targets)]

    def _use(self, name: str) -> ParameterUse:
        value, copies = self.values[name], self.reader.optimizer_copies
        users, dtype = tuple(sorted(self.users[name])), DTYPES.index(value.type)
        if name not in self.gradients:
            return ParameterUse(name, value.bytes, dtype, users)
        return ParameterUse(
            name=name,
            bytes=value.bytes,
            dtype=dtype,
            users=users,
            gradient=self.gradients[name][0],
            update_read=value.bytes * (2 + copies),
            update_written=value.bytes * (1 + copies),
            state_bytes=value.bytes * copies,
        )


def _trainable(value: _Value) -> bool:
    return value.weight is not None and "float" in value.type and value.type != "float8"


Shapes = Sequence[Shape]
Formula = Callable[[Mapping[str, Any], Shapes, Shapes], float]


def _einsum(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> float:
    """Every index once; a sum over one operand is no product."""
    left: str = attributes["equation"].decode().replace(" ", "").partition("->")[0]
    sizes: dict[str, int] = {}
    for term, shape in zip(left.split(","), inputs, strict=True):
        if "." in term:
            raise ValueError(term)
        sizes.update(zip(term, shape, strict=True))
    product: float = 2.0 * (len(inputs) - 1) * prod(sizes.values())
    return product


def _attention(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> float:
    """Queries by keys, and the weights by the values."""
    query, key, value = inputs[:3]
    if len(query) == 4:  # batch, heads, rows, depth
        return 2.0 * prod(query[:3]) * key[2] * (query[3] + value[3])
    values: int = value[2] // attributes["kv_num_heads"] * attributes["q_num_heads"]
    return 2.0 * prod(query[:2]) * key[1] * (query[2] + values)


def _recurrent(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> float:
    """Positions and samples by weights: (directions, gates * hidden, features) and (.., hidden)."""
    (one, two, _), weight, recurrence = inputs[:3]
    return 2.0 * one * two * (prod(weight) + prod(recurrence))


_FLOP: dict[str, Formula] = {
    "Attention": _attention,
    "Einsum": _einsum,
    "Gemm": lambda a, x, y: 2.0 * prod(y[0]) * x[0][0 if a.get("transA") else 1],
    "ConvTranspose": lambda a, x, y: 2.0 * prod(x[0]) * prod(x[1][1:]),
    **dict.fromkeys(
        ("Conv", "ConvInteger", "DeformConv"), lambda a, x, y: 2.0 * prod(y[0]) * prod(x[1][1:])
    ),
    "QLinearConv": lambda a, x, y: 2.0 * prod(y[0]) * prod(x[3][1:]),
    **dict.fromkeys(
        ("MatMul", "MatMulInteger", "QLinearMatMul"),
        lambda a, x, y: 2.0 * prod(y[0]) * x[0][-1],
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
}
_KINDS = {
    "Attention": Kind.ATTENTION,
    "ConvTranspose": Kind.CONVOLUTION,
    "Einsum": Kind.MATMUL,
    "GRU": Kind.MATMUL,
    "RNN": Kind.MATMUL,
}
