"""Which gradients a step has, and how they form buckets."""

from __future__ import annotations

import numpy as np
import pytest
from captured_steps import perceptron

from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.step.replicated_step import (
    BucketRule,
    gradient_buckets,
    gradients,
    updates_last,
)


def test_gradients_are_reduced_after_the_last_micro_batch() -> None:
    graph = perceptron(3)
    for gradient in gradients(graph).values():
        for op in gradient.makers:
            assert graph.op_names[op].startswith("mb2/accumulate/")
    assert len(gradients(graph)) == graph.num_parameters == 12
    single = perceptron(1)
    makers = [op for gradient in gradients(single).values() for op in gradient.makers]
    assert (single.phase[makers] == Phase.BACKWARD).all()


def test_buckets_take_gradients_in_the_order_backward_makes_them() -> None:
    graph = perceptron()
    order = np.arange(graph.num_operators)
    device = np.zeros(graph.num_operators, dtype=np.int64)
    buckets = gradient_buckets(graph, device, order, BucketRule(1.0, 1.2e6))
    sequence = [p for bucket in buckets for p in bucket.parameters]
    assert sorted(sequence) == list(range(graph.num_parameters))
    layers = [int(graph.parameter_names[p].split(".")[0]) for p in sequence]
    assert layers == sorted(layers, reverse=True)
    assert len(buckets[0].parameters) == 1
    for bucket in buckets[1:-1]:
        sizes = graph.gradient_bytes[list(bucket.parameters)]
        assert bucket.size == sizes.sum() >= 1.2e6 > sizes[:-1].sum()


def test_a_gradient_that_no_update_reads_is_named() -> None:
    builder = GraphBuilder("bare")
    op = builder.add_operator("backward", phase=Phase.BACKWARD)
    builder.add_parameter("weight", op, parameter=4, gradient=4, optimizer=0)
    with pytest.raises(InputError, match="no update reads") as error:
        gradients(builder.build())
    assert "weight" in str(error.value)


def test_an_update_that_feeds_the_step_is_named() -> None:
    builder = GraphBuilder("loop")
    update = builder.add_operator("update", phase=Phase.OPTIMIZER)
    after = builder.add_operator("after", phase=Phase.FORWARD)
    builder.add_use(builder.add_tensor(update, 1.0), after)
    with pytest.raises(InputError, match="feeds 'after'"):
        updates_last(builder.build(), np.arange(2))


def test_every_device_has_buckets_of_its_own() -> None:
    graph = perceptron()
    device = (graph.colocation % 3 == 0).astype(np.int64)
    order = np.arange(graph.num_operators)
    buckets = gradient_buckets(graph, device, order, BucketRule(1.0, 1.2e6))
    assert {bucket.device for bucket in buckets} == {0, 1}
    for bucket in buckets:
        owners = graph.parameter_owner[list(bucket.parameters)]
        assert (device[owners] == bucket.device).all()
    everything = sorted(p for bucket in buckets for p in bucket.parameters)
    assert everything == list(range(graph.num_parameters))


def test_updates_of_a_group_belong_to_its_parameter() -> None:
    builder = GraphBuilder("group")
    forward = builder.add_operator("forward", colocation=0)
    backward = builder.add_operator("backward", phase=Phase.BACKWARD, colocation=0)
    update = builder.add_operator("update", phase=Phase.OPTIMIZER, colocation=0)
    other = builder.add_operator("other", phase=Phase.OPTIMIZER)
    builder.add_use(builder.add_tensor(forward, 1.0), backward)
    builder.add_use(builder.add_tensor(backward, 1.0), update)
    builder.add_use(builder.add_tensor(forward, 1.0), other)
    builder.add_parameter("weight", forward, parameter=4, gradient=4, optimizer=0)
    found = gradients(builder.build())
    assert found[0].makers == (backward,)
    assert found[0].updates == (update,)


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan")])
def test_a_bucket_has_a_positive_size(size: float) -> None:
    with pytest.raises(InputError, match="is not positive"):
        BucketRule(1.0, size)
    with pytest.raises(InputError, match="is not positive"):
        BucketRule(size, 1.0)
