"""`experiments.train model=priority`: weights from replays, and the policies that take them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from commands import is_drawn, ran, working_in
from commands import result as result_of
from refusals import Refuses
from safetensors.torch import load_file
from small_split import one_of_several, write_posterior

from agents.cluster.migrating.learned_priority import NAMES, read_weights
from experiments.cluster.split_windows import Split, sources
from experiments.config.composing import check_command_line
from experiments.evaluate import main as evaluate
from experiments.learning.train_priority import (
    Replayer,
    Request,
    TrainPriorityConfig,
    replays,
    start_of,
)
from experiments.train import main
from tests.refusal import refusal

SMALL = [
    "model=priority", "agent.priority.path=posterior", "model.rounds=4", "model.pairs=3",
    "~split@splits.philly", "parts.jobs=[8,20]", "parts.least_jobs=5", "parts.nodes_per_type=[2,3]",
    "evaluation_parts=3", "evaluate_every=2", "samples=50", "workers=1",
]  # fmt: skip


def small(folder: Path) -> list[str]:
    return [*SMALL, *one_of_several(folder)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, a posterior and the folder `run` of a search with them."""
    folder = tmp_path_factory.mktemp("priority")
    write_posterior(folder)
    with working_in(folder):
        ran(main, *small(folder))
    return folder


@pytest.fixture
def work(made: Path, work: Path) -> Path:
    for name in ("run", "posterior", "jobs.csv"):
        (work / name).symlink_to(made / name)
    return work


def test_the_weights_of_the_best_evaluation_are_kept(made: Path) -> None:
    run = made / "run"
    result = result_of(run)
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows] == [1, 2, 3, 4]
    scores = [1.0, *(float(row["evaluation/score"]) for row in rows)]
    assert [k for k, score in enumerate(scores) if not np.isnan(score)] == [0, 2, 4]
    assert result["evaluation"] == np.nanmin(scores) == scores[result["best_round"]]
    assert read_weights(run / "priority.json") == result["found"]
    first = load_file(run / "untrained" / "weights.safetensors")["weights"].numpy()
    best = load_file(run / "best" / "weights.safetensors")["weights"].numpy()
    assert list(result["found"].values()) == best.tolist()
    assert (first == best).all() == (result["best_round"] == 0)
    assert dict(zip(NAMES, first, strict=True))["gpus"] == -0.85
    assert result["replays"] == 24
    assert set(result["provenance"]["inputs_sha256"]) == {"jobs.csv", "durations"}
    assert "| ahead_together |" in (run / "table.md").read_text()
    assert (run / "metrics.csv.provenance.json").is_file()
    assert is_drawn(run / "search.png")


@pytest.mark.proof
def test_what_is_found_does_not_depend_on_the_number_of_processes(work: Path) -> None:
    config = check_command_line(small(work), "train_priority", TrainPriorityConfig).config
    splits = [Split(one) for one in config.splits.values()]
    windows = (config.window, config.evaluation_window)
    found = {window: sources(splits, window, config.parts) for window in windows}
    replayer = Replayer(config.agent, found, config.parts)
    weights = np.stack([start_of(config.agent)] * 2) * [[1.0], [0.5]]
    requests = [Request(window, (0, part), weights) for part, window in enumerate(windows)]
    with replays(replayer, 2) as several:
        np.testing.assert_array_equal(several(requests), list(map(replayer, requests)))


def test_a_policy_takes_the_weights(work: Path) -> None:
    asked = [
        "env=cluster", "agent=migrating_learned", "agent.priority.path=posterior",
        "trace.path=jobs.csv", "trace.format=canonical", "cluster.nodes=4",
        "cluster.gpus_per_node=4",
    ]  # fmt: skip
    finishes = set()
    for number, more in enumerate(
        ([], ["agent.priority.weights=run/priority.json"], ["agent.priority.weights.age=9"])
    ):
        found = ran(evaluate, *asked, *more, run=f"evaluated{number}")
        assert found["finished"] == found["jobs"] == 60
        finishes.add(found["mean_jct_s"])
    assert len(finishes) > 1


def test_the_checkpoint_is_the_plan_with_the_weights(made: Path, work: Path) -> None:
    common = ["trace.path=jobs.csv", "trace.format=canonical", "cluster.nodes=4"]
    plan = ["agent.priority.path=posterior", "agent.priority.weights=run/priority.json"]
    found = []
    for number, agent in enumerate(
        (["checkpoint", "agent.checkpoint=run/checkpoint"],
         ["migrating_learned", "agent.wake_s=1200", *plan])
    ):  # fmt: skip
        words = ["env=cluster", f"agent={agent[0]}", *agent[1:], *common]
        found.append(ran(evaluate, *words, "cluster.gpus_per_node=4", run=f"played{number}"))
    assert found[0]["mean_jct_s"] == found[1]["mean_jct_s"]
    assert found[0]["knows"] == found[1]["knows"] == "predictions"
    card = (work / "run" / "checkpoint" / "README.md").read_text()
    assert "| 4 |" in card
    assert str(made) not in card


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["evaluation_window=train"], "config key 'evaluation_window'"),
        (["workers=0"], "config key 'workers'"),
        (["parts.load=[0,1]"], "config key 'parts.load"),
        (["parts.least_jobs=1"], "config key 'parts.least_jobs'"),
        (["model.fade=2"], "fade"),
        (["agent=migrating_las", "~agent.priority.path"], "agent"),
        (["agent.priority.path=nowhere"], "nowhere"),
        (["agent.priority.weights.age=.nan"], "weights.age"),
        (["+agent.priority.weights.luck=1"], "weights.luck"),
        (["agent.priority.weights=posterior/spec.json"], "meshwright.priority_weights"),
    ],
)
def test_bad_input_is_told_in_one_line(
    work: Path, changes: list[str], message: str, refuses: Refuses
) -> None:
    given = [text for text in small(work) if "~agent.priority.path" not in changes or
             not text.startswith("agent.priority.path")]  # fmt: skip
    changes = [change for change in changes if change != "~agent.priority.path"]
    refuses(main, [*given, *changes], message)


def test_a_file_of_weights_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "priority.json"
    good = {"kind": "meshwright.priority_weights", "weights": dict.fromkeys(NAMES, 0.0)}
    path.write_text(json.dumps(good))
    assert read_weights(path) == good["weights"]
    for change, field in (
        ({"kind": "other"}, "kind"),
        ({"weights": []}, "kind"),
        ({"weights": {"gpus": 1.0}}, "weights.runs"),
        ({"weights": dict.fromkeys(NAMES, True)}, "weights.runs"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with refusal() as caught:
            read_weights(path)
        assert (caught.value.file, caught.value.field) == (path, field)
