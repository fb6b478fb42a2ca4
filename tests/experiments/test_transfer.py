"""`experiments.generalise conditions=shifted`: conditions, left-out jobs, ratios, picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_split import overrides

from envs.cluster.interference.rates import NoInterference
from envs.files import read_json
from experiments.cluster.generalising import Condition, GeneraliseConfig, changed
from experiments.cluster.split_windows import Split
from experiments.config.composing import check_command_line
from experiments.pictures.style import draw_rows
from experiments.run.app import run_job
from experiments.study.statistics import Interval
from tests.refusal import refusal

FEW = [
    "conditions=shifted",
    "~agents.gittins",
    "~agents.qssf",
    "~placements.yarn",
    "samples=200",
    "checkpoints=[one,two]",
]
PLAYED = ["~scheduler", "+scheduler={_target_: small_split.PlayedSRTF, checkpoint: '', knows: %s}"]


@pytest.fixture
def work(work: Path) -> Path:
    for name in ("one", "two"):
        (work / name).mkdir()
        (work / name / "spec.json").write_text("{}")
    return work


def given(work: Path, knows: str = "nothing") -> list[str]:
    return [*overrides(work), *FEW, PLAYED[0], PLAYED[1] % knows, "hydra.run.dir=run"]


def run(work: Path, *more: str) -> int:
    return run_job("generalise", [*given(work), *more])


def split_of(work: Path) -> Split:
    return Split(check_command_line(given(work), "generalise", GeneraliseConfig).config.split)


def test_ratios_under_each_condition(work: Path) -> None:
    chosen = "only=[as_trained,half_the_nodes,load_0.7,restart_300s]"
    assert run(work, chosen) == 0
    found = read_json(work / "run/result.json")
    conditions = found["conditions"]
    assert list(conditions) == ["as_trained", "half_the_nodes", "load_0.7", "restart_300s"]
    for row in conditions.values():
        windows = row["windows"]
        means = np.array([[o["mean_jct_s"] for o in w["baselines"].values()] for w in windows])
        played = np.array([[o["mean_jct_s"] for o in w["checkpoints"]] for w in windows])
        names = list(windows[0]["baselines"])
        relative = (means / means.min(axis=1)[:, None]).mean(axis=0)
        assert row["best_overall"] == names[int(relative.argmin())]
        ratios = row["ratios"]
        assert set(ratios) == {
            "the best baseline of each window", "the best overall", "max_min_20min", "las_2d",
        }  # fmt: skip
        best = means[:, names.index(row["best_overall"])]
        assert ratios["the best overall"]["mean"] == pytest.approx((played / best[:, None]).mean())
        las = [n for n in names if n.startswith("las_2d/")]
        column = min((relative[names.index(n)], names.index(n)) for n in las)[1]
        expected = (played / means[:, [column]]).mean()
        assert ratios["las_2d"]["mean"] == pytest.approx(expected)
        assert ratios["las_2d"]["low"] <= expected <= ratios["las_2d"]["high"]
    assert conditions["as_trained"]["left_out"] == 0
    loads = [w["load"] for w in conditions["load_0.7"]["windows"]]
    assert loads == pytest.approx([0.7] * len(loads), rel=0.02)
    assert found["of"] == 4
    table = (work / "run" / "table.md").read_text()
    assert "zero-shot" in table
    assert all(f"| {name}" in table for name in conditions)
    with Image.open(work / "run" / "transfer.png") as picture:
        assert picture.width > 500
    kept = len(list((work / "cache").iterdir()))
    (work / "run").rename(work / "before")
    assert run(work, chosen) == 0
    assert len(list((work / "cache").iterdir())) == kept


def test_conditions_change_what_they_name(work: Path) -> None:
    split = split_of(work)

    def part(**changes: Any) -> Any:
        return changed(split.traces["a"], changes, None, "test")

    same = part()
    assert same.cluster.gpus.tolist() == [4] * 4
    assert same.cluster.rack.tolist() == [0, 1, 2, 3]
    assert part(nodes=2.0).cluster.num_nodes == 8
    assert part(nodes_per_rack=None).cluster.rack.tolist() == [0] * 4
    assert part(nodes=0.5, gpus_per_node=8).cluster.gpus.tolist() == [8, 8]
    assert part(gpu_types=["A100"]).cluster.gpu_types == ("A100",)
    assert part(restart_s=300.0).overheads.restart_s == 300.0
    assert part(load=0.7).load == 0.7
    assert same.rates is split.rates
    rates = NoInterference()
    assert changed(split.traces["a"], {}, rates, "test").rates is rates


def test_jobs_that_fit_no_type_are_left_out_and_windows_stay_apart(work: Path) -> None:
    split = split_of(work)
    jobs = split.traces["a"].windows["test"].trace
    assert jobs.num_gpus.max() == 3
    small = Condition.of("it", {"nodes": 0.5, "gpus_per_node": 2}, split, "test")
    kept = jobs.take(np.flatnonzero(jobs.num_gpus <= 2))
    assert small.jobs == len(kept)
    assert small.left_out == len(jobs) - len(kept) > 0
    found = [job for w in small.windows for job in w.problem.trace.job_id.tolist()]
    assert found == kept.job_id.tolist()
    for window in small.windows:
        assert window.about["load"] == pytest.approx(1.1, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"racks": 1}, "conditions.it': field 'racks': unknown key"),
        ({"nodes": 0.0}, "conditions.it': field 'nodes'"),
        ({"load": "much"}, "conditions.it': field 'load'"),
        ({"gpu_types": "V100"}, "conditions.it': field 'gpu_types'"),
        ({"nodes": 0.2}, "conditions.it"),
        ({"gpus_per_node": 0}, "conditions.it"),
        ({"interference": {"_target_": "builtins.dict"}}, "conditions.it.interference"),
        ([], "conditions.it': [] is not a mapping"),
    ],
)
def test_changes_that_cannot_be(work: Path, changes: Any, told: str) -> None:
    with refusal() as error:
        Condition.of("it", changes, split_of(work), "test")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("only=[elsewhere]", "'only': 'elsewhere' is none of"),
        ("only=[]", "no condition"),
        ("checkpoints=[]", "no checkpoint"),
        ("+agent@references.fifo=fifo", "'references': no table shows them under conditions"),
        ("samples=0", "samples"),
        ("window=later", "'window', split itp: 'later' is none of"),
        ("information=all", "'information': 'all' is none of"),
        ("tuned=[sjf]", "'sjf' is not among the agents"),
        ("split.least_jobs=1000", "no window 'test' has 1000 jobs"),
    ],
)
def test_bad_input_is_one_line(
    work: Path, capsys: pytest.CaptureFixture[str], override: str, told: str
) -> None:
    only = [] if override.startswith("only") else ["only=[as_trained]"]
    assert run(work, override, *only) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_the_forest_has_a_line_at_one_and_every_interval() -> None:
    ratios = [Interval(0.9, 0.85, 0.97), Interval(1.1, 1.0, 1.2)]
    (axes,) = draw_rows(["a", "b"], {"": ratios}, "ratio", "title", beside=["x", "y"]).axes
    assert axes.get_lines()[0].get_xdata() == [1.0, 1.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    (spans,) = axes.collections[0].get_segments()[:1]
    assert spans[:, 0].tolist() == pytest.approx([0.85, 0.97])
    assert axes.get_xlim()[0] < 0.85
    assert axes.get_xlim()[1] > 1.2
