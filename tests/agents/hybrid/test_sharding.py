"""What sharing a layer costs: Megatron's count of collectives, state and activations."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.hybrid.sharding import sharding_of
from envs.graphs.motifs import Sketch, step_graph
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase

ROWS, WIDTH = 2048.0, 1024.0
ACTIVATION = 4 * ROWS * WIDTH  # bytes


def transformer(blocks: int, state: float | None = 2.0) -> tuple[OpGraph, NDArray[np.int64], int]:
    """An embedding, blocks, and the product with a vocabulary and its loss, a layer each."""
    sketch = Sketch(np.random.default_rng(0), ACTIVATION, WIDTH, taps=1, spread=0.0)
    source = sketch.add(Kind.EMBEDDING, (), 0.0, ACTIVATION, sketch.table(4 * 50_000 * WIDTH))
    layer = [0]
    for block in range(blocks):
        normal = sketch.add(Kind.NORMALIZATION, (source,), 0.0, ACTIVATION, sketch.table(4 * WIDTH))
        mixed = sketch.free(Kind.ATTENTION, sketch.dense(normal, wide=3.0), flop_per_byte=64.0)
        sketch.layers[-1] = sketch.layers[-1]._replace(written=ACTIVATION)
        added = sketch.free(Kind.ELEMENTWISE, source, sketch.dense(mixed))
        normal = sketch.add(Kind.NORMALIZATION, (added,), 0.0, ACTIVATION, sketch.table(4 * WIDTH))
        wide = sketch.free(Kind.ELEMENTWISE, sketch.dense(normal, wide=4.0))
        source = sketch.free(Kind.ELEMENTWISE, added, sketch.dense(wide, narrow=4.0))
        layer += [block + 1] * (len(sketch.layers) - len(layer))
    logits = sketch.dense(source, wide=50.0)
    softmax = sketch.free(Kind.NORMALIZATION, logits)
    sketch.add(Kind.REDUCTION, (softmax,), 0.0, 4.0, NONE)
    layer += [blocks + 1] * 3
    graph = step_graph(sketch, "transformer", 2, state)
    of = np.full(graph.num_operators, NONE)
    for op in np.flatnonzero((graph.phase == Phase.FORWARD) & (graph.micro_batch == 0)).tolist():
        of[op] = layer[int(graph.op_names[op].split("/")[-1])]
    return graph, of, blocks + 2


def test_two_all_reduces_forward_and_two_backward_as_in_megatron() -> None:
    found = sharding_of(*transformer(3), (1, 2, 4, 8))
    blocks = slice(1, 4)
    for p, shard in found.items():
        for sent in (shard.forward_sent, shard.backward_sent):
            assert sent[blocks] == pytest.approx(2 * 2 * (p - 1) / p * ACTIVATION)
        for messages in (shard.forward_messages, shard.backward_messages):
            assert (messages[blocks] == 2 * 2 * (p - 1)).all()
        assert shard.state[blocks] == pytest.approx(1 / p, rel=2e-3)
        assert (shard.compute >= 1 / p).all()
    for fewer, more in pairwise(found.values()):
        assert (more.compute[1:] < fewer.compute[1:]).all()
        assert (more.saved[blocks] < fewer.saved[blocks]).all()
    assert (found[1].compute == 1).all()


def test_the_loss_is_of_split_logits() -> None:
    """Only statistics of rows and the gradient of the last activation are sent, never logits."""
    found = sharding_of(*transformer(1), (1, 4))[4]
    statistics = 2 * 3 / 4 * 4 * ROWS  # bytes of an all-reduce of a number for every row
    assert found.forward_sent[2] == pytest.approx(2 * statistics)
    assert found.backward_sent[2] == pytest.approx(statistics + 2 * 3 / 4 * ACTIVATION)
    assert found.state[2] == 1 / 4


def test_a_forward_pass_alone_sends_nothing_back() -> None:
    found = sharding_of(*transformer(1, state=None), (1, 2))[2]
    assert found.forward_sent[1] == pytest.approx(2 * ACTIVATION)
    assert found.backward_sent[1] == 0


def test_layers_of_nothing_but_constants_are_not_shared() -> None:
    graph, _, _ = transformer(1)
    found = sharding_of(graph, np.full(graph.num_operators, NONE), 2, (1, 4))[4]
    assert (found.compute == 1).all()
    assert (found.forward_sent == 0).all()
