"""Training, its resumption after a kill over real processes, and the export."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import environment, ran, result, working_in
from layered_step import layered_step
from refusals import run_refused

from agents.rllib.restore import load_best
from envs.bandwidth.generator import OPTIMUM_S
from envs.files import read_json
from envs.graphs.storage import save_graph
from experiments.evaluate import main as evaluate
from experiments.learning.one_problem import TrainConfig
from experiments.run.saved_run import resumed_config, saved_config, saved_nodes
from experiments.train import main
from tests.refusal import refusal

SMALL = (
    "graph=graph.npz", "env.max_groups=6", "model=placer", "model.hidden=8", "model.heads=2",
    "agent.num_envs=4", "agent.group_size=4", "agent.group_kept=null", "agent.episodes=1",
    "agent.minibatch_size=4", "agent.num_epochs=1", "training.budget_s=null",
    "training.checkpoint_every=1", "training.torch_threads=1",
)  # fmt: skip


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    save_graph(layered_step(6, 2), folder / "graph.npz")
    return folder


@pytest.fixture(scope="module")
def killed(work: Path) -> Path:
    """The folder of a run that was killed in its third iteration or later."""
    folder = work / "run"
    with subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *SMALL, "training.max_steps=1000000",
         f"hydra.run.dir={folder}"],
        cwd=work, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while not (folder / "metrics.csv").exists() or len(metrics(folder)) < 3:
            assert process.poll() is None, "training ended by itself"
            time.sleep(0.05)
        process.kill()
    return folder


@pytest.fixture(scope="module")
def resumed(work: Path, killed: Path) -> dict[str, Any]:
    """The result of the same run after it was resumed for two more iterations."""
    steps = int(float(metrics(killed)[-1]["charts/global_step"])) + 2 * 4
    with working_in(work):
        assert main([f"resume={killed}", f"training.max_steps={steps}"]) == 0
    return result(killed)


@pytest.fixture
def here(work: Path) -> Iterator[Path]:
    """The same folder, as the current one: for apps that need no process of their own."""
    with working_in(work):
        yield work


@pytest.mark.proof
def test_a_killed_run_goes_on_without_gaps_or_duplicates(
    killed: Path, resumed: dict[str, Any]
) -> None:
    rows = metrics(killed)
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    assert resumed["iterations"] == len(rows)
    assert resumed["resumed"] is True
    assert Path(resumed["run_folder"]) == killed
    begun, _, now = resumed["provenance"]["command"].partition(" ; ")
    assert "graph=graph.npz env.max_groups=6 model=placer" in begun
    assert now
    card = (Path(resumed["checkpoint"]) / "README.md").read_text()
    assert "model=placer" in card.partition("command: ")[2].partition("\n")[0]


@pytest.mark.proof
def test_a_resume_with_nothing_left_to_do_says_what_gives_it_more(
    here: Path, killed: Path, resumed: dict[str, Any]
) -> None:
    assert main([f"resume={killed}", f"training.max_steps={resumed['steps']}"]) == 0
    again = result(killed)
    assert again["iterations"] == resumed["iterations"]
    assert "training.max_steps=" in again["warnings"][-1]
    assert not [message for message in resumed.get("warnings", ()) if "max_steps" in message]


@pytest.mark.proof
def test_training_leaves_plan_curve_and_provenance(killed: Path, resumed: dict[str, Any]) -> None:
    assert resumed["step_time_s"] >= resumed["lower_bound_s"]
    assert {row["method"] for row in resumed["methods"]} == {"ppo", "trained", "untrained"}
    times = [row["step_time_s"] for row in resumed["methods"]]
    assert times == sorted(times)
    for name in ("plan.json", "learning_curve.png", "metrics.csv.provenance.json", "result.json"):
        assert (killed / name).is_file()
    origin = read_json(killed / "checkpoints/provenance.json")
    assert origin["provenance"]["seed"] == 0
    assert "graph.npz" in origin["provenance"]["inputs_sha256"]


@pytest.mark.proof
def test_the_exported_policy_decides_as_the_trained_one(
    here: Path, killed: Path, resumed: dict[str, Any]
) -> None:
    exported = ran("export", f"run={killed}", "output=scheduler", run="exported")
    assert exported["verified"] is True
    assert exported["verification"]["runtimes"] == ["onnx"]
    for name in ("encoder.onnx", "head.onnx", "weights.safetensors"):
        assert (here / "scheduler" / name).read_bytes() == (
            Path(resumed["checkpoint"]) / name
        ).read_bytes()
    asked = ["agent=learned", "agent.checkpoint=scheduler", "agent.search=null", SMALL[0]]
    assert ran(evaluate, *asked, run="evaluated")["feasible"]


def test_bandwidth_is_learned_beside_its_baselines(here: Path) -> None:
    asked = [
        "env=bandwidth_toy", "agent=ppo_bandwidth", "model=channels", "baselines=bandwidth",
        "baseline_budget_s=0.5", "agent.num_envs=2", "agent.minibatch_size=4",
        "training.budget_s=null", "training.max_steps=32",
    ]  # fmt: skip
    trained = ran(main, *asked, run="shared")
    methods = {row["method"]: row["step_time_s"] for row in trained["methods"]}
    assert set(methods) == {"uniform", "proportional", "square_root", "convex", "ppo"}
    assert methods["ppo"] == trained["step_time_s"] >= OPTIMUM_S
    folder = Path(trained["run_folder"])
    for name in ("plan.json", "phases.json", "learning_curve.png", "table.md", "config.yaml"):
        assert (folder / name).is_file()


CONFIG = """
env: {_target_: envs.placement.env.toy_environment}
agent: {clip: 0.2}
model: {_target_: agents.rllib.step.plans.Continued, checkpoint: any_step, changed_sweeps: null}
graph: {_target_: experiments.step.problem.StoredGraph, path: graph.npz}
topology: {_target_: experiments.step.problem.FromGraph}
cost: {_target_: envs.cost.CostByGraph}
communication: {_target_: envs.step.step.Ports, name: none, uses_ports: false}
training: {budget_s: 1.0}
learner: {}
tracking: {}
ray: {}
baselines: {}
baseline_budget_s: 1.0
placer: {_target_: agents.placement.baselines.SingleDevice}
resume: null
seed: 4
json: false
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def test_a_resumed_run_keeps_its_config_and_takes_a_new_budget(saved: Path) -> None:
    now = saved_config(saved, TrainConfig)
    now.json, now.seed = True, 99
    config = resumed_config(saved, now, [f"resume={saved}", "training.budget_s=7", "json=true"])
    assert config.seed == 4
    assert config.json is True
    assert config.training["budget_s"] == 7


@pytest.mark.parametrize("override", ["graph=gpt2", "seed=3", "agent.clip=0.1"])
def test_a_resumed_run_refuses_another_problem(saved: Path, override: str) -> None:
    config = saved_config(saved, TrainConfig)
    with refusal(override.partition("=")[0]):
        resumed_config(saved, config, [override])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "missing"),
        ("[1", "config.yaml"),
        ("seed: 1\nfoo: 2\n", "foo"),
        ("- a\n", "config.yaml"),
    ],
)
def test_a_foreign_run_folder_is_refused(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with refusal(word) as caught:
        saved_config(tmp_path, TrainConfig)
    assert "\n" not in str(caught.value)


def test_a_run_that_did_not_train_cannot_be_exported(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("graph: {_target_: experiments.step.problem.FromGraph}\n")
    with refusal("did not train"):
        saved_nodes(tmp_path, ("graph", "training"))
    with refusal("no run folder"):
        saved_nodes(tmp_path / "none", ("graph",))


def test_a_training_that_is_not_exported_again_is_told_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained/config.yaml").write_text("task: {_target_: guess.task}\ntraining: {}\n")
    said = ["train resume=trained writes its checkpoint folder again"]
    with working_in(tmp_path):
        run_refused("export", ["run=trained"], said, tmp_path, capfd)


def test_a_run_that_evaluated_nothing_cannot_be_exported(tmp_path: Path) -> None:
    with refusal(r"score\.json"):
        load_best(tmp_path, {})


@pytest.mark.proof
def test_training_that_meets_no_plan_that_fits_says_so(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    budget = [
        "training.budget_s=1e-9",
        "training.min_iterations=0",
        "training.max_steps=null",
    ]
    # the budget is spent before the first episode
    found = ran(main, *SMALL, *budget, run="unplaced")
    assert (found["feasible"], found["step_time_s"], found["times_lower_bound"]) == (
        False, None, None,
    )  # fmt: skip
    assert "no plan met in training fits" in capfd.readouterr().out
