"""A run writes into a folder of its own: nobody's files and no input of its command are lost."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from experiments import plan, trace
from experiments.cluster import trace_actions
from tests.experiments.refusals import content_of

JOBS = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,5,10,2\n"
SUMMARY = ("trace=jobs.csv", "action.picture=false", "hydra.run.dir=run")


@pytest.fixture
def here(work: Path) -> Path:
    (work / "jobs.csv").write_text(JOBS)
    return work


def refused(words: list[str], line: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = content_of(here)
    capfd.readouterr()
    assert trace.main(words) == 2
    assert capfd.readouterr().err.startswith(f"error: {line}")
    assert content_of(here) == before


@pytest.mark.parametrize("name", ["plan.json", "result.json", "notes"])
def test_a_folder_of_somebodys_files_is_refused(
    name: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "jobs.csv").rename(here / name)
    before = content_of(here)
    assert plan.main(["env=placement_toy", "agent=random", "hydra.run.dir=."]) == 2
    err = capfd.readouterr().err
    assert err.startswith("error: .: ")
    assert name in err
    assert content_of(here) == before


def test_hidden_files_are_in_no_ones_way(here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / ".directory").touch()
    assert trace.main([*SUMMARY]) == 0


def test_a_run_that_was_killed_is_begun_again_by_its_command_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trace_actions, "summarise", killed)
        assert trace.main([*SUMMARY]) == 130
    assert {path.name for path in (here / "run").iterdir()} == {"config.yaml", "environment.json"}
    refused([*SUMMARY, "seed=7"], "run: holds a run already", here, capfd)
    held = os.open(here / "run", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    refused([*SUMMARY], "run: another run writes it", here, capfd)
    os.close(held)
    assert trace.main([*SUMMARY]) == 0
    refused([*SUMMARY], "run: holds a run already", here, capfd)


@pytest.mark.parametrize("action", ["convert", "fit"])
def test_an_input_is_never_an_output(
    action: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = {"convert": "other.csv", "fit": "other.yaml"}[action]
    os.link(here / "jobs.csv", here / name)  # one file by two names
    words = ["trace=jobs.csv", f"action={action}", f"action.output={name}", "hydra.run.dir=run"]
    refused(words, f"{name}: config key 'action.output': ", here, capfd)
