"""A table of training steps, written."""

from __future__ import annotations

from pathlib import Path

STEP = {
    "model": "GPT", "hidden": 64, "layers": 4, "heads": 8, "sequence": 32, "vocabulary": 512,
    "gpus": 4, "gpu_types": "A100-80GB", "gpus_per_node": 8, "global_batch": 8, "micro_batch": 1,
    "tensor_parallel": 1, "data_parallel": 2, "pipeline_parallel": 2, "layers_per_stage": "",
    "stage_devices": "", "precision": "", "recompute": "", "step_s": 1.0, "peak_bytes": "",
}  # fmt: skip


def write_steps(path: Path, *rows: dict[str, object], without: str = "") -> str:
    """Rows that differ from `STEP` as told."""
    names = [name for name in STEP if name != without]
    lines = [",".join(str({**STEP, **row}[name]) for name in names) for row in rows]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return str(path)
