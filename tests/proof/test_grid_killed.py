"""A grid that is killed again and again, and that loses a machine, comes to the same table."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]

KILLS = 5
COMMAND = (sys.executable, "-m", "experiments.benchmark")
SUITE = "suite=tests.proof.cheap_suite.CheapSuite"


def benchmark(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """The command in a process of its own: it begins, or goes on where it was killed."""
    begun = (folder / "config.yaml").is_file()
    given = (f"resume={folder}",) if begun else (SUITE, f"hydra.run.dir={folder}")
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([*COMMAND, *given, "workers=2", *words], stdout=log, stderr=log)


def table(folder: Path) -> str:
    """What stands below the provenance."""
    return (folder / "table.md").read_text().split("-->", 1)[1]


def at_work(folder: Path) -> list[str]:
    """Command lines of the processes that write below `folder`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(folder).encode() in word for word in words):
            found.append(b" ".join(words).decode())
    return found


def killed(folder: Path, *words: str, rng: random.Random) -> None:
    """Start the grid, kill it alone with SIGKILL while cells run; nothing of it stays."""
    process = benchmark(folder, *words)
    cells = folder / "cells"
    while not any("experiments.evaluate" in line for line in at_work(cells)):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 5.0))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while at_work(cells):
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert benchmark(folder).wait() == 0
    return table(folder)


def test_killed_five_times(tmp_path: Path, undisturbed: str) -> None:
    folder, rng = tmp_path / "run", random.Random(5)
    for _ in range(KILLS):
        killed(folder, rng=rng)
        if (folder / "table.md").exists():
            break
    assert benchmark(folder).wait() == 0
    assert table(folder) == undisturbed


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without CPUs, so that what it runs are the grid's own processes, and two nodes."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made
    ray.shutdown()
    made.shutdown()


def test_killed_and_a_machine_lost(tmp_path: Path, undisturbed: str, cluster: Cluster) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    folder, rng = tmp_path / "run", random.Random(7)
    words = ("executor=ray", f"ray.address={cluster.address}")
    for _ in range(KILLS):
        killed(folder, *words, rng=rng)
    process = benchmark(folder, *words)
    while sum("experiments.evaluate" in line for line in at_work(folder / "cells")) < 4:
        assert process.poll() is None
        time.sleep(0.05)
    cluster.remove_node(nodes[0], allow_graceful=False)
    assert process.wait() == 0
    assert table(folder) == undisturbed
    assert "lost its worker" in folder.with_suffix(".log").read_text()
