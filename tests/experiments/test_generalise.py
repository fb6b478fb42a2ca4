"""`experiments.generalise`: paired ratios, intervals, table and picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_split import overrides

from envs.files import read_json
from experiments.cluster.baselines import files_of, sources_of
from experiments.cluster.generalising import best_overall
from experiments.run.app import run_job
from experiments.run.provenance import file_hash
from experiments.study.statistics import bootstrap

FEW = [
    "~agents.optimus", "~agents.las_gavel", "~agents.qssf", "~agents.max_min",
    "~agents.gandiva_20min", "tuned=[max_min_20min]", "~agents.finish_time_fairness", "~rules",
    "+rules={}", "samples=200",
]  # fmt: skip
PLAYED = "+scheduler={_target_: small_split.PlayedSRTF, checkpoint: '', knows: %s}"


@pytest.fixture
def work(work: Path) -> Path:
    for name in ("one", "two"):
        (work / name).mkdir()
        (work / name / "spec.json").write_text("{}")
    return work


def run(work: Path, *more: str) -> int:
    given = [*overrides(work), *FEW, *more, "hydra.run.dir=run"]
    return run_job("generalise", given)


def test_checkpoints_beside_the_best_of_each_window(work: Path) -> None:
    scheduler = ["~scheduler", PLAYED % "nothing"]
    assert run(work, "checkpoints=[one,two]", *scheduler) == 0
    found = read_json(work / "run/result.json")
    means = np.array([[o["mean_jct_s"] for o in w["baselines"].values()] for w in found["windows"]])
    played = np.array([[o["mean_jct_s"] for o in w["checkpoints"]] for w in found["windows"]])
    assert played.shape == (len(means), 2)
    ratio = (played / means.min(axis=1)[:, None]).mean()
    assert found["ratio"] == pytest.approx(ratio)
    against = found["ratios"]["the best baseline of each window"]
    assert against["mean"]["low"] <= ratio <= against["mean"]["high"]
    assert set(against) == {"mean", "p50", "p99"}
    names = list(found["windows"][0]["baselines"])
    assert not [name for name in names if name.startswith(("srtf", "srsf", "sjf"))]
    overall = names[best_overall(means.T)]
    assert found["best_overall"] == overall
    for window in found["windows"]:
        assert window["lower_bound_s"] <= min(o["mean_jct_s"] for o in window["checkpoints"])
    table = (work / "run" / "table.md").read_text()
    assert f"| {overall} |" in table
    assert "Checkpoints (2)" in table
    assert Image.open(work / "run" / "ratios.png").width > 500
    assert len(found["provenance"]["inputs_sha256"]) == 3


def test_references_are_no_baselines(work: Path) -> None:
    """Ours are in the table and never the yardstick; what knows durations is left out."""
    assert run(work, "checkpoints=[one]", "~scheduler", PLAYED % "nothing") == 0
    found = read_json(work / "run/result.json")
    for window in found["windows"]:
        assert list(window["references"]) == ["migrating_las"]
        assert "migrating_las" not in window["baselines"]
        assert window["best"] in window["baselines"]
        least = min(o["mean_jct_s"] for o in window["baselines"].values())
        assert window["baselines"][window["best"]]["mean_jct_s"] == least
    table = (work / "run" / "table.md").read_text()
    (row,) = [line for line in table.splitlines() if line.startswith("| migrating_las ")]
    assert row.split("|")[2].strip() == "reference"
    ratio = np.mean([
        w["references"]["migrating_las"]["mean_jct_s"]
        / min(o["mean_jct_s"] for o in w["baselines"].values())
        for w in found["windows"]
    ])  # fmt: skip
    assert row.split("|")[3].strip() == f"{ratio:.3f}"
    kept = len(list((work / "cache").iterdir()))
    assert kept == len(found["windows"]) * (len(found["windows"][0]["baselines"]) + 2)
    (work / "run").rename(work / "before")
    assert run(work, "checkpoints=[one]", "~scheduler", PLAYED % "nothing") == 0
    assert len(list((work / "cache").iterdir())) == kept


def test_the_best_as_published(work: Path) -> None:
    """Where the best overall is called tuned, the next stands beside it."""
    given = ["checkpoints=[one]", "~scheduler", PLAYED % "nothing"]
    assert run(work, *given, "tuned=[]") == 0
    first = read_json(work / "run/result.json")
    assert first["best_published"] == first["best_overall"]
    assert len(first["ratios"]) == 2
    policy = first["best_overall"].partition("/")[0]
    (work / "run").rename(work / "before")
    assert run(work, *given, f"tuned=[{policy}]") == 0
    found = read_json(work / "run/result.json")
    assert found["best_overall"] == first["best_overall"]
    assert found["best_published"].partition("/")[0] != policy
    assert list(found["ratios"])[1:] == [found["best_overall"], found["best_published"]]
    means = {
        name: [w["baselines"][name]["mean_jct_s"] for w in found["windows"]]
        for name in found["windows"][0]["baselines"]
    }
    least = np.min(list(means.values()), axis=0)
    rest = {
        n: float((m / least).mean()) for n, m in means.items() if not n.startswith(f"{policy}/")
    }
    assert found["best_published"] == min(rest, key=lambda name: rest[name])
    played = [w["checkpoints"][0]["mean_jct_s"] for w in found["windows"]]
    ratio = np.mean(np.array(played) / means[found["best_published"]])
    assert found["ratios"][found["best_published"]]["mean"]["mean"] == pytest.approx(ratio)
    table = (work / "run" / "table.md").read_text()
    assert f"| {found['best_published']} | best overall as published |" in table.replace("  ", "")
    assert "| tuned |" in table.replace("  ", "")


def test_a_posterior_that_changed_is_replayed_anew(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("1")
    node = {"priority": {"path": str(tmp_path), "gpus": 1.0}, "name": "path"}
    before = files_of(node)
    assert list(before) == [str(tmp_path / "spec.json")]
    (tmp_path / "spec.json").write_text("2")
    assert files_of(node) != before
    assert files_of({"path": str(tmp_path / "absent")}) == {}
    weights = tmp_path / "spec.json"
    assert files_of({"weights": str(weights)}) == {str(weights): file_hash(weights)}


def test_a_policy_of_ones_own_that_changed_is_replayed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "policy_of_ones_own.py"
    file.write_text("class Mine: ...\n")
    ours = {"_target_": "agents.cluster.policies.FIFO"}
    node = {"placement": {"_target_": "policy_of_ones_own.Mine"}, **ours}
    before = sources_of(node)
    assert before == {"policy_of_ones_own.Mine": file_hash(file)}
    file.write_text("class Mine: pass\n")
    assert sources_of(node) != before
    assert sources_of({**ours, "placement": {"n": 1}}) == {}


def test_without_a_checkpoint(work: Path) -> None:
    assert run(work, "information=known") == 0
    found = read_json(work / "run/result.json")
    assert found["ratios"] == {}
    assert "ratio" not in found
    assert any(name.startswith("srtf/") for name in found["windows"][0]["baselines"])


def test_a_scheduler_that_knows_too_much(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = ["~scheduler", PLAYED % "durations"]
    assert run(work, "checkpoints=[one]", *scheduler) == 2
    assert "it sees durations, the class is 'unknown'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("window=later", "'window', split itp: 'later' is none of"),
        ("information=all", "'information': 'all' is none of"),
        ("samples=0", "samples"),
        ("split.least_jobs=1000", "no window 'test' has 1000 jobs"),
        ("checkpoints=[nowhere]", "nowhere"),
        ("tuned=[maxmin]", "'maxmin' is not among the agents"),
        ("+agent@references.fifo=fifo", "'references.fifo': is among the agents as well"),
        ("+agent@references.migrating_learned=migrating_learned", "priority.path"),
    ],
)
def test_bad_input_is_one_line(
    work: Path, capsys: pytest.CaptureFixture[str], override: str, told: str
) -> None:
    assert run(work, override) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_bootstrap_of_the_mean() -> None:
    """Of 40 draws: the interval is that of the central limit theorem, nearly."""
    ratios = np.random.default_rng(0).normal(0.8, 0.1, (40, 1))
    found = bootstrap(ratios, 4000, 0)
    half = 1.96 * ratios.std() / 40**0.5
    assert found.mean == pytest.approx(ratios.mean())
    assert found.low == pytest.approx(ratios.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(ratios.mean() + half, abs=0.1 * half)
    assert found.below_one
    assert bootstrap(ratios, 4000, 0) == found


def test_bootstrap_draws_seeds_too() -> None:
    """Seeds that differ and windows that do not: the interval is about seeds alone."""
    ratios = np.tile([0.8, 1.0], (30, 1))
    found = bootstrap(ratios, 2000, 0)
    assert found.low == pytest.approx(0.8)
    assert found.high == pytest.approx(1.0)
    assert bootstrap(ratios[:, :1], 100, 0).high == pytest.approx(0.8)


def test_best_overall_is_relative() -> None:
    """The second is best on two of three windows; the first has the least sum."""
    means = np.array([[10.0, 10.0, 1000.0], [5.0, 5.0, 1100.0]])
    assert best_overall(means) == 1
