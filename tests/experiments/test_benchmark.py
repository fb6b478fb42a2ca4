"""Suites over real runs: every cell once, also after a kill, and nothing runs before its check."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_this_process import cells_in_this_process
from layered_step import layered_step
from PIL import Image

from envs.files import read_json
from envs.graphs.storage import save_graph
from experiments.run.app import run_job
from tests.paths import ROOT

Document = dict[str, Any]


def suite(graph: Path) -> Document:
    """Three agents on one graph, and a graph that is left out without published data."""
    cases = {
        "_target_": "experiments.step.suites.cell.Cases",
        "problems": {"makespan": ["problem=makespan"]},
        "graphs": {
            "layers": [f"graph={graph}"],
            "published": ["graph=$MESHWRIGHT_DATA/graphs/moirai/example-1.xls"],
        },
        "topologies": {"mixed": ["topology=mixed_v100_p100"]},
    }
    part = {"_target_": "experiments.step.suites.placement.Part", "cases": cases}
    return {
        "_target_": "experiments.step.suites.placement.PlacementSuite",
        "title": "Tiny",
        "parts": [
            {**part, "agents": {"random": ["agent=random", "agent.groups=6"]}, "budgets_s": [1]},
            {
                **part,
                "agents": {
                    "contiguous": ["agent=contiguous", "agent.groups=6"],
                    "local_search": ["agent=local_search"],
                },
                "budgets_s": [0.3],
            },
        ],
        "best_known": {"makespan": {"layers": 0.001}},
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a benchmark that was stopped in its second cell."""
    work = tmp_path_factory.mktemp("benchmark")
    save_graph(layered_step(6, 2), work / "graph.npz")
    (work / "suite.yaml").write_text(yaml.safe_dump(suite(work / "graph.npz")))
    folder = work / "run"
    with (
        pytest.MonkeyPatch.context() as patch,
        cells_in_this_process(most=1),
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        patch.delenv("MESHWRIGHT_DATA", raising=False)
        given = [f"suite={work / 'suite.yaml'}", "seed=5", f"hydra.run.dir={folder}"]
        assert run_job("benchmark", given) == 130
    words = said.getvalue().removeprefix("interrupted: ").removesuffix(" goes on with it\n")
    assert words.partition(" -m ")[2] == f"experiments.benchmark resume={folder}"
    return folder


def results(folder: Path) -> dict[str, int]:
    """When the result of each cell was written, in nanoseconds."""
    found = sorted((folder / "cells").glob("*/result.json"))
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


@pytest.fixture(scope="module")
def resumed(killed: Path) -> tuple[dict[str, int], Document, str]:
    """The results before the run went on, its result, and what it printed."""
    before, printed = results(killed), io.StringIO()
    (killed / "cells" / "half").mkdir()  # nobody's cell
    with (
        pytest.MonkeyPatch.context() as patch,
        cells_in_this_process() as cells,
        contextlib.redirect_stdout(printed),
    ):
        patch.delenv("MESHWRIGHT_DATA", raising=False)
        assert run_job("benchmark", [f"resume={killed}"]) == 0
    assert cells.started == 2
    return before, read_json(killed / "result.json"), printed.getvalue()


def test_a_killed_run_goes_on_with_what_is_left(
    killed: Path, resumed: tuple[dict[str, int], Document, str]
) -> None:
    before, document, _ = resumed
    after = results(killed)
    assert len(before) == 1
    assert len(after) == document["cells"] == 3
    for name, written in before.items():
        assert after[name] == written


def test_what_is_left_out_is_said(
    killed: Path, resumed: tuple[dict[str, int], Document, str]
) -> None:
    _, document, printed = resumed
    assert document["left_out"] == ["published"]
    assert "MESHWRIGHT_DATA" in printed
    assert "Left out without MESHWRIGHT_DATA: published." in (killed / "table.md").read_text()


def test_table_numbers_and_picture_agree_and_tell_where_they_come_from(
    killed: Path, resumed: tuple[dict[str, int], Document, str]
) -> None:
    numbers = read_json(killed / "table.json")
    assert numbers["rows"] == resumed[1]["report"]["rows"]
    assert {row["agent"] for row in numbers["rows"]} == {"random", "contiguous", "local_search"}
    text = (killed / "table.md").read_text()
    for row in numbers["rows"]:
        cells = read_json(killed / "cells" / cell_of(row) / "result.json")
        assert row["objective_s"] == cells["objective_s"]
        assert cells["provenance"]["seed"] == 5
        assert f"{row['objective_s'] * 1e3:.5g} ms" in text
        assert row["gap_to_best_known"] == pytest.approx(row["objective_s"] / 0.001 - 1)
    assert len(numbers["provenance"]["inputs_sha256"]) == 3
    with Image.open(killed / "anytime_1.png") as image:
        assert "seed=5" in dict(image.info)["Comment"]


def cell_of(row: Document) -> str:
    return f"makespan.layers.mixed.{row['agent']}.{'1' if row['agent'] == 'random' else '0_3'}s"


@pytest.fixture
def work(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a graph."""
    save_graph(layered_step(3, 2), work / "graph.npz")
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    return work


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a benchmark that is refused before any cell runs."""
    capsys.readouterr()
    assert run_job("benchmark", list(arguments)) == 2
    line = capsys.readouterr().err.strip()
    assert len(line.splitlines()) == 1
    assert not list(Path().rglob("cells"))
    return line


COMMANDS = {
    "suite=nope": ["suite=nope", "placement", "search_ratio"],
    "suite=none.yaml": ["none.yaml", "no such file"],
    "suite=fractions.Fraction": ["'suite'", "no suite"],
    "workers=0": ["'workers'", "0"],
    "workers=many": ["'workers'", "many"],
    "suite=search_ratio suite.fused_budget_s=0": ["suite.fused_budget_s", "positive"],
    "suite=search_ratio suite.fused=heft": ["'suite.fused'", "mapping"],
    "suite=order_gain suite.budget_s=inf": ["suite.budget_s", "inf"],
    "suite=order_gain suite.budgt_s=3": ["'suite.budgt_s'", "budget_s"],
    "resume=absent": ["absent", "config.yaml"],
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_refused_by_name(
    line: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, *line.split())
    for word in COMMANDS[line]:
        assert word in told


EDITS: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "unknown agent": (
        lambda d: d["parts"][0]["agents"].update(ghost=["agent=ghost"]), ["ghost", "known: alter"],
    ),
    "unknown key of an agent": (
        lambda d: d["parts"][0]["agents"].update(random=["agent=random", "agent.depth=3"]),
        ["random", "agent.depth", "groups"],
    ),
    "a budget of zero": (lambda d: d["parts"][0].update(budgets_s=[0]), ["budgets_s", "0"]),
    "no budgets": (lambda d: d["parts"][0].update(budgets_s=[]), ["budgets_s", "[]"]),
    "a text for an agent": (
        lambda d: d["parts"][0]["agents"].update(random="agent=random"),
        ["random", "not a list"],
    ),
    "no agents": (lambda d: d["parts"][0].update(agents={}), ["agents", "{}"]),
    "an unknown field": (lambda d: d["parts"][0].update(graphs={}), ["suite.parts[0].graphs"]),
    "a best value that is no number": (
        lambda d: d["best_known"]["makespan"].update(layers="low"), ["best_known", "low"],
    ),
    "a best value of true": (
        lambda d: d["best_known"]["makespan"].update(layers=True), ["best_known", "True"],
    ),
    "best values in a list": (
        lambda d: d.update(best_known=[0.001]), ["best_known", "0.001", "mapping"],
    ),
    "a number for a label": (
        lambda d: d["parts"][0].update(agents={7: ["agent=random"]}), ["agents", "7", "text"],
    ),
    "a budget of an agent's own": (
        lambda d: d["parts"][0]["agents"].update(random=["agent=random", "budget_s=3"]),
        ["random", "budget_s=3", "sets it itself"],
    ),
    "two cells of one name": (
        lambda d: d["parts"][1]["agents"].update({"an nealing": [], "an/nealing": []}),
        ["stands twice", "nealing"],
    ),
    "only graphs that are not there": (
        lambda d: [part["cases"]["graphs"].pop("layers") for part in d["parts"]], ["no cells"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", EDITS)
def test_a_suite_file_is_refused_with_its_record(
    fault: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, words = EDITS[fault]
    document = json.loads(json.dumps(suite(work / "graph.npz")))
    edit(document)
    (work / "suite.yaml").write_text(yaml.safe_dump(document))
    line = refused(capsys, "suite=suite.yaml")
    for word in words:
        assert word in line


def test_a_key_that_stands_twice_in_a_suite_file_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(json.dumps(suite(work / "graph.npz")))
    (work / "suite.yaml").write_text(yaml.safe_dump(document) + "title: again\n")
    line = refused(capsys, "suite=suite.yaml")
    for word in ("suite.yaml", "line ", "'title'", "twice"):
        assert word in line


def test_a_resumed_run_keeps_its_suite(
    killed: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, f"resume={killed}", "suite=order_gain")
    assert "'suite'" in line


@pytest.mark.proof
def test_a_benchmark_that_is_killed_in_real_processes_goes_on(tmp_path: Path) -> None:
    save_graph(layered_step(6, 2), tmp_path / "graph.npz")
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite(tmp_path / "graph.npz")))
    kept = {name: value for name, value in os.environ.items() if name != "MESHWRIGHT_DATA"}
    settings: dict[str, Any] = {
        "cwd": tmp_path, "env": {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
    }  # fmt: skip
    command = [sys.executable, "-m", "experiments.benchmark"]
    given = ["suite=suite.yaml", "hydra.run.dir=run"]
    with subprocess.Popen([*command, *given], start_new_session=True, **settings) as process:
        while not results(tmp_path / "run"):
            assert process.poll() is None, "the benchmark ended by itself"
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for group in (process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    before = results(tmp_path / "run")
    assert 1 <= len(before) < 3
    subprocess.run([*command, "resume=run"], check=True, **settings)
    after = results(tmp_path / "run")
    assert len(after) == 3
    assert before.items() <= after.items()


def test_a_cell_that_is_refused_is_a_row_with_its_reason(work: Path) -> None:
    save_graph(layered_step(600, 1), work / "graph.npz")  # fits nowhere
    document = suite(work / "graph.npz")
    document["parts"] = document["parts"][:1]
    (work / "suite.yaml").write_text(yaml.safe_dump(document))
    arguments = ["suite=suite.yaml", "hydra.run.dir=run"]
    with cells_in_this_process():
        assert run_job("benchmark", arguments) == 0
    (row,) = read_json(work / "run/table.json")["rows"]
    assert (row["feasible"], row["status"], row["objective_s"]) == (False, "failed", None)
    assert "does not fit" in row["reason"]
    assert "does not fit" in (work / "run" / "table.md").read_text()
    failure = read_json(work / "run/cells/makespan.layers.mixed.random.1s/failure.json")
    assert failure["exit_code"] == 2
