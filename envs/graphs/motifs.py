"""Training graphs drawn at random from what deep networks are made of.

A network is sketched layer by layer and then captured as real ones are: forward, backward with the
gradients of inputs and of weights apart, accumulation over micro-batches, updates (`Unrolling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from envs.graphs.op_graph import NONE, IntArray, Kind, OpGraph, Phase
from envs.graphs.unroll import MicroBatch, ParameterUse, Unrolling
from envs.units import DTYPES, MEGA

Rng = np.random.Generator
FLOAT = DTYPES.index("float32")
WORD = 4  # bytes of a number
NEVER_SAVED = (Kind.ELEMENTWISE, Kind.DATA_MOVEMENT)  # sums, copies: backward reads no activation


@dataclass(frozen=True)
class Layer:
    """One operator of the forward pass, for one micro-batch."""

    kind: Kind
    inputs: tuple[int, ...]  # layers
    flop: float
    written: float  # bytes
    parameter: int  # of the sketch, or NONE


@dataclass
class Sketch:
    """A network that grows: layers in topological order, parameters by their bytes.

    `activation` is the bytes that pass between layers, `width` the length of a vector; a layer
    multiplies every vector by a matrix, `taps` times (9: a convolution of 3 x 3). `spread` is the
    standard deviation of the logarithm by which layers differ.
    """

    rng: Rng
    activation: float
    width: float
    taps: int
    spread: float
    layers: list[Layer] = field(default_factory=list)
    parameters: list[float] = field(default_factory=list)

    def dense(self, *inputs: int, taps: int = 0, narrow: float = 1.0, wide: float = 1.0) -> int:
        """A layer with weights from `narrow` times the width to `wide` times it."""
        taps, uneven = taps or self.taps, float(np.exp(self.spread * self.rng.normal()))
        matrix = taps * narrow * wide * self.width**2 * uneven
        flop = 2 * matrix * self.activation / (WORD * self.width)
        kind = Kind.MATMUL if taps == 1 else Kind.CONVOLUTION
        self.parameters.append(WORD * matrix)
        written = self.activation * wide
        return self._add(kind, inputs, flop, written, len(self.parameters) - 1)

    def free(self, kind: Kind, *inputs: int, flop_per_byte: float = 0.5) -> int:
        """A layer without weights; it writes as much as it reads at most from one input."""
        written = max(self.layers[layer].written for layer in inputs)
        return self._add(kind, inputs, flop_per_byte * written * len(inputs), written, NONE)

    def concatenated(self, *inputs: int) -> int:
        """The inputs beside each other."""
        written = sum(self.layers[layer].written for layer in inputs)
        return self._add(Kind.DATA_MOVEMENT, inputs, 0.0, written, NONE)

    def embedding(self, rows: float) -> int:
        """A table that is looked up."""
        self.parameters.append(WORD * rows * self.width)
        return self._add(Kind.EMBEDDING, (), 0.0, self.activation, len(self.parameters) - 1)

    def vocabulary(self, source: int, rows: float, table: int) -> int:
        """The product with a table of `rows`, parameter `table` or, for NONE, a new one."""
        if table == NONE:
            self.parameters.append(WORD * rows * self.width)
            table = len(self.parameters) - 1
        flop = 2 * rows * self.activation / WORD
        written = self.activation * rows / self.width
        return self._add(Kind.MATMUL, (source,), flop, written, table)

    def _add(
        self, kind: Kind, inputs: tuple[int, ...], flop: float, written: float, parameter: int
    ) -> int:
        self.layers.append(Layer(kind, inputs, flop, written, parameter))
        return len(self.layers) - 1


def _attention_block(sketch: Sketch, source: int) -> int:
    keys = sketch.dense(source, taps=1, wide=3.0)
    mixed = sketch.free(Kind.ATTENTION, keys, flop_per_byte=float(sketch.rng.uniform(8, 256)))
    added = sketch.free(Kind.ELEMENTWISE, source, sketch.dense(mixed, taps=1))
    inner = sketch.dense(added, taps=1, wide=4.0)
    return sketch.free(Kind.ELEMENTWISE, added, sketch.dense(inner, taps=1, narrow=4.0))


def _bottleneck(sketch: Sketch, source: int) -> int:
    inner = sketch.dense(sketch.dense(source, taps=1, wide=0.25), narrow=0.25, wide=0.25)
    outer = sketch.dense(inner, taps=1, narrow=0.25)
    return sketch.free(Kind.ELEMENTWISE, source, sketch.free(Kind.NORMALIZATION, outer))


def _plain(sketch: Sketch, source: int) -> int:
    return sketch.dense(source)


def _branches(sketch: Sketch, source: int) -> int:
    """Branches of different depth beside each other, as in an inception cell."""
    count = int(sketch.rng.integers(2, 6))
    ends = []
    for _ in range(count):
        end = source
        for _ in range(int(sketch.rng.integers(1, 4))):
            end = sketch.dense(end, taps=int(sketch.rng.choice([1, 9])), wide=1 / count)
        ends.append(end)
    return sketch.dense(sketch.concatenated(*ends), taps=1)


def _dense_skips(sketch: Sketch, source: int) -> int:
    """Every layer reads all before it in the block."""
    found = [source]
    for _ in range(int(sketch.rng.integers(3, 7))):
        found.append(sketch.dense(sketch.concatenated(*found), wide=0.25))
    return sketch.dense(sketch.concatenated(*found), taps=1)


def _random_skips(sketch: Sketch, source: int) -> int:
    """A few layers that each read one or two of those before."""
    found = [source]
    for _ in range(int(sketch.rng.integers(3, 9))):
        reads = sketch.rng.choice(found[-4:], size=min(2, len(found)), replace=False)
        inputs = sorted({found[-1], *(int(layer) for layer in reads)})
        found.append(sketch.dense(*inputs, wide=float(sketch.rng.choice([0.5, 1.0]))))
    return sketch.free(Kind.ELEMENTWISE, source, found[-1])


Motif = Callable[[Sketch, int], int]
MOTIFS: Mapping[str, Motif] = {
    "attention": _attention_block,
    "bottleneck": _bottleneck,
    "plain": _plain,
    "branches": _branches,
    "dense_skips": _dense_skips,
    "random_skips": _random_skips,
}


def draw_network(rng: Rng, layers: int) -> Sketch:
    """A network of about `layers` layers: one motif again and again, or several in turn."""
    sketch = Sketch(
        rng,
        activation=float(np.exp(rng.uniform(np.log(0.25 * MEGA), np.log(48 * MEGA)))),
        width=float(np.exp(rng.uniform(np.log(64), np.log(6144)))),
        taps=int(rng.choice([1, 9])),
        spread=float(rng.choice([0.0, 0.2, 0.7])),
    )
    rows = float(np.exp(rng.uniform(np.log(2e3), np.log(2e5))))
    kinds = rng.choice(list(MOTIFS), size=int(rng.choice([1, 1, 2, 3])), replace=False)
    texts = rng.random() < 0.4
    start = sketch.embedding(rows) if texts else sketch.dense(narrow=0.1)
    table = sketch.layers[start].parameter if texts and rng.random() < 0.5 else NONE
    towers = [start]
    if layers >= 16 and rng.random() < 0.25:
        towers.append(
            sketch.embedding(rows / 4) if rng.random() < 0.5 else sketch.dense(narrow=0.1)
        )
    share = rng.uniform(0.3, 0.7)  # of the layers in the first of two towers
    shrinking = float(rng.choice([1.0, 1.0, 0.9]))  # of what passes, from block to block
    last = (layers if len(towers) == 1 else int(share * layers), layers)
    ends = []
    for tower, stop in zip(towers, last, strict=False):
        end = tower
        while len(sketch.layers) < stop - 2:
            end = MOTIFS[str(rng.choice(kinds))](sketch, end)
            sketch.activation *= shrinking
            sketch.width /= shrinking**0.5
        ends.append(end)
    end = ends[0] if len(ends) == 1 else sketch.dense(sketch.concatenated(*ends), taps=1)
    if texts or rng.random() < 0.3:
        sketch.vocabulary(end, rows, table)
    return sketch


def training_graph(
    sketch: Sketch, name: str, micro_batches: int, *, state: float = 2.0, together: bool = False
) -> OpGraph:
    """The training step of a sketched network.

    Args:
        state: bytes of optimizer state for every byte of parameters.
        together: one backward operator gives both gradients, that of the inputs and the weights'.
    """
    return _Tracing(sketch).graph(name, micro_batches, state, together)


def inference_graph(sketch: Sketch, name: str, micro_batches: int) -> OpGraph:
    """The forward pass of a sketched network alone."""
    return _Tracing(sketch).graph(name, micro_batches, None, False)


class _Tracing:
    """The columns of one micro-batch."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.names: list[str] = []
        self.columns: list[tuple[int, int, float, float, float, int]] = []
        self.tensors: list[tuple[float, int]] = []  # bytes, producer
        self.uses: list[tuple[int, int]] = []
        self.users: list[list[int]] = [[] for _ in sketch.parameters]
        self.gradient = [NONE] * len(sketch.parameters)

    def graph(self, name: str, micro_batches: int, state: float | None, together: bool) -> OpGraph:
        activation = self._forward()
        if state is not None:
            self._backward(activation, together)
        kind, phase, flop, read, written, mirror = zip(*self.columns, strict=True)
        size, producer = zip(*self.tensors, strict=True)
        step = MicroBatch(
            names=tuple(self.names),
            kind=_ints(kind),
            phase=_ints(phase),
            flop=np.array(flop),
            bytes_read=np.array(read),
            bytes_written=np.array(written),
            dtype=np.full(len(kind), FLOAT, dtype=np.int64),
            mirror=_ints(mirror),
            tensor_bytes=np.array(size),
            tensor_dtype=np.full(len(size), FLOAT, dtype=np.int64),
            producer=_ints(producer),
            uses=_ints(self.uses).reshape(-1, 2),
        )
        parameters = [
            ParameterUse(
                f"parameter{number}", size, FLOAT, tuple(self.users[number]),
                self.gradient[number], 4 * size / WORD, 4 * size, 3 * size, (state or 0.0) * size,
            )
            for number, size in enumerate(self.sketch.parameters)
        ]  # fmt: skip
        return Unrolling(name, step, parameters, (), micro_batches).graph()

    def _operator(
        self, name: str, kind: Kind, phase: Phase, flop: float, moved: tuple[float, float], at: int
    ) -> int:
        self.names.append(name)
        self.columns.append((int(kind), int(phase), flop, *moved, at))
        return len(self.names) - 1

    def _tensor(self, nbytes: float, producer: int) -> int:
        self.tensors.append((nbytes, producer))
        return len(self.tensors) - 1

    def _forward(self) -> list[int]:
        """The tensor that every layer writes; its operators have the numbers of the layers."""
        activation: list[int] = []
        for number, layer in enumerate(self.sketch.layers):
            moved = (self._read(layer), layer.written)
            op = self._operator(
                f"forward/{number}", layer.kind, Phase.FORWARD, layer.flop, moved, NONE
            )
            if layer.parameter != NONE:
                self.users[layer.parameter].append(op)
            self.uses += [(activation[source], op) for source in layer.inputs]
            activation.append(self._tensor(layer.written, op))
        return activation

    def _read(self, layer: Layer) -> float:
        inputs = sum(self.sketch.layers[source].written for source in layer.inputs)
        return inputs + (
            0.0 if layer.parameter == NONE else self.sketch.parameters[layer.parameter]
        )

    def _backward(self, activation: list[int], together: bool) -> None:
        layers = self.sketch.layers
        gradients: list[list[int]] = [[] for _ in layers]  # of each layer's output
        for number in reversed(range(len(layers))):
            layer, op = layers[number], NONE
            reads = gradients[number] or [activation[number]]  # the loss is of the output itself
            if layer.kind not in NEVER_SAVED:
                reads = [*reads, *(activation[source] for source in layer.inputs)]
            trained = layer.parameter != NONE
            if layer.inputs:
                moved = (self._read(layer) + layer.written, self._read(layer))
                flop = layer.flop * (2 if together and trained else 1)
                op = self._operator(
                    f"backward/{number}", layer.kind, Phase.BACKWARD, flop, moved, number
                )
                self.uses += [(tensor, op) for tensor in reads]
                for source in layer.inputs:
                    gradients[source].append(self._tensor(layers[source].written, op))
            if trained:
                if op != NONE:
                    self.users[layer.parameter].append(op)
                self._weight_gradient(number, op if together else NONE, reads)

    def _weight_gradient(self, number: int, op: int, reads: list[int]) -> None:
        """The gradient of a layer's parameter, by `op` or an operator of its own."""
        layer = self.sketch.layers[number]
        size = self.sketch.parameters[layer.parameter]
        if op == NONE:
            moved = (self._read(layer) - size + layer.written, size)
            op = self._operator(
                f"backward/{number}.weight", layer.kind, Phase.BACKWARD, layer.flop, moved, number
            )
            self.uses += [(tensor, op) for tensor in reads]
            self.users[layer.parameter].append(op)
        if self.gradient[layer.parameter] != NONE:  # of a tied one: added to what is there
            self.uses.append((self.gradient[layer.parameter], op))
        self.gradient[layer.parameter] = self._tensor(size, op)


def _ints(values: object) -> IntArray:
    return np.array(values, dtype=np.int64)
