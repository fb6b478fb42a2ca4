"""The wheel in fresh environments, in a project that has packages of our old names itself.

It needs a package index, and minutes: pip installs the core once, and the extra `train` once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config.verbs import COMMANDS
from tests.paths import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(3600)]
TOY = "env=placement_toy"
SMALL = ["graph=resnet50", "graph.micro_batches=1", "topology=single_v100"]
JOBS = ("trace.format=synthetic", "trace.jobs=40")
IN_CORE: dict[str, list[str]] = {  # verbs that the core runs
    "claims": [],
    "compare": [*JOBS, "cluster.nodes=2", "trace.max_gpus=16", "trace.gpus=16"],
    "allocate": ["agent=fifo", "jobs=4", "slots=6"],
    "evaluate": ["env=cluster", "agent=checkpoint", *JOBS],
    "plan": [TOY, "agent=heft"],
    "dynamic": ["seeds=1", "slots.slots=8"],
    "replay": ["agent=srtf", *JOBS],
    "simulate": ["tensor=2"],
    "study": ["study=placement_quick", "env=placement_toy", "study.budgets=[1]"],
    "synchronise": ["bytes=1MB"],
    "trace": ["action=summary", *JOBS],
}
OF_FILES = {  # verbs whose files are not there
    "calibrate": ["measured.path=nowhere"],
    "coflows": ["input=nowhere"],
    "data_pipeline": ["input=nowhere"],
    "drive": ["partition=gpu", "prefix=x", "checkpoint=nowhere"],
    "report": ["runs=[nowhere]"],
    "packing": ["pods=nowhere", "nodes=nowhere"],
}
NEEDED = {  # verbs that need an extra, with what they are given where it is there
    "asynchronous": ("train", ["text=nowhere"]),
    "capture": ("train", SMALL[:2]),
    "execute": ("train", ["plan=nowhere"]),
    "export": ("train", ["run=trained"]),
    "main": ("train", [*SMALL, "budget_s=5"]),
    "price": ("train", ["problem=k_min_search"]),
    "serve": ("serve", []),
    "train": ("train", [*SMALL, "training.budget_s=5", "hydra.run.dir=trained"]),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, timeout=300)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's project; that its packages are imported would be told."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("agents", "conf", "envs", "experiments", "models"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('of somebody else')\n")
    return folder


def variables() -> dict[str, str]:
    """Those of this process, without its own modules, which pip would take for installed."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def environment(folder: Path, wheel: Path, extras: str) -> Path:
    """The command of a fresh environment."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    asked = [str(folder / "bin/pip"), "install", "--quiet", f"{wheel}{extras}"]
    subprocess.run(asked, check=True, capture_output=True, timeout=1800, env=variables())
    return folder / "bin/meshwright"


def run(command: Path, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [command, *words], check=False, cwd=project, capture_output=True, text=True, timeout=900,
        env=variables(),
    )  # fmt: skip
    assert "Traceback" not in done.stderr, (words, done.stderr)
    return done


def test_every_verb_is_run() -> None:
    assert sorted({**IN_CORE, **OF_FILES, **NEEDED}) == COMMANDS


def test_the_core_runs_its_verbs_and_names_the_extras_of_the_others(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    command = environment(tmp_path / "core", wheel, "")
    for verb, words in IN_CORE.items():
        done = run(command, project, verb, *words)
        assert done.returncode == 0, (verb, done.stderr)
    for verb, words in OF_FILES.items():
        done = run(command, project, verb, *words)
        assert done.returncode == 2, (verb, done.stderr)
        assert "nowhere" in done.stderr
    for verb, (extra, words) in NEEDED.items():
        done = run(command, project, verb, *words)
        assert done.returncode == 2, (verb, done.stderr)
        assert f"needs the extra '{extra}'" in done.stderr


def test_with_train_it_learns_captures_and_exports(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    command = environment(tmp_path / "train", wheel, "[train]")
    for verb in ("train", "export", "capture", "main"):
        done = run(command, project, verb, *NEEDED[verb][1])
        assert done.returncode == 0, (verb, done.stderr)
    for verb in COMMANDS:
        assert run(command, project, verb, "--help").returncode == 0
