"""`experiments.train env=cluster_parallel` and `experiments.report curves=[..]`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import is_drawn, ran, result
from numpy.testing import assert_allclose, assert_array_equal
from refusals import Refuses

from experiments.learning import train_cluster
from experiments.pictures.learning import (
    Evaluations,
    common,
    draw_evaluations,
    interquartile_mean,
    interval,
    read_evaluations,
)
from experiments.report import main as report
from experiments.train import main
from tests.refusal import refusal

CLUSTER = (
    "{_target_: envs.cluster.nodes.Cluster.uniform, nodes: 4, gpus_per_node: 2, nodes_per_rack: 2}"
)
UNKNOWN = ["+env.observation.expert=${expert}", "env.observation.known_durations=false"]
SMALL = [
    "env=cluster_parallel", "trace.format=synthetic", "trace.jobs=400", f"clusters=[{CLUSTER}]",
    "env.windows.jobs=[8,8]", "env.windows.load=[1,1]", "env.windows.max_gpus=4",
    "env.observation.window=4", "env.observation.running=8", "env.observation.shares=8",
    "model.hidden=8", "model.rounds=1", "model.heads=2", "agent.num_envs=2", "agent.steps=16",
    "training.evaluation_episodes=2", "training.evaluate_every=1", "training.max_steps=64",
]  # fmt: skip
TAUGHT = [
    "teacher={_target_: agents.cluster.teachers.FirstFit}",
    "training.cloning.iterations=1",
]  # fmt: skip


def test_schedulers_are_trained_and_compared_over_seeds(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[Path] = []  # what an export holds is tested in test_cluster_export.py
    monkeypatch.setattr(
        train_cluster, "export_trained", lambda policy, folder, *_, **__: exported.append(folder)
    )
    first = ran(main, *SMALL, *TAUGHT, run="seed_0")
    shutil.copytree("seed_0", "seed_1")
    assert (first["iterations"], first["steps"]) == (2, 64)
    scores = {evaluation["iteration"]: evaluation["score"] for evaluation in first["evaluations"]}
    assert list(scores) == [0, 1, 2]
    assert first["best_score"] == min(scores.values())
    assert len(first["reference_mean_jct_s"]) == 2
    for name in (
        "metrics.csv",
        "metrics.csv.provenance.json",
        "best",
        "checkpoints",
        "tensorboard",
    ):
        assert (work / "seed_0" / name).exists()
    assert is_drawn("seed_0/learning_curve.png")

    assert main(["resume=seed_0", "training.max_steps=96"]) == 0
    resumed = result("seed_0")
    assert (resumed["iterations"], resumed["resumed"]) == (3, True)
    assert [folder.parent.name for folder in exported] == ["seed_0", "seed_0"]
    assert resumed["checkpoint"] == str(exported[-1])

    both = ran(report, "curves=[seed_0,seed_1]", run="curves")
    assert both["steps"] == [32.0, 64.0]
    scores_of = np.array(both["scores"])
    assert scores_of.shape == (2, 2)
    assert_allclose(both["interquartile_mean"], scores_of.mean(axis=0))
    assert is_drawn("curves/learning_curves.png")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["clusters=[]"], "config key 'clusters': no cluster"),
        (["clusters=[{_target_: builtins.dict}]"], "clusters[0]"),
        (["evaluation_window=train"], "config key 'evaluation_window'"),
        (["evaluation_window=later"], "trace.window"),
        (["trace.window=train"], "config key 'trace.window'"),
        (["agent.group_size=3"], "group_size"),
        (["training.max_steps=null", "training.budget_s=null"], "budget_s"),
        (["teacher={_target_: fractions.Fraction}"], "config key 'teacher'"),
        (["interference={_target_: builtins.dict}"], "interference"),
        (["env=cluster_preemptive"], "env"),
        (["expert=srsf", *UNKNOWN], "config key 'expert': looks at durations"),
    ],
)
def test_bad_input_is_told_in_one_line(
    work: Path, changes: list[str], message: str, refuses: Refuses
) -> None:
    given = SMALL if not changes[0].startswith("env=") else [*SMALL[1:4], *SMALL[-9:]]
    refuses(main, [*given, *changes], message)


def evaluations(name: str, steps: list[float], scores: list[float]) -> Evaluations:
    return Evaluations(name, np.array(steps), np.array(scores), 5.0)


def test_the_interquartile_mean_leaves_out_the_quarters_at_both_ends() -> None:
    scores = np.array([[9.0], [1.0], [2.0], [3.0], [-50.0], [4.0], [5.0], [99.0]])
    assert interquartile_mean(scores)[0] == pytest.approx((2 + 3 + 4 + 5) / 4)
    low, high = interval(np.full((5, 3), 2.0), np.random.default_rng(0))
    assert_array_equal(low, [2.0] * 3)
    assert_array_equal(high, [2.0] * 3)


def test_runs_are_compared_where_all_were_evaluated() -> None:
    runs = [evaluations("a", [10, 20, 30], [1, 2, 3]), evaluations("b", [20, 25, 30], [4, 5, 6])]
    steps, scores = common(runs)
    assert_array_equal(steps, [20, 30])
    assert_array_equal(scores, [[2, 3], [4, 6]])
    lines = draw_evaluations(runs, "two").axes[0].lines
    assert len(lines) == 5  # both, mean, reference, cloning's end


def test_a_folder_without_evaluations_is_told(tmp_path: Path) -> None:

    with refusal(r"metrics\.csv: holds no evaluations"):
        read_evaluations(tmp_path)
    (tmp_path / "metrics.csv").write_text("iteration\n1\n")
    with refusal(r"metrics\.csv: holds no evaluations"):
        read_evaluations(tmp_path)
