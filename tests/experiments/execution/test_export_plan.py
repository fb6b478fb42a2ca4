"""`experiments.export plan=`: folders that torch and torchtitan read without this project."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from plans_of_layers import NAMES, PLANS, write

from envs.files import read_json
from experiments.command_line import run_job
from experiments.execution import exporting


def export(folder: Path, name: str, to: str) -> int:
    words = [f"plan={write(folder, name)}", f"to={to}", "layers.blocks=4", "layers.width=8"]
    words += [f"output={folder / to}", f"hydra.run.dir={folder / 'run'}"]
    return run_job("export_plan", words)


def test_the_program_needs_torch_alone_and_makes_the_layers_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export(tmp_path, "by_hand", "pytorch") == 0
    folder = tmp_path / "pytorch"
    for name in ("train.py", "model.py"):
        tree = ast.parse((folder / name).read_text())
        named = [x.module for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) and x.module]
        named += [a.name for x in ast.walk(tree) if isinstance(x, ast.Import) for a in x.names]
        known = {*sys.stdlib_module_names, "model", "torch"}
        assert {x.partition(".")[0] for x in named} <= known
    monkeypatch.syspath_prepend(folder)
    layers = importlib.import_module("model").MODEL.layers()
    split = read_json(folder / "split.json")
    assert [name for stage in split["stages"] for name in stage["layers"]] == list(layers) == NAMES
    assert [stage["rank"] for stage in split["stages"]] == [0, 1, 0]
    assert layers["layers.0"].up.weight.shape == (32, 8)
    rows = (folder / "order.csv").read_text().splitlines()
    assert [row.split(",") for row in rows] == PLANS["by_hand"]["orders"]
    subprocess.run(["sh", "-n", str(folder / "run.sh")], check=True)
    assert export(tmp_path, "gpipe", "pytorch") == 2  # the run's folder is taken


@pytest.mark.parametrize(
    ("name", "schedule"), [("interleaved", "Interleaved1F1B"), ("zb_v", "ZBVZeroBubble")]
)
def test_torchtitan_is_told_stages_and_ranks(tmp_path: Path, name: str, schedule: str) -> None:
    assert export(tmp_path, name, "torchtitan") == 0
    settings = tomllib.loads((tmp_path / "torchtitan/parallelism.toml").read_text())
    parallelism = settings["parallelism"]
    assert parallelism["pipeline_parallel_schedule"] == schedule
    assert parallelism["pipeline_parallel_degree"] == 2
    assert [x for part in parallelism["module_fqns_per_model_part"] for x in part] == NAMES
    rows = Path(parallelism["pipeline_parallel_schedule_csv"]).read_text().splitlines()
    assert [row.split(",") for row in rows] == PLANS[name]["orders"]
    samples = parallelism["pipeline_parallel_microbatch_size"]
    assert settings["training"]["local_batch_size"] == 4 * samples


def test_ranks_that_torchtitan_has_no_name_for_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "by_hand", "torchtitan") == 2
    assert "in a loop or a V, not as [0, 1, 0]" in capsys.readouterr().err
    assert not (tmp_path / "torchtitan").exists()


def test_a_killed_export_leaves_nothing_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = exporting.write_text

    def killed(path: Path, text: str) -> None:
        written(path, text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "write_text", killed)
        assert export(tmp_path, "by_hand", "pytorch") == 130
    assert not (tmp_path / "pytorch").exists()
    assert export(tmp_path, "by_hand", "pytorch") == 0


def test_a_plan_is_not_exported_over_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Path(write(tmp_path, "by_hand")).rename(tmp_path / "order.csv")
    before = plan.read_bytes()
    words = [f"plan={plan}", f"output={tmp_path}", f"hydra.run.dir={tmp_path / 'run'}"]
    assert run_job("export_plan", words) == 2
    assert "order.csv: config key 'output'" in capsys.readouterr().err
    assert plan.read_bytes() == before
