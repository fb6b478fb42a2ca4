"""`experiments.train model=durations`, from command line to a policy that uses what was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import is_drawn, ran, result, working_in
from refusals import Refuses
from small_split import one_of_several

from experiments.evaluate import main as evaluate
from experiments.train import main
from models.durations.bins import read_durations

SMALL = [
    "model=durations", "model.history=2", "model.hidden=4", "model.readout=8", "model.epochs=2",
    "~split@splits.philly", "sampling.windows=6", "sampling.evaluation_windows=4",
    "sampling.jobs=[8,20]", "sampling.least_jobs=5", "sampling.nodes_per_type=[2,3]",
    "sampling.instants=8", "evaluation.samples=50",
]  # fmt: skip

REPLAYED = [
    "env=cluster", "trace.path=jobs.csv", "trace.format=canonical", "cluster.nodes=8",
    "cluster.gpus_per_node=4",
]  # fmt: skip


def small(folder: Path) -> list[str]:
    return [*SMALL, *one_of_several(folder)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace and the folder `run` of a training on it."""
    folder = tmp_path_factory.mktemp("durations")
    with working_in(folder):
        ran(main, *small(folder))
    return folder


@pytest.fixture
def work(made: Path, work: Path) -> Path:
    (work / "run").symlink_to(made / "run")
    return work


def test_scores_of_every_method_reach_the_result(made: Path) -> None:
    found = result(made / "run")
    rows = {row["method"]: row for row in found["methods"]}
    assert set(rows) == {"network", "all jobs", "jobs of the gang size"}
    for row in rows.values():
        assert 0.0 < row["cross_entropy"] < 10.0
        assert 0.0 <= row["held"]["0.5"] <= row["held"]["0.8"] <= 1.0
        assert row["ratio"]["low"] <= row["ratio"]["mean"] <= row["ratio"]["high"]
    assert rows["jobs of the gang size"]["ratio"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert found["cross_entropy"] == rows["network"]["cross_entropy"]
    assert found["rows"] > 100
    assert set(found["by_trace"]) == {"a"}
    assert found["by_trace"]["a"]["network"] == pytest.approx(found["cross_entropy"])
    assert set(found["provenance"]["inputs_sha256"]) == {"jobs.csv"}


def test_the_folder_table_metrics_and_picture_are_written(made: Path) -> None:
    config, _ = read_durations(made / "run" / "durations")
    assert (config.history, config.hidden) == (2, 4)
    table = (made / "run" / "table.md").read_text()
    assert "| method | cross entropy | ratio | 50% held | 80% held |" in table
    assert "| a |" in table
    lines = (made / "run" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["iteration", "1", "2"]
    assert (made / "run" / "metrics.csv.provenance.json").is_file()
    assert is_drawn(made / "run/reliability.png")


def test_one_seed_one_posterior(work: Path) -> None:
    for seed, same in ((0, True), (1, False)):
        ran(main, *small(work), f"seed={seed}", run=f"again{seed}")
        first, again = (
            read_durations(work / run / "durations")[1]["bins.weight"]
            for run in ("run", f"again{seed}")
        )
        assert np.array_equal(first, again) == same


def test_an_agent_uses_it_and_says_so(work: Path) -> None:
    small(work)  # writes the jobs
    found = ran(
        evaluate,
        *REPLAYED,
        "agent=migrating_learned",
        "agent.priority.path=run/durations",
        run="evaluated",
    )
    assert (found["agent"], found["knows"]) == ("migrating_learned", "predictions")
    assert found["finished"] == found["jobs"] == 60
    assert "priority" in found["provenance"]["inputs_sha256"]


@pytest.mark.parametrize(
    ("agent", "knows"),
    [
        ("migrating_las", "nothing"),
        ("migrating_srtf", "durations"),
        ("migrating_srsf", "durations"),
    ],
)
def test_migrating_agents_replay_a_trace(work: Path, agent: str, knows: str) -> None:
    small(work)
    found = ran(evaluate, *REPLAYED, f"agent={agent}", run="evaluated")
    assert (found["agent"], found["knows"], found["placement"]) == (agent, knows, None)
    assert found["finished"] == 60


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("model.history=0", "model.history"),
        ("sampling.jobs=[9,3]", "sampling.jobs"),
        ("sampling.least_jobs=999", "sampling.least_jobs"),
        ("sampling.instants=1e-9", "sampling.instants"),
        ("evaluation_window=train", "evaluation_window"),
        ("window=nowhere", "nowhere"),
        ("evaluation.smoothing=0", "evaluation.smoothing"),
        ("policy._target_=envs.units.Bytes", "policy"),
        ("~splits.itp", "splits"),
    ],
)
def test_bad_settings_are_told_in_one_line(
    work: Path, refuses: Refuses, given: str, message: str
) -> None:
    asked = ["model=durations"] if given.startswith("~") else small(work)
    more = ["~split@splits.philly", "~split@splits.itp"] if given.startswith("~") else [given]
    refuses(main, [*asked, *more], message)


def test_a_folder_that_holds_nothing_learned_is_told(work: Path, refuses: Refuses) -> None:
    small(work)
    for given, message in (([], "path"), (["agent.priority.path=nowhere"], "nowhere")):
        refuses(evaluate, [*REPLAYED, "agent=migrating_learned", *given], message)
