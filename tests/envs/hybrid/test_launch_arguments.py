"""A launch says all that a run does, or the run is refused by the field that it cannot say."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given

from envs.errors import InputError
from envs.graphs.transformer import TransformerSize
from envs.hybrid.launching import CONFIG_FILE, FRAMEWORKS, Launch, launch_arguments
from envs.hybrid.training_run import TrainingRun
from tests.envs.hybrid.training_runs import LLAMA3_8B, MODELS, drawn, layers_of_stages
from tests.refusal import refusal
from tests.strength import SEEDS

GPT, EXPERTS, LLAMA, MIXTRAL = MODELS[:4]


def moved(run: TrainingRun) -> tuple[int, ...]:
    """One layer moved from the largest stage to a neighbour."""
    sizes = layers_of_stages(run)
    largest = sizes.index(max(sizes))
    sizes[largest] -= 1
    sizes[largest - 1] += 1
    return tuple(sizes)


OTHER: dict[str, Any] = {  # a value that means something else, by field
    "tensor": lambda run: 2 * run.tensor,
    "pipeline": lambda run: 2 * run.pipeline,
    "data": lambda run: 2 * run.data,
    "expert": lambda run: 2 if run.expert == 1 else 1,
    "sequence_parallel": lambda run: not run.sequence_parallel,
    "micro_batch": lambda run: 3 - run.micro_batch,
    "global_batch": lambda run: 2 * run.global_batch,
    "schedule": lambda run: "gpipe" if run.schedule == "1f1b" else "1f1b",
    "chunks": lambda run: run.chunks + 1,
    "recompute": lambda run: "none" if run.recompute == "full" else "full",
    "recompute_layers": lambda run: run.recompute_layers is None or None,
    "precision": lambda run: "tf32" if run.precision == "fp32" else "fp32",
    "fused_attention": lambda run: not run.fused_attention,
    "zero": lambda run: (run.zero + 2) % 4,
    "layers_per_stage": moved,
    "model": lambda run: replace(run.model, layers=2 * run.model.layers),
}
SIZES = ("hidden", "layers", "heads", "vocabulary", "sequence", "feed_forward", "head_size")


def launched(run: TrainingRun, framework: str) -> Launch | None:
    with suppress(InputError):
        return launch_arguments(run, framework)
    return None


@given(SEEDS)
def test_every_field_is_said_or_refused(seed: int) -> None:
    run = drawn(seed)
    assert sorted(OTHER) == sorted(each.name for each in fields(run))
    for framework in FRAMEWORKS:
        launch = launched(run, framework)
        for field in OTHER if launch else ():
            if field == "layers_per_stage" and run.pipeline * run.chunks == 1:
                continue
            with suppress(InputError):
                other = replace(run, **{field: OTHER[field](run)})
                assert launched(other, framework) != launch, (framework, field)
        plain = replace(run, recompute="none", recompute_layers=None)
        no_block = replace(run, recompute="full", recompute_layers=0)
        assert launched(no_block, framework) == launched(plain, framework)
        for size in SIZES if launch else ():
            model = replace(run.model, **{size: 2 * getattr(run.model, size)})
            assert launched(replace(run, model=model), framework) != launch, (framework, size)


def test_megatron() -> None:
    run = TrainingRun(
        LLAMA, 2, 4, 2, sequence_parallel=True, global_batch=16, schedule="interleaved", chunks=3,
        recompute="full", zero=1,
    )  # fmt: skip
    launch = launch_arguments(run, "megatron")
    assert " ".join(launch.arguments) == (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"
        " --num-virtual-stages-per-pipeline-rank 3 --expert-model-parallel-size 1"
        " --sequence-parallel --micro-batch-size 1 --global-batch-size 16 --num-layers 24"
        " --hidden-size 64 --ffn-hidden-size 256 --num-attention-heads 8"
        " --group-query-attention --num-query-groups 2 --kv-channels 8 --seq-length 64"
        " --max-position-embeddings 64 --padded-vocab-size 512 --swiglu --normalization RMSNorm"
        " --position-embedding-type rope --untie-embeddings-and-output-weights"
        " --disable-bias-linear --attention-dropout 0 --hidden-dropout 0"
        " --attention-backend flash --recompute-granularity full --recompute-method uniform"
        " --recompute-num-layers 1 --bf16 --use-distributed-optimizer"
    )
    assert launch.processes == 16
    assert launch.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert launch.files == launch.by_program == {}
    some = launch_arguments(replace(run, recompute_layers=2), "megatron")
    assert " --recompute-method block --recompute-num-layers 2 " in " ".join(some.arguments)


def test_megatron_with_experts_uneven_stages_and_all_divided() -> None:
    run = TrainingRun(
        EXPERTS, pipeline=3, data=4, expert=2, global_batch=8, recompute="selective",
        precision="fp16", fused_attention=False, zero=3, layers_per_stage=(6, 5, 3),
    )  # fmt: skip
    words = " ".join(launch_arguments(run, "megatron").arguments)
    assert " --pipeline-model-parallel-layout Ettttt|ttttt|ttL " in words
    assert words.endswith(
        " --num-experts 4 --moe-router-topk 1 --moe-router-pre-softmax --moe-layer-freq"
        " [0,1,0,1,0,1,0,1,0,1,0,1] --moe-token-dispatcher-type alltoall"
        " --attention-backend unfused"
        " --recompute-granularity selective --fp16 --use-distributed-optimizer"
        " --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
        " --ckpt-format fsdp_dtensor"
    )
    halves = launch_arguments(replace(run, zero=2), "megatron").arguments
    assert "optim_grads" in halves


def test_torchtitan() -> None:
    run = TrainingRun(
        LLAMA3_8B, 2, 4, 2, sequence_parallel=True, micro_batch=2, global_batch=32,
        precision="tf32", recompute="full", zero=3, layers_per_stage=(10, 10, 10, 4),
    )  # fmt: skip
    launch = launch_arguments(run, "torchtitan")
    cut = launch.arguments.index("--parallelism.module_fqns_per_model_part")
    assert " ".join(launch.arguments[:cut]) == (
        "--module llama3 --config llama3_8b --training.local_batch_size 16"
        " --training.global_batch_size 32 --training.seq_len 8192"
        " --training.mixed_precision_param float32 --training.disable_cuda_graphs"
        " --parallelism.tensor_parallel_degree 2 --parallelism.enable_sequence_parallel"
        " --parallelism.data_parallel_replicate_degree 1"
        " --parallelism.data_parallel_shard_degree 2"
        " --parallelism.fsdp_reshard_after_forward always"
        " --parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule 1F1B"
        " --parallelism.pipeline_parallel_microbatch_size 2"
    )
    first, _, _, last = launch.arguments[cut + 1 : cut + 5]
    assert first == ",".join(["tok_embeddings", *(f"layers.{i}" for i in range(9))])
    assert last == "layers.29,layers.30,layers.31,norm,lm_head"
    assert launch.arguments[-1] == "activation-checkpoint:full"
    assert launch.environment == {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    alone = launch_arguments(TrainingRun(LLAMA3_8B, data=4, global_batch=16), "torchtitan")
    assert " ".join(alone.arguments[4:8]) == (
        "--training.local_batch_size 1 --training.global_batch_size 16"  # accumulates 4
    )
    assert "--parallelism.data_parallel_replicate_degree 4" in " ".join(alone.arguments)


def test_deepspeed() -> None:
    run = TrainingRun(
        MIXTRAL, pipeline=2, data=4, expert=4, micro_batch=2, global_batch=64, recompute="full",
        precision="fp16", zero=1,
    )  # fmt: skip
    launch = launch_arguments(run, "deepspeed")
    assert launch.arguments == ("--deepspeed", "--deepspeed_config", CONFIG_FILE)
    assert json.loads(launch.files[CONFIG_FILE]) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 1},
        "fp16": {"enabled": True},
        "pipeline": {"activation_checkpoint_interval": 1},
    }
    assert launch.by_program["pipeline"] == {"num_stages": 2, "partition_method": "type:block"}
    assert launch.by_program["expert"] == {"num_experts": 8, "k": 2, "ep_size": 4}
    assert launch.by_program["model"]["hidden"] == 64
    some = replace(run, pipeline=1, recompute_layers=3)
    assert launch_arguments(some, "deepspeed").by_program["recompute_layers"] == 3


BASE = {"global_batch": 8}
TITAN = {"model": LLAMA3_8B, **BASE}
SOME = {"recompute": "full", "recompute_layers": 1}
LOOPED = {"schedule": "interleaved", "chunks": 2}


@pytest.mark.parametrize(
    ("framework", "field", "said"),
    [
        ("megatron", "chunks", {"chunks": 2}),
        ("megatron", "chunks", {"schedule": "interleaved", "pipeline": 2}),
        ("megatron", "schedule", LOOPED),
        ("megatron", "schedule", {"schedule": "gpipe"}),
        ("megatron", "model", {"model": TransformerSize("bert", 64, 12, 8)}),
        ("megatron", "model", {"model": TransformerSize("opt", 64, 12, 8)}),
        ("megatron", "fused_attention", {"precision": "tf32"}),
        ("megatron", "sequence_parallel", {"model": MIXTRAL, "tensor": 2}),
        ("megatron", "tensor", {"model": replace(GPT, vocabulary=511), "tensor": 2}),
        ("megatron", "tensor", {"model": LLAMA, "tensor": 4}),
        ("megatron", "tensor", {"model": EXPERTS, "tensor": 2, "sequence_parallel": True}),
        ("megatron", "pipeline", {"pipeline": 5}),
        ("megatron", "pipeline", {**LOOPED, "pipeline": 3}),
        ("megatron", "layers_per_stage", {"pipeline": 2, "layers_per_stage": (6, 6)}),
        ("megatron", "layers_per_stage", {"pipeline": 2, "layers_per_stage": (14, 0)}),
        ("torchtitan", "model", {}),
        ("torchtitan", "model", {"model": replace(LLAMA3_8B, family="gpt")}),
        ("torchtitan", "zero", {**TITAN, "zero": 1}),
        ("torchtitan", "precision", {**TITAN, "precision": "fp16"}),
        ("torchtitan", "fused_attention", {**TITAN, "fused_attention": False}),
        ("torchtitan", "recompute", {**TITAN, "recompute": "selective"}),
        ("torchtitan", "recompute_layers", {**TITAN, **SOME}),
        ("torchtitan", "schedule", {**TITAN, "schedule": "gpipe"}),
        ("torchtitan", "pipeline", {**TITAN, "pipeline": 16}),
        ("torchtitan", "pipeline", {**TITAN, **LOOPED, "pipeline": 4, "global_batch": 9}),
        ("deepspeed", "tensor", {"tensor": 2}),
        ("deepspeed", "sequence_parallel", {"sequence_parallel": True}),
        ("deepspeed", "schedule", {"schedule": "gpipe"}),
        ("deepspeed", "layers_per_stage", {"pipeline": 2, "layers_per_stage": (7, 7)}),
        ("deepspeed", "recompute_layers", {"pipeline": 2, **SOME}),
        ("deepspeed", "zero", {"pipeline": 2, "zero": 2}),
        ("deepspeed", "zero", {"model": MIXTRAL, "zero": 3}),
        ("jax", "framework", {}),
    ],
)
def test_what_no_word_is_there_for_is_refused(
    framework: str, field: str, said: dict[str, Any]
) -> None:
    run = TrainingRun(**{"model": GPT, **BASE, **said})
    with refusal() as caught:
        launch_arguments(run, framework)
    assert caught.value.field == field
