"""A run writes into a folder of its own: nobody's files and no input of its command are lost."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from experiments import plan, trace
from experiments.cluster import trace_actions
from tests.experiments.refusals import Refuses

JOBS = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,5,10,2\n"
SUMMARY = ("trace=jobs.csv", "action.picture=false", "hydra.run.dir=run")


@pytest.fixture
def here(work: Path) -> Path:
    (work / "jobs.csv").write_text(JOBS)
    return work


@pytest.mark.parametrize("name", ["plan.json", "result.json", "notes"])
def test_a_folder_of_somebodys_files_is_refused(name: str, here: Path, refuses: Refuses) -> None:
    (here / "jobs.csv").rename(here / name)
    words = ["env=placement_toy", "agent=random", "hydra.run.dir=."]
    assert refuses(plan.main, words, name).startswith("error: .: ")


def test_hidden_files_are_in_no_ones_way(here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / ".directory").touch()
    assert trace.main([*SUMMARY]) == 0


def test_a_run_that_was_killed_is_begun_again_by_its_command_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trace_actions, "summarise", killed)
        assert trace.main([*SUMMARY]) == 130
    assert {path.name for path in (here / "run").iterdir()} == {"config.yaml", "environment.json"}
    refuses(trace.main, [*SUMMARY, "seed=7"], "error: run: holds a run already")
    held = os.open(here / "run", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    refuses(trace.main, SUMMARY, "error: run: another run writes it")
    os.close(held)
    assert trace.main([*SUMMARY]) == 0
    refuses(trace.main, SUMMARY, "error: run: holds a run already")


@pytest.mark.parametrize("action", ["convert", "fit"])
def test_an_input_is_never_an_output(action: str, here: Path, refuses: Refuses) -> None:
    name = {"convert": "other.csv", "fit": "other.yaml"}[action]
    os.link(here / "jobs.csv", here / name)  # one file by two names
    words = ["trace=jobs.csv", f"action={action}", f"action.output={name}", "hydra.run.dir=run"]
    refuses(trace.main, words, f"error: {name}: config key 'action.output': ")
