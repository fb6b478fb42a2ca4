"""A run says which kernels it compiles and that it is at work; its clock leaves compiling out."""

from __future__ import annotations

import io
import time

import numba
import pytest

from envs.compilation import clock, compiling, kernels_compiled, telling
from experiments.run import heartbeat as module
from experiments.run.heartbeat import RunConsole, heartbeat


def made(name: str) -> object:
    """A kernel that no cache has, called once."""

    def inner(x: float) -> float:
        return x * 3.0 + 1.0

    inner.__name__ = name
    kernel = numba.njit(inner)
    kernel(2.0)
    return kernel


def written(console: RunConsole) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_clock_stands_still_while_kernels_are_compiled() -> None:
    before, real, count = clock(), time.perf_counter(), kernels_compiled()
    inside: list[str | None] = []
    with telling(lambda name: inside.append(compiling())):
        made("slow_to_make")
    took, told = time.perf_counter() - real, clock() - before
    assert kernels_compiled() == count + 1
    assert inside == ["slow_to_make"]
    assert compiling() is None
    assert told < 0.5 * took
    time.sleep(0.02)
    assert clock() - before >= told + 0.02


def test_kernels_that_are_compiled_are_named_and_cached_ones_are_not() -> None:
    console = RunConsole(file=io.StringIO())
    with heartbeat(console, "a test"):
        kernel = made("first")
        kernel(3.0)  # type: ignore[operator]
        made("second")  # too soon for another line
    assert written(console) == ["compiling kernels (once): first"]


def test_a_silent_task_is_told_of_and_one_that_writes_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "EVERY_S", 30.0)
    monkeypatch.setattr(module, "POLL_S", 0.02)
    silent, busy, live = (RunConsole(file=io.StringIO()) for _ in range(3))
    live.live = True
    with heartbeat(silent, "thinking"), heartbeat(busy, "thinking"), heartbeat(live, "thinking"):
        for _ in range(8):
            busy.print("news")
            time.sleep(0.05)
    assert written(silent) == ["thinking: 0 s"]
    assert written(busy) == ["news"] * 8
    assert written(live) == []
