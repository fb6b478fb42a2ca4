"""Write a hybrid plan as a folder that torch, or torchtitan, runs without this project.

python -m experiments.export plan=hybrid_plan.json to=pytorch
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agents.pipeline.published import looped, v_shaped
from envs.errors import InputError
from experiments.config.targets import build
from experiments.execution.split import Split, read_split
from experiments.run.artifacts import require_no_input, to_json, write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash, stamp
from models.artifacts import atomic_folder

SPLIT_FILE, ORDER_FILE, TRAIN_FILE, MODEL_FILE = "split.json", "order.csv", "train.py", "model.py"
TITAN_FILE, LAUNCH_FILE = "parallelism.toml", "run.sh"
_HERE = Path(__file__).parent
_PYTORCH = """\
#!/bin/sh
# {processes} processes of this machine: ranks {ranks}, pipelines side by side {replicas}.
# On several machines, torchrun takes --nnodes, --node-rank and --rdzv-endpoint as well.
cd "$(dirname "$0")" && exec torchrun --nproc-per-node {processes} train.py "${{1:-10}}"
"""
_TITAN = """\
# Tables for the config of a torchtitan run (job config in TOML), from plan {name}.
# Layers are named as the modules of the model: tok_embeddings, layers.0, ..., norm, output.
# torchrun --nproc-per-node {processes} -m torchtitan.train --job.config_file <your config>

[training]
local_batch_size = {batch}  # samples of one pipeline in a step: micro-batches of {samples}

[parallelism]
pipeline_parallel_degree = {ranks}
data_parallel_replicate_degree = {replicas}
data_parallel_shard_degree = 1
pipeline_parallel_schedule = "{schedule}"  # says which rank has which stage; the file says when
pipeline_parallel_schedule_csv = {csv}
pipeline_parallel_microbatch_size = {samples}
module_fqns_per_model_part = [
{parts}]

[activation_checkpoint]
mode = "{mode}"
"""


@dataclass(kw_only=True)
class ExportPlanConfig:
    """`conf/export_plan.yaml`; `layers` is an object by `_target_`."""

    plan: str  # a plan file of experiments.plan problem=pipeline
    # pytorch: a folder with a training script; torchtitan: tables for its config
    to: Literal["pytorch", "torchtitan"] = "pytorch"
    layers: Any
    output: str | None = None  # the folder; null: called after `to`, in this run's folder
    seed: int
    json: bool


def export_plan(config: ExportPlanConfig, run: Run) -> Result:
    """Write the folder.

    Raises:
        InputError: torch or torchtitan cannot run the plan.
    """
    split = read_split(config.plan)
    layers = build(config.layers, "layers")
    folder = run.folder / config.to if config.output is None else Path(config.output)
    if folder.exists() and not (folder / ORDER_FILE).is_file():
        raise InputError("exists and is no exported plan", file=folder)
    provenance = run.provenance.with_inputs(plan=file_hash(config.plan))
    write = _pytorch if config.to == "pytorch" else _torchtitan
    files = write(folder, split, layers, provenance)
    require_no_input([folder / name for name in files], [config.plan], "output")
    if folder.exists():
        write_files(folder, files)
    else:
        with atomic_folder(folder) as temporary:
            write_files(temporary, files)
    return Result(
        {
            "folder": str(folder),
            "files": sorted(path.name for path in folder.iterdir()),
            "processes": split.processes,
            "ranks": split.ranks,
            "replicas": split.replicas,
            "stages": [list(stage) for stage in split.layers],
            "rank": list(split.rank),
        },
        provenance,
        ("folder", "processes", "ranks", "replicas"),
    )


def split_files(split: Split, provenance: Provenance) -> dict[str, str]:
    """Texts of what `Pipeline` of train.py reads, by the files' names."""
    document = stamp(split.document(), provenance, kind="split")
    return {ORDER_FILE: split.csv, SPLIT_FILE: to_json(document)}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by the files' names."""
    for name, text in files.items():
        write_text(folder / name, text)


def _pytorch(_: Path, split: Split, layers: Any, provenance: Provenance) -> dict[str, str]:
    model = Path(inspect.getfile(type(layers))).read_text(encoding="utf-8")
    script = _PYTORCH.format(processes=split.processes, ranks=split.ranks, replicas=split.replicas)
    return {
        **split_files(split, provenance),
        TRAIN_FILE: (_HERE / TRAIN_FILE).read_text(encoding="utf-8"),
        MODEL_FILE: f"{model}\n\nMODEL = {layers!r}\n",
        LAUNCH_FILE: script,
    }


def _torchtitan(folder: Path, split: Split, layers: Any, _: Provenance) -> dict[str, str]:
    """Its `stage_ids_this_rank` knows two ways to lay stages on ranks, and one mode for all."""
    chunks, left = divmod(len(split.rank), split.ranks)
    if split.rank == looped(split.ranks, chunks) and not left:
        schedule = "Interleaved1F1B"
    elif split.rank == v_shaped(split.ranks):
        schedule = "ZBVZeroBubble"
    else:
        reason = f"torchtitan lays stages on ranks in a loop or a V, not as {list(split.rank)}"
        raise InputError(f"config key 'plan': {reason}")
    if len(set(split.recompute)) > 1:
        raise InputError("config key 'plan': torchtitan recomputes in all stages or in none")
    samples = layers.micro_batch // split.replicas or 1
    text = _TITAN.format(
        name=split.name,
        processes=split.processes,
        batch=split.micro_batches * samples,
        samples=samples,
        ranks=split.ranks,
        replicas=split.replicas,
        schedule=schedule,
        csv=json.dumps(str((folder / ORDER_FILE).resolve())),
        parts="".join(f"    {json.dumps(stage)},\n" for stage in split.layers),
        mode="full" if split.recompute[0] else "none",
    )
    return {ORDER_FILE: split.csv, TITAN_FILE: text}
