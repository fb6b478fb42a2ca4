"""The launch of a training run by Megatron-LM, torchtitan or DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from envs.errors import InputError, refused_in, require_one_of
from envs.graphs.transformer import TransformerSize
from envs.hybrid.training_run import TrainingRun

CONFIG_FILE = "ds_config.json"
FLAVORS = {  # of torchtitan's registry, but for llama3_405b in float8, which no run has
    "llama3_debugmodel": TransformerSize("llama", 256, 6, 16, 2048),
    "llama3_8b": TransformerSize("llama", 4096, 32, 32, 128_256, feed_forward=14_336, groups=8),
    "llama3_70b": TransformerSize("llama", 8192, 80, 64, 128_256, feed_forward=28_672, groups=8),
}


@dataclass(frozen=True)
class Launch:
    """What starts a run; data, steps and the learning rate are the user's to add.

    Args:
        processes: one a device, which the launcher of processes starts.
        arguments: of the framework's program.
        environment: variables of every process.
        files: texts by their names, in the working folder.
        by_program: by field of the run, what the program has to do itself, as no option says it.
    """

    processes: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    by_program: Mapping[str, Any] = field(default_factory=dict)


def launch_arguments(run: TrainingRun, framework: str) -> Launch:
    """The launch of a run by a framework, one of `FRAMEWORKS`.

    megatron: options of `pretrain_gpt.py` (megatron-core 0.14 or newer, with Transformer Engine).
    torchtitan: command line of `torchtitan.train` (0.3).
    deepspeed: its configuration and the arguments that name it to a program.

    Raises:
        InputError: the framework has no word for what `field` of the run asks for.
    """
    require_one_of(framework, FRAMEWORKS, field="framework")
    if run.recompute_layers == 0:
        run = replace(run, recompute="none", recompute_layers=None)
    with refused_in(framework):
        looped = run.schedule == "interleaved"
        _refuse(
            ("chunks", looped != (run.chunks > 1), f"{run.chunks} in the schedule {run.schedule}"),
            ("schedule", looped and run.pipeline == 1, "interleaved needs two stages"),
        )
        return FRAMEWORKS[framework](run)


def _megatron(run: TrainingRun) -> Launch:
    model, stages = run.model, _stages(run)
    gated, experts, grouped = model.family != "gpt", model.experts > 1, model.groups < model.heads
    full, uneven = run.recompute == "full", run.layers_per_stage != () and run.pipeline > 1
    single, divided = run.precision in {"fp32", "tf32"}, experts and run.tensor > 1
    count, letters = run.micro_batches, {"embedding": "E", "head": "L"}
    layout = "|".join("".join(letters.get(each, "t") for each in stage) for stage in stages)
    divided_by = (False, False, "optim_grads", "optim_grads_params")
    sparse = [int((block + 1) % model.every == 0) for block in range(model.layers)]
    left_over = run.chunks > 1 and count % run.pipeline > 0
    decoder = model.family in {"gpt", "llama", "mixtral"}
    _refuse(
        ("model", not decoder, f"pretrain_gpt.py trains no {model.family}"),
        ("schedule", run.schedule == "gpipe", "1f1b or interleaved"),
        ("pipeline", left_over, f"{run.pipeline} does not divide {count} micro-batches"),
        ("fused_attention", run.fused_attention and single, "in half precision only"),
        ("tensor", divided and not gated, "it does not divide experts that have biases"),
        ("sequence_parallel", divided and not run.sequence_parallel, "divided experts need it"),
    )
    _require_shares(run)
    options = {
        "tensor-model-parallel-size": run.tensor,
        "pipeline-model-parallel-size": run.pipeline,
        "num-virtual-stages-per-pipeline-rank": run.chunks > 1 and not uneven and run.chunks,
        "pipeline-model-parallel-layout": uneven and layout,
        "expert-model-parallel-size": run.expert,
        "sequence-parallel": run.sequence_parallel,
        "micro-batch-size": run.micro_batch,
        "global-batch-size": run.global_batch,
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.feed_forward,
        "num-attention-heads": model.heads,
        "group-query-attention": grouped,
        "num-query-groups": grouped and model.groups,
        "kv-channels": model.head_size,
        "seq-length": model.sequence,
        "max-position-embeddings": model.sequence,
        "padded-vocab-size": model.vocabulary,
        "swiglu": gated,
        "normalization": gated and "RMSNorm",
        "position-embedding-type": gated and "rope",
        "untie-embeddings-and-output-weights": gated,
        "disable-bias-linear": gated,
        "attention-dropout": gated and "0",
        "hidden-dropout": gated and "0",
        "num-experts": experts and model.experts,
        "moe-router-topk": experts and model.active,
        "moe-router-pre-softmax": experts and model.active == 1,  # which it asks for
        "moe-layer-freq": experts and str(sparse).replace(" ", ""),
        "moe-token-dispatcher-type": experts and "alltoall",
        "attention-backend": "flash" if run.fused_attention else "unfused",
        "recompute-granularity": run.recompute != "none" and run.recompute,
        "recompute-method": full and ("block" if run.recompute_layers else "uniform"),
        "recompute-num-layers": full and (run.recompute_layers or 1),
        "bf16": run.precision == "bf16",
        "fp16": run.precision == "fp16",
        "use-distributed-optimizer": run.zero > 0,
        "use-megatron-fsdp": run.zero > 1,
        "data-parallel-sharding-strategy": divided_by[run.zero],
        "ckpt-format": run.zero > 1 and "fsdp_dtensor",  # the only one of its FSDP
    }
    environment = _products(run)
    if run.tensor > 1 and run.zero < 2:  # asked for before Blackwell, and refused by its FSDP
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return Launch(run.devices, _command_line(options), environment)


def _torchtitan(run: TrainingRun) -> Launch:
    model, count, piped, stages = run.model, run.micro_batches, run.pipeline > 1, _stages(run)
    sizes = replace(model, sequence=2048, name="")
    flavor = next((name for name, flavor in FLAVORS.items() if flavor == sizes), None)
    rounds, gpipe = max(1, count // run.pipeline), run.schedule == "gpipe"
    few = count < run.pipeline if run.schedule == "1f1b" else run.chunks > 1 and count % rounds > 0
    _refuse(
        ("model", not flavor, f"no option sets sizes but those of {', '.join(FLAVORS)}"),
        ("zero", run.zero == 1, "0, 2 or 3: it does not divide optimizer state alone"),
        ("precision", run.precision == "fp16", "bfloat16 or float32"),
        ("fused_attention", not run.fused_attention, "attention is always one operator"),
        # Its selective mode keeps attention and every second product, and computes all else again.
        ("recompute", run.recompute == "selective", "none or full: attention is not set apart"),
        ("recompute_layers", run.recompute_layers is not None, "all blocks of a model alike"),
        ("pipeline", few, f"{count} micro-batches do not fill {run.pipeline} stages"),
        ("schedule", gpipe and not piped, "gpipe needs two stages"),
    )
    _require_shares(run)
    schedules = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
    names = {"embedding": "tok_embeddings", "head": "norm,lm_head"}
    parts = [",".join(names.get(each, f"layers.{each}") for each in stage) for stage in stages]
    options = {
        "module": "llama3",
        "config": flavor,
        "training.local_batch_size": run.micro_batch * (count if piped else 1),
        "training.global_batch_size": run.global_batch,
        "training.seq_len": model.sequence,
        "training.mixed_precision_param": "bfloat16" if run.precision == "bf16" else "float32",
        "training.disable_cuda_graphs": piped,  # which know no pipeline
        "parallelism.tensor_parallel_degree": run.tensor,
        "parallelism.enable_sequence_parallel": run.sequence_parallel,
        "parallelism.no_enable_sequence_parallel": not run.sequence_parallel,
        "parallelism.data_parallel_replicate_degree": 1 if run.zero else run.data,
        "parallelism.data_parallel_shard_degree": run.data if run.zero else 1,
        "parallelism.fsdp_reshard_after_forward": (False, False, "never", "always")[run.zero],
        "parallelism.pipeline_parallel_degree": run.pipeline,
        "parallelism.pipeline_parallel_schedule": piped and schedules[run.schedule],
        "parallelism.pipeline_parallel_microbatch_size": piped and run.micro_batch,
        "parallelism.module_fqns_per_model_part": piped and parts,
    }
    recompute = f"activation-checkpoint:{run.recompute}"  # a subcommand, which comes last
    return Launch(run.devices, (*_command_line(options), recompute), _products(run))


def _deepspeed(run: TrainingRun) -> Launch:
    model, experts, alone = run.model, run.model.experts > 1, "no block is divided"
    _refuse(
        ("tensor", run.tensor > 1, alone),
        ("sequence_parallel", run.sequence_parallel, alone),
        ("schedule", run.schedule != "1f1b", "1f1b only"),
        ("layers_per_stage", run.layers_per_stage != (), "PipelineModule divides layers itself"),
        (
            "recompute_layers",
            run.recompute_layers is not None and run.pipeline > 1,
            "PipelineModule computes all layers again, or none",
        ),
        ("zero", run.zero >= 2 and run.pipeline > 1, "at most 1 with a pipeline"),
        ("zero", run.zero == 3 and experts, "at most 2 with experts"),
    )
    _stages(run)
    config: dict[str, Any] = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.micro_batches,
        "zero_optimization": {"stage": run.zero},
    }
    if run.precision in {"fp16", "bf16"}:
        config[run.precision] = {"enabled": True}
    own: dict[str, Any] = {"model": asdict(model), "fused_attention": run.fused_attention}
    if run.pipeline > 1:  # `block` is found in the name of the class of a block
        own["pipeline"] = {"num_stages": run.pipeline, "partition_method": "type:block"}
    if experts:
        own["expert"] = {"num_experts": model.experts, "k": model.active, "ep_size": run.expert}
    if run.recompute == "full" and run.pipeline > 1:
        config["pipeline"] = {"activation_checkpoint_interval": 1}
    elif run.recompute != "none":
        own["recompute"] = run.recompute
        if run.recompute_layers is not None:
            own["recompute_layers"] = run.recompute_layers
    arguments, text = (
        ("--deepspeed", "--deepspeed_config", CONFIG_FILE),
        json.dumps(config, indent=2),
    )
    return Launch(run.devices, arguments, _products(run), {CONFIG_FILE: text}, own)


FRAMEWORKS = {"megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed}


def _refuse(*cases: tuple[str, bool, str]) -> None:
    """Of (field, whether it is wrong, why) the first that is."""
    for name, wrong, reason in cases:
        if wrong:
            raise InputError(reason, field=name)


def _stages(run: TrainingRun) -> list[list[str]]:
    """The layers of every stage in the order of the model: embedding, blocks by number, head."""
    sizes = run.stage_layers
    layers = iter(["embedding", *map(str, range(sum(sizes) - 2)), "head"])
    return [[next(layers) for _ in range(size)] for size in sizes]


def _require_shares(run: TrainingRun) -> None:
    """What tensor parallel devices share has equal shares."""
    for name in ("groups", "feed_forward", "vocabulary", "sequence"):
        size = getattr(run.model, name)
        uneven = size % run.tensor > 0 and (name != "sequence" or run.sequence_parallel)
        _refuse(("tensor", uneven, f"{run.tensor} does not divide {name} = {size}"))


def _products(run: TrainingRun) -> dict[str, str]:
    """The variables that have products of float32 run without TF32, or with it in PyTorch."""
    variables = {
        "fp32": {"NVIDIA_TF32_OVERRIDE": "0"},
        "tf32": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    }
    return variables.get(run.precision, {})


def _command_line(options: Mapping[str, Any]) -> tuple[str, ...]:
    """False is left out, True has no value, and a list several."""
    words = list[str]()
    for name, value in options.items():
        if value is not False:
            values = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name}", *map(str, values)]
    return tuple(words)
