"""Constants found again from steps that were made with them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agents.hybrid.uniform import step_of
from envs.hybrid.transformer_row import Constants
from experiments.measured.calibrating import TIMES, calibrate, left_out
from experiments.measured.pricing import LEARNED, cost_of
from experiments.measured.steps import MeasuredStep, read_steps, with_constants
from experiments.run.training_constants import read_constants
from tests.envs.hybrid.kernel_costs import Peaks
from tests.experiments.commands import ran
from tests.experiments.refusals import Refuses
from tests.experiments.steps_table import STEP, write_steps
from tests.refusal import refusal

TRUE = Constants(compute=1.2, collective=1.5, framework_bytes=6e9)
LARGE = {"hidden": 1024, "heads": 16, "sequence": 1024, "layers": 8}


def rows() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for tensor, data, pipeline in (
        (1, 1, 1),
        (2, 1, 1),
        (8, 1, 1),
        (4, 2, 1),
        (1, 2, 4),
        (2, 2, 2),
    ):
        for micro in (1, 4):
            degrees = {"tensor_parallel": tensor, "data_parallel": data}
            degrees |= {"pipeline_parallel": pipeline, "gpus": tensor * data * pipeline}
            found.append({**LARGE, **degrees, "micro_batch": micro, "global_batch": 32})
    return found


def as_measured(steps: list[MeasuredStep]) -> list[MeasuredStep]:
    """What `TRUE` says of them."""
    found = []
    for step in with_constants(steps, TRUE):
        assert step.row is not None
        seconds, peak = step_of(step.row)
        found.append(replace(step, seconds=seconds, peak_bytes=peak))
    return with_constants(found, Constants())


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[MeasuredStep]:
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    return as_measured(read_steps(write_steps(path, *rows()), Peaks()))


def test_constants_are_found_again(steps: list[MeasuredStep]) -> None:
    found = calibrate(steps)
    assert found.constants.compute == pytest.approx(1.2, rel=0.05)
    assert found.constants.collective == pytest.approx(1.5, rel=0.1)
    assert found.constants.framework_bytes == pytest.approx(6e9, rel=1e-3)
    assert abs(found.residual).max() < 0.03
    intervals = found.intervals(200, 0)
    assert set(intervals) == {*TIMES, "framework_bytes"}
    for name, (low, high) in intervals.items():
        assert low <= high
        point = getattr(found.constants, name)
        assert low * 0.999 - 1e-8 <= point <= high * 1.001, name


def test_nothing_is_learned_from_steps_as_predicted(steps: list[MeasuredStep]) -> None:
    exact = []
    for step in steps[:4]:
        assert step.row is not None
        exact.append(replace(step, seconds=step_of(step.row)[0], peak_bytes=None))
    found = calibrate(exact).constants
    assert list(asdict(found).values()) == pytest.approx(
        list(asdict(Constants()).values()), abs=1e-2
    )


def test_parts_of_one_model_are_left_out_in_turn(steps: list[MeasuredStep]) -> None:
    found = left_out(steps[:6])
    assert [len(errors) for errors in found.values()] == [2, 1, 1, 1, 1]
    with refusal("no row that can be priced"):
        calibrate([replace(steps[0], row=None)])


def test_the_command_writes_what_simulate_reads(work: Path, refuses: Refuses) -> None:
    cost, _ = cost_of(LEARNED)

    class Learned:
        kernel_seconds = staticmethod(cost)

    rows_of = rows()[:4]
    made = as_measured(read_steps(write_steps(Path("raw.csv"), *rows_of), Learned()))
    measured = [
        {**row, "step_s": step.seconds, "peak_bytes": step.peak_bytes or ""}
        for row, step in zip(rows_of, made, strict=True)
    ]
    write_steps(Path("steps.csv"), *measured, {**STEP, "gpus": 5})
    found = ran("calibrate", "measured.path=steps.csv", "samples=20")
    assert found["error_after"] < found["error_before"]
    assert len(found["not_priced"]) == 1
    constants = read_constants(found["file"])
    assert asdict(constants) == found["constants"]
    refuses("calibrate", ["measured.path=absent.csv"], "absent.csv")
    write_steps(Path("one.csv"), measured[0], {**STEP, "gpus": 5})
    refuses("calibrate", ["measured.path=one.csv"], "1 rows that can be priced")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compute", 0), ("compute", "fast"), ("launch_s", -1e-6), ("framework_bytes", None),
        ("speed", 1.0),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, key: str, value: object) -> None:
    good = {
        "kind": "constants of training steps", "schema_version": 1, "units": {},
        "constants": asdict(TRUE), "intervals": {"compute": [1.1, 1.3]}, "provenance": {},
    }  # fmt: skip
    file = tmp_path / "constants.json"
    file.write_text(json.dumps(good))
    assert read_constants(file) == TRUE
    file.write_text(json.dumps({**good, "constants": {**asdict(TRUE), key: value}}))
    with refusal(key) as caught:
        read_constants(file)
    assert str(caught.value.file) == str(file)
    file.write_text(json.dumps(good)[:-9])
    with refusal("constants.json"):
        read_constants(file)
