"""A pipelined step that is quick to build: a chain of layers, unrolled over micro-batches."""

from __future__ import annotations

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Kind, OpGraph, Phase


def layered_step(layers: int, micro_batches: int) -> OpGraph:
    """Forward and backward of a chain of matrix products, then one update per layer."""
    builder = GraphBuilder("layered_step")
    gradients: list[list[int]] = [[] for _ in range(layers)]
    for m in range(micro_batches):
        facts = {"flop": 2e10, "bytes_read": 2e7, "bytes_written": 2e7, "micro_batch": m}
        forward = [
            builder.add_operator(f"forward.{m}.{i}", kind=Kind.MATMUL, colocation=i, **facts)
            for i in range(layers)
        ]
        activations = [builder.add_tensor(op, 5e6) for op in forward]
        for i in range(1, layers):
            builder.add_use(activations[i - 1], forward[i])
        carried = activations[-1]
        for i in reversed(range(layers)):
            backward = builder.add_operator(
                f"backward.{m}.{i}", kind=Kind.MATMUL, phase=Phase.BACKWARD, colocation=i,
                mirror=forward[i], **{**facts, "flop": 4e10},
            )  # fmt: skip
            builder.add_use(carried, backward)
            builder.add_use(activations[i], backward)
            carried = builder.add_tensor(backward, 5e6)
            gradients[i].append(carried)
    for i in range(layers):
        update = builder.add_operator(
            f"update.{i}", kind=Kind.UPDATE, phase=Phase.OPTIMIZER, micro_batch=-1,
            bytes_read=4e8, bytes_written=3e8, colocation=i,
        )  # fmt: skip
        for gradient in gradients[i]:
            builder.add_use(gradient, update)
        builder.add_parameter(f"weight.{i}", update, parameter=1e8, gradient=1e8, optimizer=2e8)
    return builder.build()
