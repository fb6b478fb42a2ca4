"""A training run's layers beside kernels, messages and bytes counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given

from agents.hybrid.degrees import estimate
from agents.hybrid.uniform import step_of, uniform_plan
from envs.errors import InputError
from envs.graphs.transformer import Part, TransformerSize, parameters_of
from envs.hardware.devices import device_spec
from envs.hybrid.links import Servers
from envs.hybrid.plan import peak_memory
from envs.hybrid.simulation import pipeline_of, simulate
from envs.hybrid.training_run import TrainingRun
from envs.hybrid.transformer_row import (
    MEMORY_SHARE,
    Constants,
    KernelCost,
    TransformerRow,
)
from envs.network.allreduce import Link
from envs.step.pipeline import play
from tests.envs.hybrid.kernel_costs import Even, Products
from tests.envs.hybrid.training_runs import drawn, layers_of_stages
from tests.refusal import refusal
from tests.strength import SEEDS, examples

# Four times its width of a head is its sequence: a block's inner activations are as many as scores.
GPT = TransformerSize("gpt", 64, 8, 8, 512, 32)
MIXTRAL = TransformerSize("mixtral", 64, 4, 8, 512, 32, 96, groups=2, experts=4)
T5 = TransformerSize("t5", 64, 4, 8, 512, 32)
SERVERS = Servers(device_spec("A100-80GB"), 8, Link(1e15, 0.0, 0.0), 4, 1e15)
BLOCK = Part.BLOCK


def row(
    model: TransformerSize = GPT, cost: KernelCost | None = None, device: str = "A100-80GB",
    **run: Any,
) -> TransformerRow:  # fmt: skip
    own = {"global_batch": run.get("data", 1) * run.get("micro_batch", 1), **run}
    servers = replace(SERVERS, device=device_spec(device))
    return TransformerRow(TrainingRun(model, **own), servers, cost or Even())


@pytest.mark.parametrize(
    ("run", "forward", "backward"),
    [
        ({}, 10, 18),
        ({"recompute": "full"}, 10, 28),
        ({"recompute": "selective"}, 10, 18),  # FlashAttention keeps no scores
        ({"fused_attention": False}, 17, 27),
        ({"fused_attention": False, "recompute": "selective"}, 17, 30),
    ],
)
def test_kernels_of_a_block(run: dict[str, Any], forward: int, backward: int) -> None:
    priced = row(**run).priced[1]
    assert (priced.forward_s, priced.backward_s) == (forward, backward)
    slower = replace(row(**run), constants=Constants(compute=2.0, launch_s=0.5)).priced[1]
    assert (slower.forward_s, slower.backward_s) == (2.5 * forward, 2.5 * backward)


@pytest.mark.parametrize(
    ("model", "layer", "run", "messages"),
    [
        (GPT, 1, {}, (2, 2)),
        (GPT, 1, {"recompute": "full"}, (2, 4)),
        (GPT, 1, {"recompute": "selective", "fused_attention": False}, (2, 2)),
        (GPT, 0, {}, (1, 0)),
        (GPT, -1, {}, (0, 1)),
        (T5, 1, {}, (2, 2)),
        (T5, -2, {}, (3, 3)),
        (T5, -2, {"recompute": "full"}, (3, 6)),
    ],
)
def test_tensor_parallel_sums(
    model: TransformerSize, layer: int, run: dict[str, Any], messages: tuple[int, int]
) -> None:
    whole = row(model, tensor=2, micro_batch=3, **run)
    priced = whole.priced[layer]
    assert (priced.messages_forward, priced.messages_backward) == messages
    each = 3 * 32 * 64 * 2  # samples, tokens, width, bytes of a number
    assert (priced.sums_forward, priced.sums_backward) == (messages[0] * each, messages[1] * each)
    alone = row(model, micro_batch=3, **run).priced[layer]
    assert alone.sums_forward == alone.messages_backward == 0
    slow = replace(SERVERS, link=Link(1e5, 0.25, 0.0, 0.0))
    slower = replace(whole, servers=slow, constants=Constants(collective=3.0))
    seconds = slower.problem(), uniform_plan(slower)
    more = pipeline_of(*seconds).forward[0] - pipeline_of(whole.problem(), seconds[1]).forward[0]
    sums = sum(part.messages_forward for part in whole.priced)
    assert more == pytest.approx(3.0 * sums * (0.25 + each / 1e5))


@pytest.mark.parametrize(
    ("pipeline", "batches", "chunks", "data"),
    [(1, 3, 1, 1), (2, 4, 1, 2), (4, 8, 1, 1), (4, 2, 1, 2), (4, 8, 2, 1), (2, 6, 4, 2)],
)
def test_steps_of_equal_stages(pipeline: int, batches: int, chunks: int, data: int) -> None:
    run = row(
        cost=Products(512), pipeline=pipeline, data=data, global_batch=batches * data,
        chunks=chunks, schedule="interleaved" if chunks > 1 else "1f1b",
    )  # fmt: skip
    problem, plan = run.problem(), uniform_plan(run)
    assert plan.violations(problem) == []
    stage = 12 * 8 / pipeline  # 4 products, 8 in the pass back
    found = simulate(problem, plan).step_time
    assert found == pytest.approx(stage * (batches + (pipeline - 1) / chunks), rel=1e-4)
    assert estimate(run)[0] == pytest.approx(found, rel=1e-4)
    assert found == pytest.approx(play(pipeline_of(problem, plan), plan.orders).makespan, rel=1e-4)


@pytest.mark.parametrize(("tensor", "shared"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("scores", [False, True])
def test_activations_of_a_block(tensor: int, shared: bool, scores: bool) -> None:
    run = row(tensor=tensor, sequence_parallel=shared, micro_batch=2, fused_attention=not scores)
    s, b, h, heads = 32, 2, 64, 8
    expected = s * b * h * (10 / (tensor if shared else 1) + 24 / tensor)
    expected += 5 * heads * s**2 * b / tensor if scores else 0
    assert run.saved_bytes(BLOCK) == pytest.approx(expected)
    selective = replace(run, run=replace(run.run, recompute="selective"))
    assert selective.saved_bytes(BLOCK) == pytest.approx(
        expected - (5 * heads * s**2 * b / tensor if scores else 0)
    )
    full = replace(run, run=replace(run.run, recompute="full"))
    assert full.saved[1] == pytest.approx(2 * s * b * h / (tensor if shared else 1))
    assert full.working_bytes() == run.saved_bytes(BLOCK)


@pytest.mark.parametrize(
    ("schedule", "batches", "kept"),
    [("1f1b", 8, (4, 3, 2, 1)), ("1f1b", 2, (2, 2, 2, 1)), ("gpipe", 8, (8, 8, 8, 8))],
)
def test_micro_batches_that_stages_keep(schedule: str, batches: int, kept: tuple[int, ...]) -> None:
    run = row(pipeline=4, data=2, global_batch=2 * batches, schedule=schedule)
    peak = peak_memory(run.problem(), uniform_plan(run))
    layers = np.split(np.array(run.parts), np.cumsum(run.stages)[:-1])
    for stage, count in enumerate(kept):
        parts = [Part(part) for part in layers[stage]]
        held = sum(sum(run.states(part)) + count * run.saved_bytes(part) for part in parts)
        assert peak[2 * stage : 2 * stage + 2] == pytest.approx(held)


@pytest.mark.parametrize(
    ("sizes", "chunks", "again"),
    [((), 1, "0110011000"), ((4, 3, 1, 2), 2, "0110110110"), ((1, 8, 1), 1, "0110000000")],
)
def test_the_first_blocks_of_stages_are_computed_again(
    sizes: tuple[int, ...], chunks: int, again: str
) -> None:
    stages = len(sizes) // chunks or 2
    run = row(pipeline=stages, chunks=chunks, layers_per_stage=sizes, recompute="full",
              recompute_layers=2, schedule="interleaved" if chunks > 1 else "1f1b")  # fmt: skip
    assert run.recomputed == [each == "1" for each in again]


def test_memory_and_time_of_blocks_computed_again() -> None:
    run = row(pipeline=2, tensor=2, global_batch=4, recompute="full", recompute_layers=3)
    kept, whole = 2 * 32 * 64, 32 * 64 * (10 + 24 / 2)  # a block's input, and all it keeps
    assert run.saved[1:5] == pytest.approx([kept] * 3 + [whole])
    assert [part.backward_s for part in run.priced[1:5]] == [28, 28, 28, 18]
    assert [part.messages_backward for part in run.priced[1:5]] == [4, 4, 4, 2]
    first = sum(sum(run.states(part)) for part in run.parts[:5])
    first += 2 * (run.saved[0] + 3 * kept + whole)  # of two micro-batches
    memory = first + whole + run.constants.framework_bytes  # one block's come back
    assert step_of(run)[1] == pytest.approx(memory, abs=1)


@examples(100)
@given(SEEDS)
def test_more_blocks_take_more_time_and_less_memory(seed: int) -> None:
    run = drawn(seed)
    servers = replace(SERVERS, link=Link(1e11), card_bandwidth=5e9)
    blocks = np.array(layers_of_stages(run))
    blocks[0] -= 1
    blocks[-1] -= 1

    def step(recompute: Any, layers: int | None = None) -> tuple[float, float, float]:
        own = replace(run, recompute=recompute, recompute_layers=layers)
        row = TransformerRow(own, servers, Products(run.model.vocabulary))
        return *step_of(row), peak_memory(row.problem(), uniform_plan(row)).sum()

    try:
        none = step("none")
    except InputError:
        return  # stages do not divide the blocks
    steps = [step("full", layers) for layers in range(blocks.max() + 1)]
    assert (steps[0], steps[-1]) == (none, step("full"))
    seconds, peaks, kept = zip(*steps, strict=True)
    assert sorted(set(seconds)) == list(seconds)
    assert sorted(peaks[1:], reverse=True) == list(peaks[1:])
    assert sorted(set(kept), reverse=True) == list(kept)


@pytest.mark.parametrize(
    ("precision", "level", "per_parameter"),
    [
        ("bf16", 0, 18), ("bf16", 1, 9), ("bf16", 2, 6), ("bf16", 3, 4.5),
        ("fp32", 0, 16), ("tf32", 1, 10), ("fp32", 2, 7), ("fp32", 3, 4),
    ],
)  # fmt: skip
def test_states_that_replicas_divide(precision: str, level: int, per_parameter: float) -> None:
    run = row(data=4, zero=level, precision=precision)
    count = parameters_of(GPT, BLOCK)
    assert sum(run.states(BLOCK)) == pytest.approx(per_parameter * count)
    moved = (28 if precision.endswith("32") else 34) * count / (4 if level else 1)
    device = device_spec("A100-80GB")
    seconds = moved / (MEMORY_SHARE * device.memory_bandwidth)
    assert run.problem().update[1] == pytest.approx(seconds)


@pytest.mark.parametrize(("expert", "level"), [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)])
def test_experts_have_replicas_of_their_own(expert: int, level: int) -> None:
    run = row(MIXTRAL, data=4, expert=expert, zero=level)
    shared = 64 * (64 + 2 * 16) + 64 * 64 + 64 * 4 + 2 * 64
    experts = 4 / expert * 3 * 64 * 96
    part = Part.SPARSE_BLOCK
    assert run.parameters(part) == (shared, experts)
    assert expert * experts + shared == parameters_of(MIXTRAL, part)
    own = 4 // expert
    rings = shared * 2 * 3 / 4 + experts * 2 * (own - 1) / own  # bytes that a device passes on
    assert run.summed(part) * 2 * 3 / 4 == pytest.approx(rings)
    kept = shared / 4 + experts / own if level else shared + experts
    bandwidth = MEMORY_SHARE * device_spec("A100-80GB").memory_bandwidth
    assert run.update_s()[1] == pytest.approx(34 * kept / bandwidth)


def test_every_stage_updates_on_its_own_device() -> None:
    kinds = device_spec("A100-80GB"), device_spec("V100-32GB")
    run = replace(row(pipeline=2, precision="fp16"), stage_devices=kinds)
    fast, slow = run.update_s()[[1, -2]]
    assert slow / fast == pytest.approx(kinds[0].memory_bandwidth / kinds[1].memory_bandwidth)


def test_products_without_a_rate_of_their_own() -> None:
    kinds = {"A100-80GB": "tfloat32", "V100-32GB": "float32", "P4": "float32"}
    for name, rate in kinds.items():
        assert row(precision="tf32").execution(device_spec(name)).rate == rate
    with refusal("P4 .*float16") as caught:
        row(precision="fp16", device="P4").problem()
    assert caught.value.field == "precision"


def test_layers_of_stages() -> None:
    assert row(pipeline=4).stages == [3, 2, 2, 3]
    uneven = row(pipeline=2, layers_per_stage=(3, 7))
    assert [(s.first, s.end) for s in uniform_plan(uneven).stages] == [(0, 3), (3, 10)]


@pytest.mark.parametrize(
    ("field", "run"),
    [
        ("micro_batch", {"micro_batch": 2, "global_batch": 3}),
        ("micro_batch", {"data": 2, "global_batch": 3}),
        ("tensor", {"tensor": 3}),
        ("expert", {"model": MIXTRAL, "data": 3, "expert": 2}),
        ("expert", {"data": 2, "expert": 2}),
        ("pipeline", {"pipeline": 3}),
        ("pipeline", {"pipeline": 4, "chunks": 4}),
        ("layers_per_stage", {"pipeline": 2, "layers_per_stage": (4, 4)}),
        ("layers_per_stage", {"pipeline": 2, "layers_per_stage": (4, 4, 2)}),
        ("recompute_layers", {"recompute": "selective", "recompute_layers": 1}),
        ("recompute_layers", {"recompute": "full", "recompute_layers": -1}),
    ],
)
def test_what_does_not_divide_is_refused(field: str, run: dict[str, Any]) -> None:
    model = cast(TransformerSize, run.pop("model", GPT))
    with refusal() as caught:
        row(model, **run).problem()
    assert caught.value.field == field
