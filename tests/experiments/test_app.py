"""The contracts of the apps, over real processes where they are about processes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import environment, ran
from layered_step import layered_step
from refusals import Refuses

from envs.errors import InputError
from envs.files import read_json
from envs.graphs.storage import save_graph
from experiments.command_line import _print_values, run_job
from experiments.evaluate import main
from experiments.reporting.tables import Table
from experiments.run.one_run import Result, Run, RunConsole
from experiments.studies.running import StudyConfig
from tests.envs.topologies import topology_text

PLANNERS = '''
"""Agents of somebody else's package."""
import ctypes, os, time
from agents.placement.baselines import SingleDevice

class Noisy(SingleDevice):
    """Prints in every way there is."""
    def solve(self, problem, budget, start=()):
        print("noise from python")
        os.write(1, b"noise from a descriptor\\n")
        libc = ctypes.CDLL(None)
        libc.puts(b"noise from C")
        libc.fflush(None)
        return super().solve(problem, budget)

class Sleeper(SingleDevice):
    """Never ends."""
    def solve(self, problem, budget, start=()):
        print("asleep", flush=True)
        time.sleep(100)
'''


@pytest.fixture
def work(work: Path) -> Path:
    """A folder with a graph, a package of planners and a cluster that is too small."""
    save_graph(layered_step(6, 2), work / "graph.npz")
    (work / "somebody.py").write_text(PLANNERS)
    (work / "cluster.yaml").write_text(topology_text("t4_pcie"))
    return work


def evaluate(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.evaluate", "graph=graph.npz", *arguments]
    return subprocess.run(
        command,
        check=False,
        cwd=work,
        env=environment(work),
        capture_output=True,
        text=True,
    )


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same folder, as the current one: for runs that need no process of their own."""
    monkeypatch.syspath_prepend(work)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of what is imported from the folder
    monkeypatch.delitem(sys.modules, "somebody", raising=False)
    kept = os.dup(1)  # with json=true an app takes standard output for itself
    yield work
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)


def run_folder(work: Path) -> Path:
    (folder,) = (work / "outputs" / "evaluate").iterdir()
    return folder


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def test_json_on_stdout_is_the_result_file_and_nothing_else(work: Path) -> None:
    done = evaluate(work, "agent=somebody.Noisy", "json=true")
    found = result(done)
    folder = run_folder(work)
    assert done.stdout == (folder / "result.json").read_text()
    for noise in ("noise from python", "noise from a descriptor", "noise from C"):
        assert noise in done.stderr
    assert found["step_time_s"] >= found["lower_bound_s"] > 0
    assert found["feasible"] is True
    assert found["peak_memory_bytes"] > 0
    assert found["seconds"] >= 0
    assert {"schema_version", "units", "provenance"} <= found.keys()
    assert "graph.npz" in found["provenance"]["inputs_sha256"]


def test_the_run_folder_has_the_resolved_config_and_the_versions(here: Path) -> None:
    assert main(["graph=graph.npz", "agent=somebody.Noisy", "seed=5"]) == 0
    folder = run_folder(here)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["seed"] == 5
    assert config["graph"]["path"] == str(here / "graph.npz")
    environment_file = read_json(folder / "environment.json")
    assert "torch" in environment_file["packages"]
    assert environment_file["provenance"]["seed"] == 5


def test_a_plan_that_was_written_simulates_to_the_same_time(here: Path) -> None:
    asked = {"first": "agent=somebody.Noisy", "again": "plan=first/plan.json"}
    first, again = (ran(main, "graph=graph.npz", word, run=run) for run, word in asked.items())
    assert again["step_time_s"] == first["step_time_s"]
    assert again["agent"] is None


def test_free_communication_is_never_slower(here: Path) -> None:
    plan = '{"kind": "meshwright.plan", "schema_version": 1, "placement": {%s}}'
    names = layered_step(6, 2).op_names
    devices = ["server0/V100-16GB/0", "server1/P100-16GB/0"]
    pairs = [f'"{name}": "{devices[int(name.split(".")[-1]) % 2]}"' for name in names]
    (here / "plan.json").write_text(plan % ", ".join(pairs))
    asked = ["graph=graph.npz", "plan=plan.json"]
    ports, free = (
        ran(main, *asked, run="ports"),
        ran(main, *asked, "communication=none", run="free"),
    )
    assert free["step_time_s"] < ports["step_time_s"]


def test_a_model_that_does_not_fit_is_told_with_the_bound_it_violates(
    here: Path, refuses: Refuses
) -> None:
    save_graph(layered_step(600, 1), here / "graph.npz")
    asked = ["graph=graph.npz", "agent=somebody.Noisy", "topology=cluster.yaml", "json=true"]
    refuses("evaluate", asked, "does not fit", "too many")


def test_a_damaged_graph_file_is_named(here: Path, refuses: Refuses) -> None:
    content = (here / "graph.npz").read_bytes()
    (here / "graph.npz").write_bytes(content[: len(content) // 2])
    refuses(main, ["graph=graph.npz", "agent=somebody.Noisy"], "graph.npz")


@pytest.mark.parametrize("written", [(), ("cells/one/result.json",)])
def test_a_late_fault_leaves_what_can_be_resumed(
    here: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    written: tuple[str, ...],
) -> None:
    (here / "run").mkdir()
    (here / "run" / ".of_its_reader.txt").write_text("")
    faults = iter([True, False])

    def task(config: StudyConfig, run: Run) -> Result:
        for name in written:
            (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (run.folder / name).write_text("{}")
        if next(faults):
            raise InputError("a late fault")
        return Result({"resumed": config.resume}, run.provenance)

    monkeypatch.setattr("experiments.command_line.loaded_job", lambda job: (StudyConfig, task))

    def started(*arguments: str) -> int:
        return run_job("study", list(arguments))

    assert started("hydra.run.dir=run") == 2
    assert (here / "run" / "config.yaml").exists() == bool(written)
    assert (here / "run" / ".of_its_reader.txt").exists()
    assert started("resume=run" if written else "hydra.run.dir=run") == 0
    assert "a late fault" in capfd.readouterr().err


def test_a_result_with_a_warning_ends_with_0_and_tells_it(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def task(config: StudyConfig, run: Run) -> Result:
        return Result({"found": 1}, run.provenance, warnings=("nothing was learned",))

    monkeypatch.setattr("experiments.command_line.loaded_job", lambda job: (StudyConfig, task))
    assert ran("study")["warnings"] == ["nothing was learned"]
    assert "warning: nothing was learned\n" in capfd.readouterr().err


def test_paths_are_printed_whole() -> None:
    console, path = RunConsole(file=io.StringIO(), width=40), f"/{'folder/' * 30}plan.json"
    _print_values(console, {"status": "feasible", "plan": path, "gap": float("nan")})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        " status  feasible", f" plan    {path}", " gap     none",
    ]  # fmt: skip
    console.print(Table("T", ("method", "where"), [["heft", path]]).rich())
    assert "…" not in console.file.getvalue()


@pytest.mark.parametrize("width", [52, 80, 132])
def test_no_number_of_a_table_is_broken(width: int) -> None:
    columns = ("policy", "knows", "JCT", "p50", "p99", "mean wait", "slow-down", "in use", "more")
    rows = [["finish_time_fairness", "predictions", "11,957,273", "11,957,274", "295,019", "6,942",
             "1.2", "42.0%", "1,234,567,890,123,456,789"]]  # fmt: skip
    console = RunConsole(file=io.StringIO(), width=width)
    for part in Table("T", columns, rows, "A note.").parts(width):
        console.print(part.rich(width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(cell in text for cell in rows[0])
    assert max(map(len, text.splitlines())) <= max(width, 52)  # a name and a number


def test_an_interrupt_ends_with_130(work: Path) -> None:
    command = [sys.executable, "-m", "experiments.evaluate", "graph=graph.npz",
               "agent=somebody.Sleeper", "json=true"]  # fmt: skip
    # a suite started in the background ignores interrupts, and so would its children
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            command, cwd=work, env=environment(work), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        assert any("asleep" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors
