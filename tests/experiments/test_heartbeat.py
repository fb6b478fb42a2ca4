"""What is compiled is said once; a run says that it is at work; its clock leaves compiling out."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

from envs import compilation
from envs.compilation import clock, compiling, telling
from experiments.run import loading
from experiments.run import one_run as module
from experiments.run.one_run import Run, RunConsole, heartbeat
from experiments.run.provenance import Provenance


def made(module: str) -> object:
    """A kernel of a module that no cache has, called once."""

    def inner(x: float) -> float:
        return x * 3.0 + 1.0

    inner.__module__ = module
    kernel = numba.njit(inner)
    kernel(2.0)
    return kernel


def written(console: RunConsole) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def said_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of what was compiled; no compiling is too short."""
    monkeypatch.setenv(compilation.SAID, "")
    monkeypatch.setattr(compilation._watch, "listeners", compilation._watch.listeners[:1])
    monkeypatch.setattr(compilation, "SHORT_S", 0.0)
    monkeypatch.setattr(compilation, "STILL_S", 0.001)
    yield
    for thread in threading.enumerate():
        if thread.name == "compiling":
            thread.join()


@pytest.mark.usefixtures("said_nothing")
def test_the_clock_stands_still_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(compilation, "time", SimpleNamespace(perf_counter=lambda: now))
    before = clock()
    inside: list[str | None] = []

    def message(line: str) -> None:
        nonlocal now
        now += 60.0
        inside.append(compiling())

    with telling(message):
        made("envs.step.simulator")
    assert inside == [compilation.STEP]
    assert compiling() is None
    assert clock() == pytest.approx(before)
    now += 5.0
    assert clock() == pytest.approx(before + 5.0)


@pytest.mark.usefixtures("said_nothing")
def test_what_is_compiled_is_said_once_and_what_is_cached_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = RunConsole(file=io.StringIO())
    with heartbeat(console, "a test"):
        kernel = made("envs.cluster.simulation.loop")
        kernel(3.0)  # type: ignore[operator]
        made("meshwright.agents.cluster.rules")
    message = "compiling what is new of {}, a minute or more where all of it is"
    assert written(console) == [message.format("the cluster simulator")]
    made("agents.step.planner")  # no run: as in Python
    captured = capsys.readouterr()
    assert captured.err.startswith(message.format("the simulator of a training step"))
    assert captured.out == ""
    said = os.environ[compilation.SAID]  # which processes of the run have too
    assert {compilation.CLUSTER, compilation.STEP} <= set(said.split(","))


@pytest.mark.usefixtures("said_nothing")
def test_short_compiling_is_not_worth_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compilation, "SHORT_S", 1e9)
    made("envs.cluster.simulation.loop")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("said_nothing")
def test_what_takes_long_to_compile_is_said_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = compilation._watch
    happened = SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=made)})
    watch.on_start(happened)
    message = ""
    while "still compiling kernels: " not in message:
        message += capsys.readouterr().err
    watch.on_end(happened)
    while watch._watched:
        time.sleep(0.001)


def test_a_command_says_that_it_loads_until_it_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "_loaded", threading.Event())
    monkeypatch.setattr(loading, "LOADING_S", 0.001)
    loading.say_that_it_loads()
    message = ""
    while not message:
        message = capfd.readouterr().err
    assert message == "loading: 0 s since its start\n"
    console = RunConsole(file=io.StringIO())
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    run = Run(Path(), console, Provenance(0, {}), {}, ())
    with heartbeat(console, "main job"):
        run.begin("exporting")
        while not written(console):
            time.sleep(0.001)
    assert loading._loaded.is_set()
    assert written(console)[0] == "main job, exporting: 0 s since its start"


def test_a_silent_task_is_told_of_and_one_that_writes_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module, "SILENT_S", 2.0)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    silent, busy, live = (RunConsole(file=io.StringIO()) for _ in range(3))
    live.live = True
    with heartbeat(silent, "thinking"), heartbeat(busy, "thinking"), heartbeat(live, "thinking"):
        for _ in range(8):
            now += 1.0
            busy.print("news")
            while now >= module.SILENT_S and not written(silent):
                time.sleep(0.001)
    assert written(silent) == ["thinking: 2 s since its start"]
    assert written(busy) == ["news"] * 8
    assert written(live) == []
