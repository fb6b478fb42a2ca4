"""`simulate`, from Python and from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from envs.files import read_json
from experiments.command_line import run_job
from tests.envs.hybrid.kernel_costs import Peaks
from tests.refusal import refusal

SIZES = {"hidden": 256, "layers": 8, "heads": 8, "vocabulary": 1024, "sequence": 256}
SMALL = [f"graph.{key}={value}" for key, value in SIZES.items()]
WAYS: Mapping[str, Mapping[str, Any]] = {
    "one device": {"micro_batch": 2, "global_batch": 8},
    "all degrees": {"tensor": 2, "pipeline": 2, "data": 2, "global_batch": 16,
                    "recompute": "full", "recompute_layers": 1},
    "deep": {"pipeline": 8, "global_batch": 4},
    "a late first stage": {"pipeline": 4, "data": 4, "global_batch": 16, "zero": 1},
    "interleaved": {"pipeline": 2, "chunks": 2, "schedule": "interleaved", "global_batch": 4},
    "parameters collected": {"data": 8, "zero": 3, "recompute": "full", "card_bandwidth": "1MB/s",
                             "per_server": 4},
    "slow links": {"pipeline": 2, "data": 4, "per_server": 4, "card_bandwidth": "10MB/s",
                   "global_batch": 16, "overlap": True},
}  # fmt: skip


@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
def test_parts_sum_to_the_step(run: Mapping[str, Any]) -> None:
    found = mw.simulate("gpt", sizes=SIZES, cost=Peaks(), **run)
    parts = [
        found.compute_s, found.tensor_s, found.pipeline_s, found.bubble_s, found.data_s,
        found.optimizer_s,
    ]  # fmt: skip
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(found.step_time_s)
    assert found.compute_s > 0
    devices = run.get("tensor", 1) * run.get("pipeline", 1) * run.get("data", 1)
    assert (found.tensor_s > 1e-9) == ("tensor" in run)
    assert (found.bubble_s > 1e-9) == ("pipeline" in run)
    assert found.row.run.devices == devices
    assert found.fits


def test_what_does_not_fit() -> None:
    found = mw.simulate("gpt", sizes={**SIZES, "hidden": 8192}, cost=Peaks(), device="T4",
                        precision="fp16")  # fmt: skip
    assert not found.fits
    assert found.peak_memory_bytes > 16 * 2**30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"sizes": {"batch": 4}}, "graph.batch"),
        ({"sizes": {"colour": 4}}, "colour"),
        ({"tensr": 2}, "tensr"),
        ({"tensor": 5}, "tensor"),
        ({"recompute_layers": 2}, "recompute_layers"),
        ({"device": "Z9"}, "Z9"),
        ({"link": "string"}, "link"),
        ({"precision": "fp16", "device": "P4"}, "precision"),
    ],
)
def test_what_cannot_be_simulated_is_refused(words: dict[str, Any], said: str) -> None:
    with refusal(said):
        mw.simulate("gpt", **{"cost": Peaks(), **words})


@pytest.mark.slow
def test_the_command(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "pipeline=2", "tensor=2", "global_batch=4"]
    looped = ["schedule=interleaved", "chunks=2"]
    assert run_job("simulate", [*words, *looped, "launch=megatron", "hydra.run.dir=run"]) == 0
    found = read_json("run/result.json")
    assert "--tensor-model-parallel-size" in found["launch"]["arguments"]
    assert [stage["layers"] for stage in found["stages"]] == [5, 5]
    peak = max(sum(stage["memory_bytes"].values()) for stage in found["stages"])
    assert found["peak_memory_bytes"] == peak
    assert Path(found["picture"]).is_file()
    for wrong in ("tensr=2", "devices=16", "graph.batch=4", "graph=gpt2_xxl"):
        assert run_job("simulate", [*words, wrong]) == 2
        assert wrong.partition("=")[0] in capsys.readouterr().err.splitlines()[-1]


def test_the_best_of_those_listed_is_chosen(work: Path) -> None:
    words = ["devices=8", "global_batch=8", "choose=[tensor,pipeline,micro_batch]", "json=true"]
    assert run_job("simulate", [*SMALL, *words, "hydra.run.dir=run"]) == 0
    found = read_json("run/result.json")
    listed = Path("run/table.md").read_text().partition("Memory of a device")[0]
    rows = [line.split("|") for line in listed.splitlines() if "False" in line]
    seconds = [float(row[-3]) for row in rows]
    assert seconds == sorted(seconds)
    assert found["step_time_s"] == pytest.approx(seconds[0], rel=1e-3)
    assert found["devices"] == 8
    assert found["fits"]
