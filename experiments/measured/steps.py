"""Measured training steps, and what the simulator says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from envs.errors import InputError
from envs.graphs.transformer import TransformerSize
from envs.hardware.devices import DeviceSpec, device_spec
from envs.hybrid.links import Servers, usual_cards, usual_link
from envs.hybrid.training_run import Precision, Recompute, TrainingRun
from envs.hybrid.transformer_row import Constants, KernelCost, TransformerRow
from envs.network.allreduce import LINKS
from envs.text_table import RowChecks, read_table
from experiments.measured.models import NO_OTHERS, family_of
from experiments.measured.tables import known_of, numbers_or, texts_of, word_of, words_of

REQUIRED = (
    "model", "hidden", "layers", "heads", "sequence", "gpus", "gpu_types", "gpus_per_node",
    "global_batch", "micro_batch", "tensor_parallel", "data_parallel", "pipeline_parallel",
    "step_s",
)  # fmt: skip
JOINED = "|"  # one value a stage
VOCABULARY = 51_200  # where a table names none
# A table that names no precision and no recomputation is of Megatron-LM: half precision, float32
# sums, every block computed again.
_PRECISIONS: dict[str, Precision] = {
    "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16",
    "fp32": "fp32", "float32": "fp32", "tf32": "tf32", "float32 (tf32 products)": "tf32",
}  # fmt: skip
_RECOMPUTE: dict[str, Recompute] = {
    "none": "none", "full": "full", "selective": "selective"
}  # fmt: skip
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_ZERO: dict[str, Literal[0, 1, 2, 3]] = {"0": 0, "1": 1, "2": 2, "3": 3}


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """A row of a table.

    Attributes:
        place: where it stands in the file.
        seconds: measured.
        peak_bytes: of the fullest device, as measured; None: it was not.
        row: the run; None: it cannot be priced, for `reason`.
    """

    place: str
    model: str
    device: str
    seconds: float
    peak_bytes: float | None
    row: TransformerRow | None
    reason: str = ""


def read_steps(
    path: str,
    cost: KernelCost,
    constants: Constants = Constants(),
    meant: Mapping[str, str] = NO_OTHERS,
) -> list[MeasuredStep]:
    """The rows of a table of training steps; `meant`: devices by the table's own names.

    Raises:
        InputError: naming row and column: a missing column, an unknown GPU, a number that is none,
            a micro-batch that does not divide the batch of a replica.
    """
    table = read_table(path, REQUIRED)
    checks = RowChecks(table)
    numbers = {
        name: checks.whole(name, 1)
        for name in (
            "hidden", "layers", "heads", "sequence", "gpus", "gpus_per_node", "global_batch",
            "micro_batch", "tensor_parallel", "pipeline_parallel",
        )
    }  # fmt: skip
    seconds = checks.numbers("step_s")
    checks.reject(seconds == 0, "step_s", "is zero")
    models = checks.text("model").to_list()
    given = checks.text("gpu_types").to_list()
    known = known_of(table, "gpu_types", given, lambda text: _kinds(text, meant))
    kinds = [known.get(text, []) for text in given]
    per_stage = {
        name: _joined(checks, name, needed=name == "data_parallel")
        for name in ("data_parallel", "layers_per_stage")
    }
    vocabulary = numbers_or(checks, "vocabulary", VOCABULARY)
    peak = numbers_or(checks, "peak_bytes", 0.0)
    precision: list[Precision] = words_of(table, "precision", word_of(_PRECISIONS), "fp16")
    recompute: list[Recompute] = words_of(table, "recompute", word_of(_RECOMPUTE), "full")
    fused = words_of(table, "fused_attention", word_of(_FLAGS), False)
    shared = words_of(table, "sequence_parallel", word_of(_FLAGS), False)
    zero: list[Literal[0, 1, 2, 3]] = words_of(table, "zero", word_of(_ZERO), 0)
    placed = texts_of(table, "stage_devices")
    replicas = np.array([row[0] if row else 1 for row in per_stage["data_parallel"]])
    one = replicas * numbers["micro_batch"]
    fault = "does not divide the batch of a replica"
    checks.reject(numbers["global_batch"] % np.maximum(one, 1) != 0, "micro_batch", fault)
    checks.finish(strict=True)
    found = []
    for number in range(len(table)):
        own = {name: int(column[number]) for name, column in numbers.items()}
        step = MeasuredStep(
            table.place(number), models[number], JOINED.join(spec.name for spec in kinds[number]),
            float(seconds[number]), float(peak[number]) or None, None,
        )  # fmt: skip
        degrees = per_stage["data_parallel"][number]
        try:
            if len(set(degrees)) > 1:
                raise InputError(f"replicas {degrees} of stages differ", field="data_parallel")
            stages = _stage_devices(kinds[number], placed[number], own["pipeline_parallel"])
            run = TrainingRun(
                TransformerSize(
                    family_of(models[number]), own["hidden"], own["layers"], own["heads"],
                    int(vocabulary[number]), own["sequence"], name=models[number],
                ),
                tensor=own["tensor_parallel"],
                pipeline=own["pipeline_parallel"],
                data=degrees[0],
                micro_batch=own["micro_batch"],
                global_batch=own["global_batch"],
                recompute=recompute[number],
                precision=precision[number],
                fused_attention=fused[number],
                sequence_parallel=shared[number],
                zero=zero[number],
                layers_per_stage=tuple(per_stage["layers_per_stage"][number]),
            )  # fmt: skip
            if run.devices != own["gpus"]:
                reason = f"{own['gpus']} are not {run.tensor} x {run.pipeline} x {run.data}"
                raise InputError(reason, field="gpus")
            link = LINKS[usual_link(stages[0])]
            servers = Servers(stages[0], own["gpus_per_node"], link, *usual_cards(stages[0]))
            row = TransformerRow(
                run, servers, cost,
                fused=run.precision in {"fp16", "bf16"},
                constants=constants,
                stage_devices=stages,
            )  # fmt: skip
            for spec in row.specs:  # what does not divide, or has no such rate, is found here
                row.execution(spec)
        except InputError as error:
            found.append(replace(step, reason=str(error)))
        else:
            found.append(replace(step, row=row))
    return found


def with_constants(steps: Sequence[MeasuredStep], constants: Constants) -> list[MeasuredStep]:
    """The same under other constants."""
    return [
        step if step.row is None else replace(step, row=replace(step.row, constants=constants))
        for step in steps
    ]


def _stage_devices(kinds: Sequence[DeviceSpec], placed: str, stages: int) -> tuple[DeviceSpec, ...]:
    if len({spec.name for spec in kinds}) == 1:
        return (kinds[0],) * stages
    found = _kinds(placed, NO_OTHERS) if placed else []
    if len(found) != stages:
        reason = f"{len(kinds)} kinds of devices, and not which stage is on which"
        raise InputError(reason, field="stage_devices")
    return tuple(found)


def _kinds(text: str, meant: Mapping[str, str]) -> list[DeviceSpec]:
    names = [name.strip() for name in text.split(JOINED)]
    return [device_spec(meant.get(name, name)) for name in names]


def _joined(checks: RowChecks, field: str, *, needed: bool) -> list[list[int]]:
    texts = texts_of(checks.table, field)
    wrong = np.zeros(len(texts), dtype=np.bool_)
    found = []
    for number, text in enumerate(texts):
        parts = [part.strip() for part in text.split(JOINED)] if text else []
        wrong[number] = not all(part.isdigit() and int(part) for part in parts) or (
            needed and not parts
        )
        found.append([] if wrong[number] else [int(part) for part in parts])
    checks.reject(wrong, field, f"is no whole numbers from 1, joined by {JOINED}")
    return found
