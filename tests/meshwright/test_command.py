"""The command `meshwright`: verbs, help, completion, folders of one's own configs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class, get_object

from envs.files import read_json
from experiments.command_line import main_of
from experiments.config import config_source
from experiments.config.composing import take_config_folders
from experiments.config.config_source import fitting, job_config
from experiments.config.help import SCRIPTS, candidates
from experiments.config.registry import GROUPS
from experiments.config.targets import EXTRAS
from experiments.config.verbs import JOBS, VERBS
from meshwright import command
from meshwright.command import main
from tests.paths import ROOT
from tests.refusal import refusal

LIGHT = ("gymnasium", "numpy")  # which `import envs` brings
HEAVY = (
    "matplotlib", "networkx", "numba", "onnxruntime", "ortools", "polars", "ray", "scipy", "torch",
)  # fmt: skip
LOADED = f"""
import sys
import meshwright
from meshwright.command import VERBS, main
assert main(["--help"]) == 0
assert main(["--complete", "meshwright plan agent=m_"]) == 0
assert not set({LIGHT!r}) & set(sys.modules)
for verb in VERBS:
    assert main([verb, "--help"]) == 0, verb
print("loaded:", *sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def in_a_process(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=variables)


@pytest.fixture
def own_folders(tmp_path: Path) -> Any:
    """A folder with an agent of one's own; it is not looked at when the test is over."""
    (tmp_path / "mine" / "agent").mkdir(parents=True)
    text = "_target_: agents.placement.list_planners.Heft\n"
    (tmp_path / "mine/agent/own_heft.yaml").write_text(text)
    yield tmp_path / "mine"
    take_config_folders([])


@pytest.mark.slow
def test_help_of_no_verb_imports_what_a_run_needs() -> None:
    done = in_a_process(sys.executable, "-c", LOADED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert set(re.findall(r"^  (\w+)  +\S", done.stdout, re.MULTILINE)) >= set(VERBS)


@pytest.mark.slow
@pytest.mark.parametrize("config", JOBS)
def test_a_job_is_what_its_row_says(config: str) -> None:
    """Its dataclass and its task can be loaded, and its help names what they are for."""
    job = JOBS[config]
    assert is_dataclass(get_class(job.schema))
    assert callable(get_object(job.task))
    assert main_of(job.verb)
    assert job.summary
    assert job_config(config)["hydra"]["job"]["name"] == job.verb


def test_a_verb_that_is_none_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evalute", "agent=heft"]) == 2
    assert (
        capsys.readouterr().err == "error: there is no command 'evalute': did you mean evaluate?\n"
    )


@pytest.mark.slow
def test_help_lists_what_fits_and_keeps_planners_and_schedulers_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def help_of(*words: str) -> str:
        assert main([*words, "--help"]) == 0
        return capsys.readouterr().out

    def words_of(text: str) -> set[str]:
        return set(re.findall(r"\w+", text))

    step, cluster = help_of("evaluate"), help_of("evaluate", "env=cluster")
    assert {"fusion_milp", "m_sct", "joint_milp"} <= words_of(step)
    assert not {"srtf", "gittins", "ppo_cluster", "expert", "workload"} & words_of(step)
    assert {"srtf", "gittins", "checkpoint"} <= words_of(cluster)
    assert not {"fusion_milp", "m_sct", "ppo_cluster", "topology"} & words_of(cluster)
    assert "cluster.gpus_per_node=8     GPUs of each" in cluster
    assert "agent.coarse=[8, 12]        groups of the coarse models" in help_of(
        "plan", "agent=fusion_milp"
    )
    assert "cluster_known" in help_of("train", "+experiment=cluster_unknown")
    assert "cluster_known" not in help_of("compare")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("task=environment agent=ppo_bandwidth seed=7", "agent.learning_rate=0.001 "),
        ("task=environment agent=ppo_bandwidth agent.episodes=9", "agent.episodes=2 "),
        ("+experiment=cluster_unknown agent=ppo_cluster", "agent.anneal_steps=100000 "),
    ],
)
def test_help_has_the_values_that_a_run_has(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the command's own file, and of a recipe, over those of the option."""
    assert main(["train", *words.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"\n  {line}" in text
    assert "\n  seed=0 " in text


def test_help_for_an_option_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "agent=hefft", "--help"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown value agent=hefft (did you mean heft")


def test_a_model_of_a_file_of_its_own_is_listed_beside_the_perceptron(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = {**GROUPS["model"], "mine": "models.layout:MineConfig"}
    monkeypatch.setattr(config_source, "GROUPS", {**GROUPS, "model": models})
    assert fitting("model", "train") == ["mine", "perceptron"]
    assert "mine" not in fitting("model", "train_cluster")


def test_an_extra_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_torch(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("experiments.run.job.get_class", without_torch)
    assert main(["train"]) == 2
    message = "error: 'train' needs the extra 'train': pip install 'meshwright[train]'\n"
    assert capsys.readouterr().err == message


def test_every_extra_brings_its_modules() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, core = project["optional-dependencies"], project["dependencies"]
    for module, extra in EXTRAS.items():
        name = {"hydra_plugins": "hydra-optuna-sweeper", "sklearn": "scikit-learn"}.get(
            module, module.replace("_", "-")
        )
        assert any(x.startswith(name) for x in extras[extra]), module
        assert name not in {re.split(r"\W", x.replace("-", "_"))[0] for x in core}


def test_options_of_ones_own(
    own_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = ["plan", "--config-dir", str(own_folders), "agent=own_heft", "env=placement_toy"]
    assert main(["plan", "agent=own_heft"]) == 2
    assert "unknown value agent=own_heft" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/meshwright", *words, "hydra.run.dir=run"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(command, "end_at_once_on_signals", lambda: None)
    assert main() == 0
    found = read_json(tmp_path / "run/result.json")
    assert found["agent"] == "own_heft"
    command_line = found["provenance"]["command"]
    assert command_line.startswith(f"meshwright plan --config-dir {own_folders} agent=own_heft")
    assert main([*words, "--help"]) == 0
    assert "own_heft" in capsys.readouterr().out


def test_a_folder_of_options_is_there_and_takes_no_name_twice(own_folders: Path) -> None:
    with refusal("there is no such folder"):
        take_config_folders([str(own_folders / "missing")])
    for name in (
        "agent/heft",
        "topology/dgx1",
        "agent/emptiest",
    ):  # a row, another, a file
        (own_folders / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (own_folders / "agent/own_heft.yaml").rename(own_folders / f"{name}.yaml")
        with refusal(rf"{name}\.yaml: there is an option of this name"):
            take_config_folders([str(own_folders)])
        (own_folders / f"{name}.yaml").rename(own_folders / "agent/own_heft.yaml")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("meshwright eval", ["evaluate "]),
        ("meshwright plan agent=m_", ["agent=m_etf ", "agent=m_sct "]),
        ("meshwright evaluate env=cluster agent=srt", ["agent=srtf "]),
        ("meshwright evaluate agent=srt", []),
        ("meshwright train env=cluster_m", ["env=cluster_mixed "]),
        ("meshwright plan agent=fusion_milp agent.formulation.g", ["agent.formulation.gap="]),
        ("meshwright plan json=", ["json=true ", "json=false "]),
        ("meshwright --completion ", list(SCRIPTS)),
        ("meshwright nothing x", []),
    ],
)
def test_what_a_shell_offers(line: str, found: list[str]) -> None:
    assert candidates(line) == found


@pytest.mark.slow
def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "meshwright").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m meshwright "$@"\n')
    (tmp_path / "meshwright").chmod(0o755)
    line = "meshwright plan agent=m_"
    asked = f'{SCRIPTS["bash"]}\nCOMP_LINE="{line}" COMP_POINT={len(line)}; _meshwright\n'
    done = in_a_process(
        "bash", "-c", asked + 'printf "%s|" "${COMPREPLY[@]}"',
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )  # fmt: skip
    assert done.stdout == "m_etf |m_sct |", done.stderr


def test_an_extra_that_a_run_comes_to_need_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def needs_torch(*_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'torch._C'", name="torch._C")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.network.flows.read_flow_file", needs_torch)
    assert main(["evaluate", "flows=flows.csv", "hydra.run.dir=run"]) == 2
    message = "error: 'evaluate' needs the extra 'train': pip install 'meshwright[train]'\n"
    assert capsys.readouterr().err == message
    assert not (tmp_path / "run").exists()
