"""`experiments.train env=decisions`: from a command line to a folder that schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_split import one_of_several

from envs.files import read_json
from experiments.train import main

TOY = [
    "env=decisions", "~split@splits.philly", "usual.splits=[itp]", "usual.jobs=[5,8]",
    "usual.nodes_per_type=[2,2]", "usual.load=[1.2,1.2]", "usual.gpu_types=[V100,P100]",
    "+known.toy={gpu_milli: 500, max_gpus: 2}", "regimes=[toy]", "windows=2",
    "evaluation_windows=2",
    "env.futures.futures=2", "env.futures.share=1.0", "training.budget_s=null",
    "training.max_steps=64", "training.evaluation_episodes=4", "training.cloning.iterations=1",
    "agent.num_envs=32", "agent.minibatch_size=16",
]  # fmt: skip


def small(folder: Path) -> list[str]:
    return [*TOY, *one_of_several(folder)]


def test_a_policy_is_trained_and_goes_on_as_a_base(work: Path) -> None:
    assert main([*small(work), "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["iterations"] == 2  # one of imitation
    assert found["untrained_score"] == pytest.approx(1.0)
    assert {path.name for path in Path(found["checkpoint"]).iterdir()} == {
        "README.md", "config.yaml", "spec.json", "weights.safetensors",
    }  # fmt: skip
    scorer = (
        "base.scorer={_target_: agents.cluster.joint_choice.PairScorer, first: 2, sure: 2.0, "
        f"patience_s: 3600.0, path: {found['checkpoint']}}}"
    )
    assert main([*small(work), scorer, "hydra.run.dir=on"]) == 0
    assert (work / "on" / "learning_curve.png").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("regimes=[nowhere]", "config key 'regimes': 'nowhere' is not one of"),
        ("env.most=0", "config key 'env.most'"),
        ("env.futures.share=2", "config key 'env.futures.share'"),
        ("window=validation", "config key 'evaluation_window'"),
        ("model=placer", "config key 'model'"),
    ],
)
def test_bad_input_is_told_in_one_line(
    work: Path, capsys: pytest.CaptureFixture[str], word: str, message: str
) -> None:
    assert main([*small(work), word, "hydra.run.dir=bad"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
