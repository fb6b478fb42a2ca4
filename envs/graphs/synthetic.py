"""Random training graphs from a seeded generator: for tests and training."""

from __future__ import annotations

import numpy as np

from envs.arrays import FloatArray
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.units import GIGA, MEGA

Rng = np.random.Generator
SKIPS = 0.3  # chance that a block reads another one of the layer before
PARAMETER_BYTES = 1 * MEGA, 64 * MEGA  # least and most of a block
ACTIVATION_BYTES = 1 * MEGA, 32 * MEGA
FLOP = 1 * GIGA, 100 * GIGA


def synthetic_training_graph(
    rng: Rng, layers: int = 4, width: int = 2, micro_batches: int = 2
) -> OpGraph:
    """A training step: forward, mirrored backward and update of `layers` x `width` blocks.

    Block (l, w) reads block (l - 1, w) and, with chance `SKIPS` each, the other blocks of layer
    l - 1. Per micro-batch it has a forward operator and a backward one of twice the FLOP that
    reads the same tensors, the gradients of its output, and writes the gradient of each input;
    blocks of the last layer start their backward from their own output. One update per block reads
    the parameter gradient of every micro-batch. All operators of a block share its parameter (with
    gradient and two moments) and its co-location group. Ranges are drawn log-uniformly.
    """
    builder = GraphBuilder(name=f"synthetic_{layers}x{width}x{micro_batches}")
    blocks = layers * width
    sources: list[list[int]] = [[] for _ in range(blocks)]
    for block in range(width, blocks):
        row = range((block // width - 1) * width, (block // width) * width)
        sources[block] = [u for u in row if u % width == block % width or rng.random() < SKIPS]
    work, output, weights = (
        log_uniform(rng, *limits, blocks).tolist()
        for limits in (FLOP, ACTIVATION_BYTES, PARAMETER_BYTES)
    )
    targets = [[v for v in range(blocks) if u in sources[v]] for u in range(blocks)]
    weight_gradients: list[list[int]] = [[] for _ in range(blocks)]
    first_forward = 0
    for batch in range(micro_batches):
        forward, activation = [], []
        for block in range(blocks):
            read = sum((output[u] for u in sources[block]), 0.0)
            op = builder.add_operator(
                f"forward.{block}.{batch}",
                kind=Kind.MATMUL,
                micro_batch=batch,
                flop=work[block],
                bytes_read=read + weights[block],
                bytes_written=output[block],
                colocation=block,
            )
            forward.append(op)
            activation.append(builder.add_tensor(op, output[block]))
            for u in sources[block]:
                builder.add_use(activation[u], op)
        first_forward = forward[0] if batch == 0 else first_forward
        gradients: dict[int, list[int]] = {block: [] for block in range(blocks)}
        for block in reversed(range(blocks)):
            read = sum((output[u] for u in sources[block]), 0.0)
            op = builder.add_operator(
                f"backward.{block}.{batch}",
                kind=Kind.MATMUL,
                phase=Phase.BACKWARD,
                micro_batch=batch,
                flop=2 * work[block],
                bytes_read=read + (output[block] + weights[block]),
                bytes_written=read + weights[block],
                colocation=block,
                mirror=forward[block],
            )
            for tensor in gradients[block] if targets[block] else [activation[block]]:
                builder.add_use(tensor, op)
            for u in sources[block]:
                builder.add_use(activation[u], op)
                gradients[u].append(builder.add_tensor(op, output[u]))
            weight_gradients[block].append(builder.add_tensor(op, weights[block]))
    for block in range(blocks):
        op = builder.add_operator(
            f"update.{block}",
            kind=Kind.UPDATE,
            phase=Phase.OPTIMIZER,
            micro_batch=NONE,
            flop=4 * weights[block],
            bytes_read=4 * weights[block],
            bytes_written=3 * weights[block],
            colocation=block,
        )
        for tensor in weight_gradients[block]:
            builder.add_use(tensor, op)
        size = weights[block]
        builder.add_parameter(
            f"weight.{block}",
            first_forward + block,
            parameter=size,
            gradient=size,
            optimizer=2 * size,
        )
    return builder.build()


def log_uniform(rng: Rng, low: float, high: float, count: int) -> FloatArray:
    """(count,) samples between two bounds."""
    return np.exp(rng.uniform(np.log(low), np.log(high), count))
