"""A run that is killed at any moment and started again is the run that was left alone."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = [pytest.mark.proof, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("toys.py")
ROOT = SCRIPT.parents[3]
TIMES = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}
ITERATIONS = 40
STEPS = 40 * ITERATIONS  # 8 environments, 5 steps each


def started(folder: Path, runners: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), str(folder), str(STEPS), str(runners)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def ended(run: subprocess.Popen[bytes]) -> None:
    _, error = run.communicate()
    assert run.returncode == 0, error.decode()


def killed(folder: Path, runners: int, after_s: float) -> None:
    """Start it, and kill it so long after its first iteration, or the first of this start."""
    metrics = folder / "metrics.csv"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    run = started(folder, runners)
    while run.poll() is None and not (metrics.exists() and metrics.stat().st_mtime_ns > before):
        time.sleep(0.01)
    time.sleep(after_s)
    if run.poll() is None:
        run.send_signal(signal.SIGKILL)
    run.communicate()
    assert run.returncode in (0, -signal.SIGKILL)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


def weights_of(folder: Path) -> list[dict[str, list[float]]]:
    """The last, and the best."""
    last = max((folder / "checkpoints").iterdir())
    return [
        {k: x.tolist() for k, x in load_file(place / "weights.safetensors").items()}
        for place in (last, folder / "best")
    ]


def numbers(rows: list[dict[str, str]]) -> list[int]:
    return [int(row["iteration"]) for row in rows]


def test_a_killed_run_that_is_started_again_is_the_undisturbed_one(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    ended(started(whole, 0))
    for _ in range(5):
        killed(torn, 0, random.uniform(0.0, 1.0))
    ended(started(torn, 0))
    assert numbers(rows_of(torn)) == list(range(1, ITERATIONS + 1))
    assert rows_of(torn) == rows_of(whole)
    assert weights_of(torn) == weights_of(whole)


def test_so_it_is_with_remote_runners(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    ended(started(whole, 2))
    for _ in range(2):
        killed(torn, 2, random.uniform(0.0, 2.0))
        time.sleep(2.0)  # the actors end when they miss their driver
    ended(started(torn, 2))
    assert numbers(rows_of(torn)) == list(range(1, ITERATIONS + 1))
    assert rows_of(torn) == rows_of(whole)
    assert weights_of(torn) == weights_of(whole)
