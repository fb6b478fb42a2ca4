"""The engine under every sweep: cells once each, after what they need, and again after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envs.errors import InputError
from envs.files import read_json
from experiments.run.one_run import RunConsole
from experiments.run.provenance import Provenance
from experiments.study import grid
from experiments.study.display import ProgressDisplay
from experiments.study.grid import AppCell, Cell, FunctionCell, Grid, Outcomes, quoted
from experiments.study.processes import LocalProcesses, Running, Work, WorkerLost, wait_until_free
from tests.refusal import refusal

FINISH = (
    "import json, pathlib; pathlib.Path({0!r}, 'result.json').write_text(json.dumps({{'n': 1}}))"
)


@dataclass(frozen=True, eq=False)
class Script(AppCell):
    """A cell that runs a Python text in place of an app, in which {0} is its folder."""

    script: str = FINISH

    def command(self) -> list[str]:
        super().command()
        self.folder.mkdir(exist_ok=True)
        return [sys.executable, "-c", self.script.format(str(self.folder))]


def script(folder: Path, text: str = FINISH, **more: Any) -> Script:
    return Script(folder.name, "nothing", ("a=b",), folder, script=text, **more)


@pytest.fixture
def display() -> Iterator[ProgressDisplay]:
    with ProgressDisplay(RunConsole(width=300)) as made:
        yield made


def run(cells: list[Cell], display: ProgressDisplay, workers: int = 2) -> Outcomes:
    return Grid(LocalProcesses(workers), Provenance(0, {})).run(cells, display)


def test_what_is_done_is_not_done_again(tmp_path: Path, display: ProgressDisplay) -> None:
    cells: list[Cell] = [script(tmp_path / name) for name in ("one", "two")]
    assert run(cells, display).documents == {cell: {"n": 1} for cell in cells}
    (tmp_path / "two" / "result.json").unlink()
    written = (tmp_path / "one" / "result.json").stat().st_mtime_ns
    again = run(cells, display)
    assert set(again.documents) == set(cells)
    assert (tmp_path / "one" / "result.json").stat().st_mtime_ns == written
    assert (tmp_path / "two" / "result.json").exists()


def test_a_cell_of_other_inputs_is_done_again(tmp_path: Path, display: ProgressDisplay) -> None:
    first = script(tmp_path / "one")
    run([first], display)
    assert first.read() is not None
    assert replace(first, overrides=("a=c",)).read() is None
    other = script(tmp_path / "two", needs=(first,))
    assert other.key != replace(other, needs=()).key


@pytest.mark.parametrize("name", ["run", "it's one"])
def test_a_run_folder_may_be_moved(tmp_path: Path, display: ProgressDisplay, name: str) -> None:
    def cells(folder: Path) -> list[Cell]:
        first = script(folder / "durations" / "seed_0")
        words = (f"path={quoted(first.folder / 'durations')}",)
        second = replace(script(folder / "small" / "seed_0", needs=(first,)), overrides=words)
        words = (f"runs=[{quoted(second.folder)}]", f"path={folder}-else/graph")
        third = replace(script(folder / "small" / "curves", needs=(second,)), overrides=words)
        return [first, second, third]

    (tmp_path / name).mkdir()
    run(cells(tmp_path / name), display)
    (tmp_path / name).rename(tmp_path / "moved")
    moved = cells(tmp_path / "moved")
    moved[2] = replace(
        moved[2], overrides=(moved[2].overrides[0], f"path={tmp_path / name}-else/graph")
    )
    assert all(cell.read() is not None for cell in moved)


def test_a_result_of_other_inputs_is_never_removed(
    tmp_path: Path, display: ProgressDisplay
) -> None:
    first = script(tmp_path / "one")
    run([first], display)
    for other in (replace(first, overrides=("a=c",)), replace(first, resumable=True, app="other")):
        with refusal("move or delete it"):
            run([script(tmp_path / "two"), other], display)
        with refusal("move or delete it"):
            other.command()
    assert first.read() is not None
    assert not (tmp_path / "two").exists()


def test_another_version_does_all_again(
    tmp_path: Path, display: ProgressDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = script(tmp_path / "one")
    call = FunctionCell("call", lambda: {"n": 2}, tmp_path / "cache", {"x": 1})
    run([cell, call], display)
    monkeypatch.setattr(grid, "VERSION", grid.VERSION + 1)
    assert cell.read() is None
    assert call.read() is None


def test_a_cell_waits_for_those_it_needs(tmp_path: Path, display: ProgressDisplay) -> None:
    slow = f"import time; time.sleep(0.3); {FINISH}"
    first = script(tmp_path / "first", slow)
    reads = "import pathlib; assert pathlib.Path({0!r}, '../first/result.json').exists(); "
    second = script(tmp_path / "second", reads + FINISH, needs=(first,))
    assert not run([first, second], display).faults


def test_a_fault_stops_those_that_need_it_alone(
    tmp_path: Path, display: ProgressDisplay, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = script(tmp_path / "bad", "import sys; print('error: no such thing'); sys.exit(2)")
    after, last = (script(tmp_path / n, needs=(need,)) for n, need in [("after", bad), ("x", bad)])
    last = replace(last, needs=(after,))
    other = script(tmp_path / "other")
    found = run([bad, after, last, other], display)
    assert set(found.documents) == {other}
    assert {cell.name: (f.reason, f.exit_code) for cell, f in found.faults.items()} == {
        "bad": ("no such thing", 2)
    }
    assert found.faults_line() == f"bad: no such thing (log: {tmp_path / 'bad.log'})"
    assert "bad: failed: no such thing" in capfd.readouterr().out
    assert not (tmp_path / "after").exists()


def test_a_failure_that_may_be_is_an_outcome(tmp_path: Path, display: ProgressDisplay) -> None:
    bad = script(tmp_path / "bad", "import os; os.abort()", may_fail=True)
    after = script(tmp_path / "after", needs=(bad,))
    found = run([bad, after], display)
    assert not found.faults
    assert found.documents[bad]["exit_code"] == -6
    assert "ended with code -6" in found.documents[bad]["reason"]
    assert run([bad], display).documents[bad] == found.documents[bad]
    written = read_json(tmp_path / "bad/failure.json")
    assert written["kind"] == "meshwright.failure"


def test_a_cell_that_takes_far_too_long_is_killed(
    tmp_path: Path, display: ProgressDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "GRACE_S", 0.1)
    cell = script(tmp_path / "slow", "import time; time.sleep(60)", budget_s=0.1)
    (fault,) = run([cell], display).faults.values()
    assert fault.exit_code == 137


def test_a_run_without_a_result_is_a_fault(tmp_path: Path, display: ProgressDisplay) -> None:
    (fault,) = run([script(tmp_path / "idle", "pass")], display).faults.values()
    assert "left no result.json" in fault.reason


def test_a_damaged_result_is_named(tmp_path: Path, display: ProgressDisplay) -> None:
    cell = script(tmp_path / "one")
    run([cell], display)
    (tmp_path / "one" / "result.json").write_text("{")
    with refusal("is no result of a cell"):
        run([cell], display)


def test_a_need_that_is_not_run_is_refused(tmp_path: Path, display: ProgressDisplay) -> None:
    first, second = script(tmp_path / "first"), script(tmp_path / "second")
    with refusal("needs a cell"):
        run([replace(second, needs=(first,))], display)


def test_functions_are_kept_by_what_they_depend_on(
    tmp_path: Path, display: ProgressDisplay
) -> None:
    calls: list[int] = []

    def cell(number: int) -> FunctionCell:
        def function() -> dict[str, int]:
            calls.append(number)
            if number < 0:
                raise InputError("is negative", field="number")
            return {"square": number * number}

        return FunctionCell(f"square of {number}", function, tmp_path, {"number": number})

    for _ in range(2):
        cells = [cell(2), cell(3), cell(-1)]
        found = run(list(cells), display)
        assert [found.documents[one]["square"] for one in cells[:2]] == [4, 9]
        assert "is negative" in found.faults_line()
    assert calls == [2, 3, -1, -1]


def test_calls_of_equal_inputs_are_one(tmp_path: Path, display: ProgressDisplay) -> None:
    calls: list[str] = []

    def cell(name: str, **inputs: int) -> FunctionCell:
        def function() -> dict[str, str]:
            calls.append(name)
            return {"by": name}

        return FunctionCell(name, function, tmp_path, inputs)

    cells = [cell("one", version=1), cell("two", version=1), cell("other", version=2)]
    found = run(list(cells), display)
    assert [found.documents[one]["by"] for one in cells] == ["one", "one", "other"]
    assert calls == ["one", "other"]


def test_stopping_reaches_what_the_cells_have_started(
    tmp_path: Path, display: ProgressDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cells that ignore SIGTERM, each with a child; Ctrl-C while both run."""
    monkeypatch.setattr(grid, "STOP_S", 0.3)
    text = (
        "import pathlib, signal, subprocess, sys, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "pathlib.Path({0!r}, 'child').write_text(str(child.pid)); time.sleep(60)"
    )
    cells: list[Cell] = [script(tmp_path / name, text) for name in ("one", "two")]
    files = [tmp_path / name / "child" for name in ("one", "two")]
    rest = time.sleep

    def sleep(seconds: float) -> None:
        rest(seconds)
        if all(file.is_file() and file.read_text() for file in files):
            monkeypatch.setattr(grid.time, "sleep", rest)
            raise KeyboardInterrupt

    monkeypatch.setattr(grid.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        run(cells, display)
    while any(alive(int(file.read_text())) for file in files):
        rest(0.05)


STARTS_ONE = """
import pathlib, sys, time
from experiments.study.processes import LocalProcesses, Work
folder = pathlib.Path(sys.argv[1])
started = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
LocalProcesses(1).start(Work(("-c", started), folder / "one", folder / "one.log"))
time.sleep(60)
"""


@pytest.mark.parametrize("victim", ["starter", "guard"])
def test_a_cell_ends_with_the_grid_that_is_killed(tmp_path: Path, victim: str) -> None:
    """SIGKILL ends the process of the grid, or the one that guards the cell, without a word."""
    starter = subprocess.Popen([sys.executable, "-c", STARTS_ONE, str(tmp_path)])
    log, lock = tmp_path / "one.log", tmp_path / "one.lock"
    cell = int(soon(lambda: log.exists() and log.read_text().strip()))
    guard = int(Path(f"/proc/{cell}/stat").read_text().rpartition(")")[2].split()[1])
    with refusal("held by another run"):
        wait_until_free(lock, 0.0)
    os.kill({"starter": starter.pid, "guard": guard}[victim], signal.SIGKILL)
    soon(lambda: not alive(cell) and not alive(guard))
    wait_until_free(lock, 60.0)
    starter.kill()
    starter.wait()


def soon(found: Callable[[], Any]) -> Any:
    """What is found in the end."""
    while not (value := found()):
        time.sleep(0.02)
    return value


class Losing(LocalProcesses):
    """An executor whose workers are lost so many times before one stays."""

    losses = 2

    def start(self, work: Work) -> Running:
        started = super().start(work)
        if type(self).losses:
            type(self).losses -= 1
            started.kill()
            return Lost()
        return started


class Lost:
    def poll(self) -> int | None:
        raise WorkerLost("its machine died")

    def stop(self) -> None: ...

    def kill(self) -> None: ...


@pytest.mark.parametrize("losses", [2, grid.LOSSES + 1])
def test_a_cell_whose_worker_is_lost_is_begun_again(
    tmp_path: Path,
    display: ProgressDisplay,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    losses: int,
) -> None:
    monkeypatch.setattr(Losing, "losses", losses)
    cell = script(tmp_path / "one")
    found = Grid(Losing(1), Provenance(0, {})).run([cell], display)
    assert found.losses == {cell: losses}
    printed = capfd.readouterr().out
    assert "one: lost its worker (its machine died), is begun again (2 of 3)" in printed
    if losses > grid.LOSSES:
        assert found.faults_line().startswith("one: lost 4 workers (its machine died)")
    else:
        assert found.documents == {cell: {"n": 1}}


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_log_of_a_run_that_goes_on_is_kept(tmp_path: Path, display: ProgressDisplay) -> None:
    bad = script(tmp_path / "bad", "import sys; print('error: no such thing'); sys.exit(2)")
    run([bad], display)
    silent = replace(bad, script="import sys; sys.exit(2)")
    (fault,) = run([silent], display).faults.values()
    assert "ended with code 2" in fault.reason
    run([bad], display)
    assert (tmp_path / "bad.log").read_text().count("no such thing") == 2


def test_a_killed_app_begins_again_or_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "it's one"
    rest = folder / "metrics.csv"
    folder.mkdir()
    rest.write_text("")
    whole = AppCell("whole", "compare", ("a=b",), folder)
    with refusal(r"it holds metrics\.csv"):
        whole.command()  # no cell has begun here: it is somebody's
    whole.beside("key").write_text("of another release")
    assert whole.command()[1:] == [
        "-m", "experiments.compare", "a=b", f"hydra.run.dir={quoted(folder)}",
    ]  # fmt: skip
    assert not rest.exists()
    assert "\\'" in quoted(folder)
    (folder / "checkpoints" / "iteration_000010").mkdir(parents=True)
    (folder / "checkpoints" / "iteration_000010" / "state.json").write_text("{}")
    going = replace(whole, resumable=True)
    assert going.command()[3:] == [f"resume={quoted(folder)}"]
    assert replace(going, overrides=("a=c",)).command()[3] == "a=c"
    assert not folder.exists()
