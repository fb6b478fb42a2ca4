"""A process ends as it should: at a signal, on a full disk, in a locale that knows ASCII alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envs.graphs.storage import save_graph
from tests.experiments.commands import environment
from tests.experiments.layered_step import layered_step

JOBS = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,5,10,2\n"
WAITS = 'import time; print("loading", flush=True); time.sleep(3600)'
DEEP = """
import hashlib, subprocess, sys
from agents.step.problems import StepPlanning
class Deep:
    '''Is long in C, with a process of its own.'''
    solves = (StepPlanning,)
    def solve(self, problem, budget, start=()):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "left behind"])
        print("deep", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


def started(
    work: Path, *words: str, more: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=work,
        env={**environment(work), **(more or {})},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """What it had said by its end on both streams, but for that its modules loaded for long."""
    out, err = process.communicate()
    return out, [line for line in err.splitlines() if not line.startswith("loading: ")]


SUMMARY = ("experiments.trace", "trace=jobs.csv", "action.picture=false", "hydra.run.dir=run")


def test_a_full_disk_behind_standard_output_is_one_line(work: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = started(work, *SUMMARY, stdout=full)
    os.close(full)
    _, (message,) = ended(process)
    assert process.returncode == 2, message
    assert message.startswith("error: ")
    assert "No space left on device" in message


@pytest.mark.parametrize(
    ("words", "module", "number"),
    [
        (SUMMARY, "numpy", signal.SIGINT),
        (SUMMARY, "socket", signal.SIGINT),
        (("meshwright", "trace"), "inspect", signal.SIGINT),
        pytest.param(SUMMARY, "numpy", signal.SIGTERM, marks=pytest.mark.proof),
    ],
)
def test_a_signal_while_modules_load_ends_the_process(
    work: Path, words: Sequence[str], module: str, number: int
) -> None:
    (work / f"{module}.py").write_text(WAITS)  # found before the one that is installed
    process = started(work, *words)
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(number)
    (message,) = ended(process)[1]
    assert message.startswith("interrupted while loading: ")
    assert process.returncode == 128 + number


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (SUMMARY, "NUMBA_NUM_THREADS"),
        (("meshwright", "trace", "trace=jobs.csv"), "POLARS_MAX_THREADS"),
    ],
)
def test_no_number_of_threads_is_one_line(work: Path, words: Sequence[str], variable: str) -> None:
    for value in ("0", "all"):
        _, (message,) = ended(process := started(work, *words, more={variable: value}))
        assert message.startswith(f"error: environment variable {variable}: '{value}'")
        assert process.returncode == 2


@pytest.mark.parametrize(
    ("around", "code", "said"),
    [
        ("{command} json=true | head -c 0; exit ${{PIPESTATUS[0]}}", 130, ""),
        ("{command} json=true >&-", 2, "error: config key 'json'"),
        pytest.param("{command} >&-", 0, "", marks=pytest.mark.proof),
        ("mkdir gone && cd gone && rmdir ../gone && {command}", 2, "error: the working folder"),
    ],
)
def test_what_is_around_a_run_is_no_traceback(
    work: Path, around: str, code: int, said: str
) -> None:
    command = around.format(command=f"{sys.executable} -m {' '.join(SUMMARY)}")
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=work,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "error" in line][:1] == (
        [line for line in done.stderr.splitlines() if said and line.startswith(said)]
    )


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_deep_in_a_solver_ends_it_and_its_processes(work: Path, number: int) -> None:
    (work / "somebody.py").write_text(DEEP)
    save_graph(layered_step(3, 2), work / "graph.npz")
    asked = ("graph=graph.npz", "topology=mixed_v100_p100", "agent=somebody.Deep")
    process = started(work, "experiments.plan", *asked, "hydra.run.dir=run")
    assert process.stdout is not None
    assert "deep" in process.stdout.readline()
    process.send_signal(number)
    _, message = ended(process)  # when nobody holds the pipes any more
    assert (message, process.returncode) == (["interrupted"], 128 + number)


@pytest.mark.proof
def test_a_locale_of_ascii_alone_is_told(work: Path) -> None:
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    (work / "jöbs.csv").write_text(JOBS)
    asked = ("experiments.trace", "trace=jöbs.csv", "action.picture=false", "hydra.run.dir=run")
    process = started(work, *asked, more=ascii_alone)
    _, (message,) = ended(process)
    assert process.returncode == 2
    assert "PYTHONUTF8=1" in message
    (work / "jobs.csv").write_text(JOBS.replace("a,", "ä,"))  # a name, not a path
    process = started(work, *SUMMARY, more=ascii_alone)
    out, message = ended(process)
    assert (message, process.returncode) == ([], 0), out


@pytest.mark.proof
def test_what_cannot_be_written_is_one_line(work: Path) -> None:
    limited = f"ulimit -f 1; exec {sys.executable} -m {' '.join(SUMMARY)}"
    process = subprocess.Popen(
        ["bash", "-c", limited],
        cwd=work,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, (message,) = ended(process)
    assert process.returncode == 2
    assert "config.yaml: cannot be written (File too large)" in message
