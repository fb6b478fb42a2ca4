"""What Megatron-LM, torchtitan and DeepSpeed read in the launches of drawn runs.

It needs a package index, and minutes. Each package is installed in an environment of its own,
which sees the packages of this one: PyTorch is not installed again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from envs.errors import InputError
from envs.hybrid.launching import launch_arguments
from envs.hybrid.training_run import TrainingRun
from tests.envs.hybrid.training_runs import LLAMA3_8B, drawn, layers_of_stages

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(3600)]
RUNS = 2000  # drawn, of which a framework has words for some

# The wheel that has Megatron-LM's own arguments is one for Python 3.12.
MEGATRON = ("--only-binary", ":all:", "--python-version", "3.12", "megatron-core==0.19.2")
TRITON = "triton==3.9.0"
TORCHTITAN = (
    "torchtitan==0.3.0", "tyro==1.0.17", "spmd_types==0.2.3", "torchdata==0.11.0",
    "torch_checkpointing==0.1.1", "einops", "docstring-parser", "typeguard", "datasets", "dill",
    "multiprocess", "xxhash", "pyarrow", "pandas", TRITON,
)  # fmt: skip
DEEPSPEED = ("deepspeed==0.19.8", "hjson", "py-cpuinfo", "einops")

READ_BY_MEGATRON = """
import json, os, sys, typing
from unittest import mock
import typing_extensions
typing.override = typing_extensions.override  # of Python 3.12
from megatron.training import arguments
REST = ["--train-iters", "1", "--no-rope-fusion"]  # which Transformer Engine has, not here
def read(launch):
    variables = {**launch["environment"], "WORLD_SIZE": str(launch["processes"]), "RANK": "0"}
    told = [sys.argv[0], *launch["arguments"], *REST]
    hopper = mock.patch.object(arguments, "get_device_arch_version", lambda: 9)
    with mock.patch.dict(os.environ, variables), mock.patch.object(sys, "argv", told), hopper:
        args = arguments.parse_args()
        arguments.validate_args(args)
        config = arguments.core_transformer_config_from_args(args)
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        layout.validate_layer_layout(config.num_layers, None)
        rows = [layout.layout[rank][chunk]
                for chunk in range(layout.virtual_pipeline_model_parallel_size)
                for rank in range(layout.pipeline_model_parallel_size)]
    return {
        "data": args.data_parallel_size, "tensor": config.tensor_model_parallel_size,
        "pipeline": config.pipeline_model_parallel_size,
        "expert": config.expert_model_parallel_size,
        "chunks": config.virtual_pipeline_model_parallel_size or 1,
        "sequence_parallel": config.sequence_parallel,
        "micro_batch": args.micro_batch_size, "global_batch": args.global_batch_size,
        "recompute": config.recompute_granularity or "none",
        "recompute_layers": config.recompute_num_layers
        if config.recompute_method == "block" else None,
        "precision": "bf16" if config.bf16 else "fp16" if config.fp16 else "float32",
        "fused_attention": config.attention_backend.name == "flash",
        "zero": 0 if not args.use_distributed_optimizer else 1 if not args.use_megatron_fsdp
        else {"optim_grads": 2, "optim_grads_params": 3}[args.data_parallel_sharding_strategy],
        "layers_per_stage": [] if layout is None else [len(row) for row in rows],
        "sizes": [config.num_layers, config.hidden_size, config.ffn_hidden_size,
                  config.num_attention_heads, config.num_query_groups, config.kv_channels,
                  args.padded_vocab_size, args.seq_length, config.num_moe_experts or 1,
                  config.moe_router_topk if config.num_moe_experts else 1],
        "sparse": config.moe_layer_freq if config.num_moe_experts else [],
        "gated": config.gated_linear_unit,
    }
"""
READ_BY_TORCHTITAN = """
import json, sys
from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims
from torch.distributed.pipelining.schedules import get_schedule_class
def read(launch):
    config = ConfigManager().parse_args(launch["arguments"])
    model, training, said = config.model_spec.model, config.training, config.parallelism
    dims = ParallelDims(
        dp_replicate=said.data_parallel_replicate_degree, dp_shard=said.data_parallel_shard_degree,
        cp=1, tp=said.tensor_parallel_degree, pp=said.pipeline_parallel_degree, ep=1,
        world_size=launch["processes"],
    )
    batch = training.local_batch_size * dims.dp_replicate * dims.dp_shard
    piped = dims.pp > 1
    parts = said.module_fqns_per_model_part or [] if piped else []
    schedule = get_schedule_class(said.pipeline_parallel_schedule).__name__
    block = model.layers[0]
    return {
        "data": dims.dp_replicate * dims.dp_shard, "tensor": dims.tp, "pipeline": dims.pp,
        "chunks": len(parts) // dims.pp if piped else 1,
        "sequence_parallel": said.enable_sequence_parallel,
        "micro_batch": said.pipeline_parallel_microbatch_size if piped
        else training.local_batch_size,
        "steps": training.global_batch_size / batch,
        "global_batch": training.global_batch_size,
        "schedule": schedule if piped else "Schedule1F1B",
        "recompute": {"NoneType": "none", "FullAC.Config": "full"}[
            type(config.activation_checkpoint).__qualname__],
        "precision": {"bfloat16": "bf16"}.get(training.mixed_precision_param, "float32"),
        "shard": dims.dp_shard, "after": said.fsdp_reshard_after_forward,
        "layers_per_stage": [
            sum(name != "norm" for name in part) for part in parts],
        "order": [name for part in parts for name in part],
        "sizes": [len(model.layers), model.dim, block.feed_forward.w1.out_features,
                  block.attention.n_heads, block.attention.n_kv_heads or block.attention.n_heads,
                  block.attention.qkv_linear.head_dim, model.vocab_size, training.seq_len],
    }
"""
READ_BY_DEEPSPEED = """
import argparse, json, sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
import deepspeed
from deepspeed.runtime import config as module
def read(launch):
    for name, text in launch["files"].items():
        Path(name).write_text(text)
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(launch["arguments"])
    with mock.patch.object(module.dist, "get_rank", lambda: 0):
        units = SimpleNamespace(get_data_parallel_world_size=lambda: launch["data"])
        config = module.DeepSpeedConfig(args.deepspeed_config, mpu=units)
    return {
        "on": args.deepspeed, "global_batch": config.train_batch_size,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "steps": config.gradient_accumulation_steps, "zero": int(config.zero_optimization_stage),
        "precision": "bf16" if config.bfloat16_config.enabled
        else "fp16" if config.float16_config.enabled else "float32",
        "interval": config.pipeline["activation_checkpoint_interval"],
    }
"""
LOOP = """
print(json.dumps([read(launch) for launch in json.loads(sys.stdin.read())]), file=sys.stderr)
"""


def accepted(framework: str) -> list[TrainingRun]:
    """Drawn runs that the framework has words for."""
    found = []
    for seed in range(RUNS):
        run = drawn(seed)
        with suppress(InputError):
            launch_arguments(run, framework)
            found.append(run)
    return found[:150]


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """The Python of an environment that has these packages and those of this one."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    Path(site, "outer.pth").write_text(sysconfig.get_path("purelib"))
    pip(folder, "install", *packages)
    return folder / "bin/python"


def pip(folder: Path, *words: str) -> None:
    """Without dependencies: a package that asks for PyTorch does not get another one."""
    command = [str(folder / "bin/pip"), words[0], "--quiet", "--no-deps", *words[1:]]
    subprocess.run(command, check=True, capture_output=True, timeout=1800, env=variables())


def variables() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def read(
    python: Path, program: str, framework: str, runs: list[TrainingRun], folder: Path
) -> list[dict[str, Any]]:
    """What the framework reads in the launch of each run."""
    launches = [{**asdict(launch_arguments(run, framework)), "data": run.data} for run in runs]
    done = subprocess.run(
        [str(python), "-c", program + LOOP], input=json.dumps(launches), check=False, cwd=folder,
        capture_output=True, text=True, timeout=1800, env=variables(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer: list[dict[str, Any]] = json.loads(done.stderr.splitlines()[-1])
    return answer


def sizes(run: TrainingRun) -> list[int]:
    model = run.model
    return [
        model.layers, model.hidden, model.feed_forward, model.heads, model.groups, model.head_size,
        model.vocabulary, model.sequence,
    ]  # fmt: skip


def half(run: TrainingRun) -> str:
    return run.precision if run.precision in {"bf16", "fp16"} else "float32"


def test_megatron_reads_what_a_run_says(tmp_path: Path) -> None:
    python = environment(tmp_path / "python", (TRITON,))
    pip(tmp_path / "python", "download", "-d", str(tmp_path), *MEGATRON)
    (wheel,) = tmp_path.glob("megatron_core-*.whl")
    site = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "python")})
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), site], check=True)
    runs = accepted("megatron")
    for run, found in zip(
        runs, read(python, READ_BY_MEGATRON, "megatron", runs, tmp_path), strict=True
    ):
        model = run.model
        sparse = [int(block % model.every == 0) for block in range(1, model.layers + 1)]
        uneven = run.layers_per_stage if run.pipeline > 1 else ()
        assert found == {
            **{name: getattr(run, name) for name in found if hasattr(run, name)},
            "precision": half(run),
            "sequence_parallel": run.sequence_parallel and run.tensor > 1,
            "layers_per_stage": list(uneven),
            "sizes": [*sizes(run), model.experts, model.active],
            "sparse": sparse if model.experts > 1 else [],
            "gated": model.family != "gpt",
        }, run
    assert {run.zero for run in runs} == {0, 1, 2, 3}
    assert {run.model.family for run in runs} == {"gpt", "llama", "mixtral"}
    assert {run.recompute_layers for run in runs} == {None, 1, 3}


def test_torchtitan_reads_what_a_run_says(tmp_path: Path) -> None:
    python = environment(tmp_path / "python", TORCHTITAN)
    runs = accepted("torchtitan")
    schedules = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}
    for run, found in zip(
        runs, read(python, READ_BY_TORCHTITAN, "torchtitan", runs, tmp_path), strict=True
    ):
        blocks = [f"layers.{number}" for number in range(run.model.layers)]
        piped = run.pipeline > 1
        order = ["tok_embeddings", *blocks, "norm", "lm_head"] if piped else []
        assert found == {
            **{name: getattr(run, name) for name in found if hasattr(run, name)},
            "layers_per_stage": layers_of_stages(run) if piped else [],
            "schedule": schedules.get(run.schedule, "ScheduleInterleaved1F1B"),
            "precision": half(run),
            "steps": 1 if piped else run.micro_batches,
            "shard": run.data if run.zero else 1,
            "after": {2: "never", 3: "always"}.get(run.zero, "default"),
            "order": order,
            "sizes": sizes(run),
        }, run
    assert {run.zero for run in runs} == {0, 2, 3}
    assert any(run.model == LLAMA3_8B for run in runs)


def test_deepspeed_reads_what_a_run_says(tmp_path: Path) -> None:
    python = environment(tmp_path / "python", DEEPSPEED)
    runs = accepted("deepspeed")
    for run, found in zip(
        runs, read(python, READ_BY_DEEPSPEED, "deepspeed", runs, tmp_path), strict=True
    ):
        assert found == {
            **{name: getattr(run, name) for name in found if hasattr(run, name)},
            "on": True,
            "steps": run.micro_batches,
            "precision": half(run),
            "interval": int(run.recompute == "full" and run.pipeline > 1),
        }, run
    assert {run.zero for run in runs} == {0, 1, 2, 3}
