"""Run folders made by hand, as an app would have left them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_folder(
    folder: Path,
    result: Mapping[str, Any],
    *,
    seed: int = 0,
    config: str = "agent: heft\n",
    app: str = "evaluate",
) -> Path:
    """A finished run."""
    folder.mkdir(parents=True)
    provenance = {
        "command": f"python -m experiments.{app} seed={seed}", "seed": seed, "git_commit": "abc",
        "package_version": "0.1.0", "created": "2026-11-22T00:00:00+00:00",
        "inputs_sha256": {"graph": "0" * 64},
    }  # fmt: skip
    document = {"provenance": provenance, **result}
    (folder / "result.json").write_text(json.dumps(document))
    (folder / "config.yaml").write_text(f"{config}seed: {seed}\n")
    environment = {"python": "3.11", "packages": {"numpy": "2.0"}}
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def step_result(seconds: float, agent: str = "heft") -> dict[str, Any]:
    """What `experiments.evaluate` says of a plan; the bound is 0.1 s."""
    return {
        "agent": agent, "graph": "gpt2", "topology": "mixed", "communication": "single_port",
        "step_time_s": seconds, "lower_bound_s": 0.1, "peak_memory_bytes": 2e9, "seconds": 1.0,
    }  # fmt: skip


def metrics(scale: float = 1.0) -> str:
    """Three iterations of a training of a step."""
    rows = [(100, 0.5, 0.4), (200, 0.3, 0.3), (300, 0.2, 0.2)]
    head = "iteration,charts/global_step,charts/step_time_s_mean,charts/best_objective\n"
    return head + "".join(
        f"{number},{steps},{mean * scale},{best * scale}\n"
        for number, (steps, mean, best) in enumerate(rows)
    )
