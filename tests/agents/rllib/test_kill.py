"""A run that is killed at any moment and started again is the run that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agents.rllib.toys import rows_of, same_run

pytestmark = [pytest.mark.proof, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("toys.py")
ITERATIONS = 40  # of 8 environments, 5 steps each


def started(folder: Path, runners: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), str(folder), str(40 * ITERATIONS), str(runners)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[3])}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def ended(run: subprocess.Popen[bytes], *codes: int) -> None:
    _, error = run.communicate()
    assert run.returncode in (0, *codes), error.decode()


def killed(folder: Path, runners: int, after_s: float) -> None:
    """Start it, and kill it so long after its first iteration, or the first of this start."""
    metrics = folder / "metrics.csv"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    run = started(folder, runners)
    while run.poll() is None and not (metrics.exists() and metrics.stat().st_mtime_ns > before):
        time.sleep(0.01)
    time.sleep(after_s)
    run.send_signal(signal.SIGKILL)  # nothing where it has ended
    ended(run, -signal.SIGKILL)


@pytest.mark.parametrize(("runners", "kills"), [(0, 5), (2, 2)], ids=["here", "remote"])
def test_a_killed_run_that_is_started_again_is_the_undisturbed_one(
    runners: int, kills: int, tmp_path: Path
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    ended(started(whole, runners))
    for _ in range(kills):
        killed(torn, runners, random.uniform(0.0, 1.0 + 0.5 * runners))
        time.sleep(float(runners))  # the actors end when they miss their driver
    ended(started(torn, runners))
    assert [int(row["iteration"]) for row in rows_of(torn)] == list(range(1, ITERATIONS + 1))
    same_run(torn, whole)
