"""Tables of measured training steps: what is refused, what is not priced, what they are taken for.

With published data: how far predictions are from what was measured.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agents.hybrid.uniform import step_of
from envs.hybrid.transformer_row import Constants
from experiments.command_line import main_of
from experiments.measured.steps import MeasuredStep, read_steps, with_constants
from tests.envs.hybrid.kernel_costs import Even
from tests.experiments.commands import ran
from tests.experiments.refusals import Refuses
from tests.experiments.steps_table import write_steps
from tests.refusal import refusal

study = main_of("study")


def read(folder: Path, *rows: dict[str, object]) -> list[MeasuredStep]:
    return read_steps(write_steps(folder / "steps.csv", *rows), Even())


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("gpu_types", "Z900", "Z900"),
        ("gpu_types", "", "gpu_types"),
        ("step_s", 0, "is zero"),
        ("step_s", -1, "-1"),
        ("step_s", "soon", "soon"),
        ("hidden", 0, "0"),
        ("layers", 2.5, "2.5"),
        ("micro_batch", 3, "does not divide"),
        ("data_parallel", "8|x", "whole numbers"),
        ("data_parallel", "", "whole numbers"),
        ("layers_per_stage", "3|0", "whole numbers"),
        ("precision", "int8", "is not one of"),
        ("recompute", "some", "is not one of"),
        ("peak_bytes", -1, "-1"),
    ],
)
def test_a_bad_cell_is_refused_by_row_and_column(
    tmp_path: Path, field: str, value: object, words: str
) -> None:
    with refusal(words) as caught:
        read(tmp_path, {}, {field: value})
    error = caught.value
    assert (error.file, error.field) == (str(tmp_path / "steps.csv"), field)
    assert "3" in str(error.record)  # the line of the second row


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    with refusal("step_s"):
        read_steps(write_steps(tmp_path / "steps.csv", {}, without="step_s"), Even())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"data_parallel": "2|1"}, r"\[2, 1\]"),
        ({"model": "ResNet"}, "no known family"),
        ({"gpus": 8}, "8 are not 1 x 2 x 2"),
        ({"layers": 5}, "do not divide"),
        ({"tensor_parallel": 3, "gpus": 12}, "does not divide 8 heads"),
        ({"gpu_types": "P4"}, "P4 has no float16 rate"),
        ({"gpu_types": "A100-80GB|V100-32GB"}, "which stage is on which"),
        ({"gpu_types": "A100-80GB|V100-32GB", "stage_devices": "A100-80GB"}, "which stage"),
        ({"gpu_types": "A100-80GB|P4", "stage_devices": "A100-80GB|Z9"}, "Z9"),
    ],
)
def test_what_cannot_be_priced_says_why(tmp_path: Path, row: dict[str, object], words: str) -> None:
    good, bad = read(tmp_path, {}, row)
    assert good.row is not None
    assert bad.row is None
    assert re.search(words, bad.reason)


def test_what_a_table_leaves_out(tmp_path: Path) -> None:
    plain, other = read(
        tmp_path, {},
        {"precision": "float32", "recompute": "none", "layers_per_stage": "3|3", "peak_bytes": 5e9},
    )  # fmt: skip
    assert plain.row is not None
    assert other.row is not None
    run = plain.row.run
    assert (run.precision, run.recompute, plain.row.fused) == ("fp16", "full", True)
    run = other.row.run
    assert (run.precision, run.recompute, other.row.fused) == ("fp32", "none", False)
    assert (run.layers_per_stage, other.peak_bytes, plain.peak_bytes) == ((3, 3), 5e9, None)


def test_two_kinds_of_devices(tmp_path: Path) -> None:
    kinds = {"gpu_types": "A100-80GB|V100-32GB", "stage_devices": "A100-80GB|V100-32GB"}
    (step,) = read(tmp_path, kinds)
    assert step.row is not None
    assert [spec.name for spec in step.row.specs] == ["A100-80GB"] * 3 + ["V100-32GB"] * 3
    assert step_of(step.row)[0] > 0


def test_constants_are_those_of_every_row(tmp_path: Path) -> None:
    steps = read(tmp_path, {}, {"gpus": 5})
    slow = with_constants(steps, Constants(compute=2.0, framework_bytes=0.0))
    assert slow[1].row is None
    assert steps[0].row is not None
    assert slow[0].row is not None
    before, after = step_of(steps[0].row), step_of(slow[0].row)
    assert after[0] == pytest.approx(2.0 * before[0], rel=1e-3)  # kernels of a second
    assert before[1] - after[1] == pytest.approx(Constants().framework_bytes)


def test_a_study_of_steps(work: Path, refuses: Refuses) -> None:
    words = ["study=measured", "measured.kind=steps", "measured.path=steps.csv"]
    write_steps(Path("steps.csv"), {}, {"gpus": 5}, {"peak_bytes": 5e9})
    found = ran(study, *words)
    assert (found["rows"], found["priced"], len(found["not_priced"])) == (3, 2, 1)
    write_steps(Path("steps.csv"), {"step_s": 0})
    refuses(study, words, "steps.csv", "step_s")


@pytest.mark.parametrize(
    ("kind", "words", "time", "memory"),
    [
        ("steps", [], 9.0, 6.0),
        ("models", [], 8.0, None),
        ("layers", ["measured.tensor_parallel=1"], 12.5, None),
    ],
)
def test_predictions_are_near_what_was_measured(
    work: Path, data: Path, kind: str, words: list[str], time: float, memory: float | None
) -> None:
    found = ran(study, "study=measured", f"measured.kind={kind}", *words)
    assert found["mean_absolute_percentage_error"] <= time
    assert found["priced"] == found["rows"] > 40
    if memory is not None:
        assert found["memory_mean_absolute_percentage_error"] <= memory
