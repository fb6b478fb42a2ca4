"""Training graphs drawn at random from what deep networks are made of.

A network is sketched layer by layer and then unrolled as captured ones are: forward, backward with
the gradients of inputs and of weights apart, accumulation over micro-batches, updates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.synthetic import log_uniform
from envs.graphs.unroll import MicroBatch, Operator, ParameterUse, Value, unrolled
from envs.units import DTYPES, MEGA

Rng = np.random.Generator
FLOAT = DTYPES.index("float32")
WORD = 4  # bytes of a number
WIDEST = 16384  # numbers of a vector
NOTHING_SAVED = (Kind.ELEMENTWISE, Kind.DATA_MOVEMENT)  # their backward reads no activation


class Layer(NamedTuple):
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

    def dense(
        self,
        *inputs: int,
        taps: int = 0,
        narrow: float = 1.0,
        wide: float = 1.0,
        share: float = 1.0,
    ) -> int:
        """A layer with weights, from `narrow` times the width to `wide` times it.

        It multiplies `share` times as many vectors as pass between layers.
        """
        taps, uneven = taps or self.taps, float(np.exp(self.spread * self.rng.normal()))
        matrix = taps * narrow * wide * self.width**2 * uneven
        passing = share * self.activation
        flop = 2 * matrix * passing / (WORD * self.width)
        kind = Kind.MATMUL if taps == 1 else Kind.CONVOLUTION
        return self.add(kind, inputs, flop, wide * passing, self.table(WORD * matrix))

    def free(self, kind: Kind, *inputs: int, flop_per_byte: float = 0.5) -> int:
        """A layer without weights that writes as much as its largest input holds, or their sum."""
        sizes = [self.layers[layer].written for layer in inputs]
        written = sum(sizes) if kind == Kind.DATA_MOVEMENT else max(sizes)
        return self.add(kind, inputs, flop_per_byte * written * len(inputs), written, NONE)

    def table(self, nbytes: float) -> int:
        """A new parameter."""
        self.parameters.append(nbytes)
        return len(self.parameters) - 1

    def add(
        self, kind: Kind, inputs: tuple[int, ...], flop: float, written: float, parameter: int
    ) -> int:
        """The number of a new layer."""
        self.layers.append(Layer(kind, inputs, flop, written, parameter))
        return len(self.layers) - 1


def _attention(sketch: Sketch, source: int) -> int:
    added = _attended(sketch, source)
    inner = sketch.dense(added, taps=1, wide=4.0)
    return sketch.free(Kind.ELEMENTWISE, added, sketch.dense(inner, taps=1, narrow=4.0))


def _attended(sketch: Sketch, source: int, other: int | None = None) -> int:
    """`source` and what its vectors gather from each other, or from those of `other`."""
    if other is None:
        keys = sketch.dense(source, taps=1, wide=3.0)
        mixed = sketch.free(Kind.ATTENTION, keys, flop_per_byte=float(sketch.rng.uniform(8, 256)))
    else:
        asks, read = sketch.dense(source, taps=1), sketch.layers[other].written
        keys = sketch.dense(other, taps=1, wide=2.0, share=read / sketch.activation)
        flop = float(sketch.rng.uniform(8, 256)) * (sketch.activation + 2 * read)
        mixed = sketch.add(Kind.ATTENTION, (asks, keys), flop, sketch.activation, NONE)
    return sketch.free(Kind.ELEMENTWISE, source, sketch.dense(mixed, taps=1))


def experts(sketch: Sketch, source: int) -> int:
    """Attention, then experts of equal size that see equal or uneven shares of the vectors."""
    added = _attended(sketch, source)
    count, even = int(sketch.rng.choice([2, 3, 4, 8])), float(sketch.rng.choice([1.0, 8.0, 100.0]))
    ends = []
    for share in sketch.rng.dirichlet(np.full(count, even)).tolist():
        inner = sketch.dense(added, taps=1, wide=4.0, share=share)
        ends.append(sketch.dense(inner, taps=1, narrow=4.0, share=share))
    return sketch.free(Kind.ELEMENTWISE, added, *ends)


def hourglass(sketch: Sketch, source: int) -> int:
    """Down through levels of ever fewer, wider vectors and up again, levels of a size joined."""
    depth = int(sketch.rng.integers(1, 4))  # layers of a level on each side
    levels = int(min(sketch.rng.integers(2, 6), max(1, np.log2(WIDEST / sketch.width))))
    passing = float(sketch.rng.choice([0.25, 0.5, 0.5, 1.0]))  # of the level above

    def deeper(end: int, narrow: float) -> int:
        for number in range(depth):
            end = sketch.dense(end, narrow=1.0 if number else narrow)
        return end

    end, narrow, above = source, 1.0, []
    for _ in range(levels):
        end = deeper(end, narrow)
        above.append((end, sketch.activation, sketch.width))
        sketch.activation *= passing
        sketch.width *= 2
        end, narrow = sketch.free(Kind.NORMALIZATION, end), 0.5
    end = deeper(end, narrow)
    for level, sketch.activation, sketch.width in reversed(above):
        grown = sketch.dense(end, taps=1, narrow=2.0)
        end = deeper(sketch.free(Kind.DATA_MOVEMENT, level, grown), 2.0)
    return end


def _bottleneck(sketch: Sketch, source: int) -> int:
    inner = sketch.dense(sketch.dense(source, taps=1, wide=0.25), narrow=0.25, wide=0.25)
    outer = sketch.free(Kind.NORMALIZATION, sketch.dense(inner, taps=1, narrow=0.25))
    return sketch.free(Kind.ELEMENTWISE, source, outer)


def _branches(sketch: Sketch, source: int) -> int:
    """Branches of different depth beside each other, as in an inception cell."""
    ends = []
    count = int(sketch.rng.choice([2, 3, 4, 5, 8, 12]))
    for _ in range(count):
        end = source
        for _ in range(int(sketch.rng.integers(1, 4))):
            end = sketch.dense(end, taps=int(sketch.rng.choice([1, 9])), wide=1 / count)
        ends.append(end)
    return sketch.dense(sketch.free(Kind.DATA_MOVEMENT, *ends), taps=1)


def _dense_skips(sketch: Sketch, source: int) -> int:
    """Every layer reads all before it in the block."""
    found = [source]
    for _ in range(int(sketch.rng.integers(3, 7))):
        found.append(sketch.dense(sketch.free(Kind.DATA_MOVEMENT, *found), wide=0.25))
    return sketch.dense(sketch.free(Kind.DATA_MOVEMENT, *found), taps=1)


def _random_skips(sketch: Sketch, source: int) -> int:
    """A few layers that each read one to three of those before."""
    found = [source]
    for _ in range(int(sketch.rng.integers(3, 9))):
        reads = sketch.rng.choice(found[-4:], size=min(2, len(found)), replace=False)
        inputs = sorted({found[-1], *(int(layer) for layer in reads)})
        found.append(sketch.dense(*inputs, wide=float(sketch.rng.choice([0.5, 1.0]))))
    return sketch.free(Kind.ELEMENTWISE, source, found[-1])


MOTIFS: tuple[Callable[[Sketch, int], int], ...] = (
    Sketch.dense, _attention, _bottleneck, _branches, _dense_skips, _random_skips, experts,
    hourglass,
)  # fmt: skip


def draw_network(rng: Rng, layers: int, wide: bool = True) -> Sketch:
    """A network of about `layers` layers: one motif again and again, or several in turn.

    Not `wide`: without experts and hourglasses, and no tower reads another before its end.
    """
    motifs, two_towers = (MOTIFS, 0.35) if wide else (MOTIFS[:-2], 0.25)

    def between(low: float, high: float) -> float:
        return float(log_uniform(rng, low, high, 1)[0])

    activation, width, rows = between(MEGA / 4, 48 * MEGA), between(64, 6144), between(2e3, 2e5)
    spread = float(rng.choice([0.0, 0.2, 0.7]))
    sketch = Sketch(rng, activation, width, int(rng.choice([1, 9])), spread)
    kinds = rng.choice(len(motifs), size=int(rng.choice([1, 1, 2, 3])), replace=False)
    texts = rng.random() < 0.4

    def start(size: float) -> int:
        if not texts:
            return sketch.dense(narrow=0.1)
        table = sketch.table(WORD * size * sketch.width)
        return sketch.add(Kind.EMBEDDING, (), 0.0, sketch.activation, table)

    towers = [start(rows)]
    stops = [layers]
    crossed = wide and rng.random() < 0.5  # every block of the second reads the end of the first
    if layers >= 16 and rng.random() < two_towers:
        towers.append(start(rows / 4))
        stops = [int(rng.uniform(0.3, 0.7) * layers), layers]
    shrinking = float(rng.choice([1.0, 1.0, 0.9]))  # of what passes, from block to block
    for tower, stop in enumerate(stops):
        sketch.activation *= between(0.05, 2.0) if tower else 1.0
        while len(sketch.layers) < stop - 2:
            towers[tower] = motifs[rng.choice(kinds)](sketch, towers[tower])
            if tower and crossed:
                towers[1] = _attended(sketch, towers[1], towers[0])
            sketch.activation *= shrinking
            sketch.width /= shrinking**0.5
    end = towers[-1]
    if len(towers) > 1 and not crossed:
        end = sketch.dense(sketch.free(Kind.DATA_MOVEMENT, *towers), taps=1)
    if texts or rng.random() < 0.3:  # the product with a vocabulary, the embedding's own or another
        tied = texts and rng.random() < 0.5 and shrinking == 1.0
        table = 0 if tied else sketch.table(WORD * rows * sketch.width)
        flop, written = 2 * rows * sketch.activation / WORD, rows * sketch.activation / sketch.width
        sketch.add(Kind.MATMUL, (end,), flop, written, table)
    return sketch


def step_graph(
    sketch: Sketch, name: str, micro_batches: int, state: float | None, together: bool = False
) -> OpGraph:
    """The training step of a sketched network, or its forward pass.

    Args:
        state: bytes of optimizer state for every byte of parameters; None: no backward pass.
        together: one backward operator gives both gradients, that of the inputs and the weights'.
    """
    trace = _Trace(sketch)
    if state is not None:
        trace.backward(together)
    step = MicroBatch.of((op.name for op in trace.operators), trace.operators, trace.values)
    parameters = [
        ParameterUse(f"parameter{number}", nbytes, FLOAT, tuple(trace.users[number]),
                     trace.gradient[number], 4 * nbytes / WORD, 4 * nbytes, 3 * nbytes,
                     (state or 0.0) * nbytes)
        for number, nbytes in enumerate(sketch.parameters)
    ]  # fmt: skip
    return unrolled(name, step, parameters, (), micro_batches)


class _Trace:
    """One micro-batch of a sketch, operator by operator; the forward ones are the layers."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.operators: list[Operator] = []
        self.values: list[Value] = []
        self.users: list[list[int]] = [[] for _ in sketch.parameters]
        self.gradient = [NONE] * len(sketch.parameters)  # tensors
        for number, layer in enumerate(sketch.layers):
            self._run(f"forward/{number}", number, layer.inputs, layer.flop, layer.written)
            self._tensor(layer.written, number)

    def backward(self, together: bool) -> None:
        """The gradients, from the last layer to the first."""
        layers = self.sketch.layers
        gradients: list[list[int]] = [[] for _ in layers]  # of each layer's output
        for number in reversed(range(len(layers))):
            layer, trained = layers[number], layers[number].parameter != NONE
            reads = gradients[number] or [number]  # the loss is of the output itself
            reads = reads + [u for u in layer.inputs if layer.kind not in NOTHING_SAVED]
            name, read = f"backward/{number}", sum(layers[u].written for u in layer.inputs)
            both = together and trained
            if layer.inputs:
                op = self._run(name, number, reads, layer.flop * (1 + both), read)
                for source in layer.inputs:
                    gradients[source].append(self._tensor(layers[source].written, op))
            if trained:
                size, known = (
                    self.sketch.parameters[layer.parameter],
                    self.gradient[layer.parameter],
                )
                if not (layer.inputs and both):
                    op = self._run(f"{name}.weight", number, reads, layer.flop, size)
                if known != NONE:  # of a tied one: added to what is there
                    self.values[known].consumers.append(op)
                self.gradient[layer.parameter] = self._tensor(size, op)

    def _run(
        self,
        name: str,
        number: int,
        reads: list[int] | tuple[int, ...],
        flop: float,
        written: float,
    ) -> int:
        """A new operator of a layer."""
        layer, op = self.sketch.layers[number], len(self.operators)
        read = sum(self.values[tensor].bytes for tensor in reads)
        if layer.parameter != NONE:
            self.users[layer.parameter].append(op)
            read += self.sketch.parameters[layer.parameter] * (not name.endswith("weight"))
        phase, mirror = (Phase.BACKWARD, number) if number < op else (Phase.FORWARD, NONE)
        self.operators.append(Operator(name, layer.kind, phase, flop, read, written, FLOAT, mirror))
        for tensor in reads:
            self.values[tensor].consumers.append(op)
        return op

    def _tensor(self, nbytes: float, producer: int) -> int:
        self.values.append(Value(nbytes, FLOAT, producer))
        return len(self.values) - 1
