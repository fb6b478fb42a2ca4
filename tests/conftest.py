"""The tiers of the suite, the order of its tests, and fixtures that every test may use.

quick   `-m "not slow"`: no process, no Ray, no training, no export, no integer program
test    every property, on a sample of its examples
proof   `--hypothesis-profile=proof`: at full strength, and the tests marked `proof`
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from tests import strength

# Two workers share two cores; what they start inherits it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that starts the suite in the background has it ignore Ctrl-C, and what it starts too.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.load_profile(strength.DAILY)

QUICK = "not slow"
# What is slow as a whole. Elsewhere a file or a test carries the mark itself.
SLOW = (
    "tests/agents/rllib",
    "tests/examples",
    "tests/experiments",
    "tests/models/export",
    "tests/models/step/test_pyg.py",
    "tests/proof",
)
SLOW_AS_A_WHOLE = re.compile(r"^pytestmark = .*mark\.(slow|proof)", re.MULTILINE)
STARTS_A_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
running: list[pytest.Item] = []  # the test that is set up, called or torn down


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make quick` does not even import what is slow as a whole."""
    if config.option.markexpr != QUICK:
        return None
    slow = collection_path.as_posix().endswith(SLOW)
    if not slow and collection_path.suffix == ".py":
        slow = bool(SLOW_AS_A_WHOLE.search(collection_path.read_text(encoding="utf-8")))
    return True if slow else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if not strength.at_full_strength():
        left_out = [item for item in items if item.get_closest_marker("proof")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("proof")]
    if hasattr(config, "workerinput"):
        items[:] = two_halves(items)


def two_halves(items: list[pytest.Item]) -> list[pytest.Item]:
    """A half of steps and one of clusters, slow tests first.

    Each of two workers begins with one half and takes over tests from the end of the other's:
    they compile different kernels, and what is made once for a slow file is made by one worker.
    """
    slow_first = sorted(items, key=lambda item: item.get_closest_marker("slow") is None)
    step = [item for item in slow_first if "cluster" not in item.nodeid.split("::")[0]]
    cluster = [item for item in slow_first if "cluster" in item.nodeid.split("::")[0]]
    half = len(items) // 2
    own = len(cluster) - max(0, half - len(step))
    return step[:half] + cluster[own:] + cluster[:own] + step[half:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    running.append(item)
    try:
        return (yield)
    finally:
        running.remove(item)


@pytest.fixture(scope="session", autouse=True)
def processes_are_slow() -> None:
    """A test that starts a process fails until it is marked, whichever tests are run."""
    from experiments.run.provenance import source_commit

    source_commit()  # asks git once a process, for the first test that writes a file
    platform.processor()  # asks `uname` once a process

    def refuse(event: str, _: tuple[Any, ...]) -> None:
        if event in STARTS_A_PROCESS and running and not running[-1].get_closest_marker("slow"):
            pytest.fail("the test starts a process: mark it `slow`")  # nothing catches it

    sys.addaudithook(refuse)


@pytest.fixture(scope="session", autouse=True)
def kernels_are_compiled_in_silence() -> Iterator[None]:
    """However small a problem; a process that a test starts interprets and tells as always."""
    from envs import compilation

    compilation.tier.most_seconds = 0.0
    with compilation.telling(lambda _: None):
        yield


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of planners goes on by a hundredth of a second whenever it is looked at."""
    from envs import compilation

    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(looks) / 100)
    monkeypatch.setattr(compilation, "time", clock)


@pytest.fixture
def says_only_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine no run says that it still runs, or that it compiles."""
    from envs import compilation
    from experiments.run import one_run

    monkeypatch.setattr(one_run, "SILENT_S", 3600.0)
    monkeypatch.setattr(compilation, "SHORT_S", 3600.0)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says_only_what_it_finds: None) -> Path:
    """The working folder, empty; nothing of the tests' command line is written down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    return tmp_path


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of published graphs, traces and oracles named by MESHWRIGHT_DATA."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("needs published data: set MESHWRIGHT_DATA to its folder")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"MESHWRIGHT_DATA={folder} is not a folder")
    return path
