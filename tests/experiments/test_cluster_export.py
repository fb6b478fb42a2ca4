"""A run that trained schedulers leaves a checkpoint folder that replays a trace by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import code_of, ran, result, working_in
from numpy.testing import assert_array_equal
from omegaconf import OmegaConf
from refusals import Refuses
from small_split import write_posterior

from agents.cluster.checkpoint import CheckpointScheduler
from agents.rllib.restore import load_best
from envs.cluster.environment.routing import MixedRacks, RandomRouting
from envs.cluster.interference.rates import NoInterference
from envs.files import read_json
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.evaluate import main as evaluate
from experiments.learning import train_cluster
from experiments.learning.train_cluster import TrainClusterConfig, task_of
from experiments.run.saved_run import saved_config
from experiments.train import main
from models.artifacts import sha256_of
from tests.agents.cluster.exported_schedulers import eager

CLUSTER = (
    "{_target_: envs.cluster.nodes.Cluster.uniform, nodes: 4, gpus_per_node: 2, "
    "nodes_per_rack: 1, gpu_types: [V100, P100]}"
)
SMALL = [
    "env=cluster_mixed", "trace.format=synthetic", "trace.jobs=1000", f"clusters=[{CLUSTER}]",
    "env.windows.jobs_per_gpu=[1.5,1.5]", "env.windows.stages.first_gpus=8",
    "env.windows.stages.gpus=8", "env.windows.max_share=0.5", "env.observation.window=12",
    "env.observation.running=8", "env.observation.shares=16", "env.observation.history=1",
    "model.hidden=8", "model.rounds=1", "model.heads=2", "model.initial_expert_weight=1.0",
    "agent.num_envs=2", "agent.steps=16", "training.evaluation_episodes=2",
    "training.evaluate_every=1", "training.max_steps=64", "training.cloning.iterations=1",
]  # fmt: skip
LEARNED = ["expert=learned", "expert.priority.path=posterior"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folder `run` of a short training, and the posterior it has read."""
    folder = tmp_path_factory.mktemp("export")
    write_posterior(folder)
    with working_in(folder), pytest.MonkeyPatch.context() as patch:
        # that a training exports what it learned is tested in test_train_cluster.py
        patch.setattr(train_cluster, "export_trained", lambda *_, **__: None)
        ran(main, *SMALL, *LEARNED)
        ran("export", "run=run", "output=run/checkpoint", run="exported")
    return folder


@pytest.fixture
def copied(made: Path, work: Path) -> Path:
    shutil.copytree(made, work, dirs_exist_ok=True)
    return work


@pytest.mark.proof
def test_the_folder_says_what_it_is(made: Path) -> None:
    folder = made / "run" / "checkpoint"
    spec = read_json(folder / "spec.json")
    priority = SHIPPED_CONFIGS.node("priority/learned")
    del priority["_target_"], priority["path"]
    assert spec["adviser"]["priority"] == {"kind": "learned_gittins", **priority}
    posterior = sha256_of(made / "posterior" / "spec.json")
    assert spec["folders"]["durations"]["spec.json"] == posterior
    assert spec["provenance"]["inputs_sha256"]["durations"] == posterior
    best = read_json(made / "run" / "best" / "score.json")
    card = (folder / "README.md").read_text()
    after = best["iteration"] or "0 (untrained)"
    assert f"| {after} | {best['steps']:,} | {best['score']:.4f} |" in card
    assert "env" in OmegaConf.load(folder / "config.yaml")
    for name in ("README.md", "config.yaml", "spec.json", "durations/spec.json"):
        assert str(made) not in (folder / name).read_text(), name
    assert result(made / "run")["best_score"] == pytest.approx(best["score"])


@pytest.mark.proof
def test_it_replays_what_the_trained_policy_plays(copied: Path) -> None:
    """The posterior that was read in training is gone by then."""
    saved = saved_config("run", TrainClusterConfig)
    training, _, task = task_of(saved)
    env = task.make_evaluation(0)
    env.routing, env.rates = RandomRouting(), NoInterference()
    policy = training.model.policy(*task.spaces_of("scheduler_0"))
    load_best(Path("run"), {"scheduler": policy})
    seen, _ = env.reset(seed=7)
    instance = (env.simulator.cluster, env.simulator.trace)
    homes = env.episode.book.home.copy()
    decide = eager(policy)
    while env.agents:
        seen, *_ = env.step({name: decide(seen[name]) for name in env.agents})
    expected = env.schedule()
    assert expected.finished.all()
    shutil.rmtree("posterior")
    scheduler = CheckpointScheduler(
        "run/checkpoint", 12, 2, MixedRacks(), lambda *_: homes, 1, 0.0, 0
    )
    found = scheduler.play(*instance, rates=NoInterference(), overheads=env.overheads)
    assert_array_equal(found.finish, expected.finish)
    assert_array_equal(found.preemptions, expected.preemptions)


@pytest.mark.proof
def test_a_run_is_exported_and_verified(made: Path) -> None:
    found = result(made / "exported")
    assert found["verified"] is True
    assert found["verification"]["runtimes"] == ["onnx", "pt2"]
    assert found["verification"]["decisions"] > 20


@pytest.mark.proof
def test_a_second_export_is_the_same(copied: Path) -> None:
    ran("export", "run=run", run="again")
    for name in ("policy.onnx", "weights.safetensors", "durations/durations.safetensors"):
        first, again = (copied / run / "checkpoint" / name for run in ("run", "again"))
        assert first.read_bytes() == again.read_bytes()


@pytest.mark.proof
def test_evaluate_takes_it(copied: Path) -> None:
    asked = [
        "env=cluster", "agent=checkpoint", "agent.checkpoint=run/checkpoint",
        "trace.format=synthetic", "trace.jobs=30", "cluster.nodes=8", "cluster.gpus_per_node=8",
        "cluster.gpu_types=[V100,P100]",
    ]  # fmt: skip
    assert ran(evaluate, *asked, run="evaluated")["knows"] == "predictions"


@pytest.mark.proof
def test_another_posterior_than_that_of_the_run_is_refused(
    copied: Path, refuses: Refuses, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = read_json(copied / "posterior" / "spec.json")
    (copied / "posterior" / "spec.json").write_text(json.dumps({**spec, "provenance": {"seed": 1}}))
    said = "the run was begun with sha256"
    refuses("export", ["run=run"], said)
    assert code_of(main, "resume=run", "training.max_steps=96") == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["expert=learned"], "expert.priority.path"),
        (["expert=learned", "expert.priority.path=absent"], "no such file"),
        (["expert=las", "expert.priority.first=0"], "first"),
        (["expert._target_=agents.cluster.teachers.FirstFit", "~expert.priority",
          "~expert.gain", "~expert.least_run_s"], "cannot go into a checkpoint"),
    ],
)  # fmt: skip
def test_bad_experts_are_told_before_training(
    changes: list[str], message: str, refuses: Refuses
) -> None:
    refuses(main, [*SMALL, *changes], message)
