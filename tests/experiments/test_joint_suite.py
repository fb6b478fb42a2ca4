"""`suite=joint`: its figures on made-up outcomes, and a tiny run from plans to the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from in_this_process import cells_in_this_process
from layered_step import layered_step

from envs.cost import RooflineCost
from envs.files import read_json
from envs.graphs.storage import save_graph
from envs.step.fair import Fair
from envs.step.order import OneFOneB
from envs.step.problem import StepProblem
from experiments.pictures.step import AnytimeCurve
from experiments.run.app import run_job
from experiments.step.plan_file import read_plan
from experiments.step.problem import topology_file
from experiments.step.suites.cell import Cases, Outcome, PlanCell
from experiments.step.suites.joint import FAIR, UNIFORM, JointSuite
from tests.paths import CONF
from tests.refusal import refusal

CASES = Cases(
    problems={"makespan": []}, graphs={"g": [], "h": []}, topologies={"four": [], "eight": []}
)


def suite(**changed: Any) -> JointSuite:
    arguments: dict[str, Any] = {
        "title": "joint", "cases": [CASES], "methods": {"new": ["agent=a"]},
        "uniform": ["agent=b"], "placed": {"other": ["agent=c"]}, "fair": ["agent=d"],
        "budget_s": 5,
    }  # fmt: skip
    return JointSuite(**{**arguments, **changed})


def outcome(seconds: float, bound: float = 0.5) -> Outcome:
    curve = AnytimeCurve(((0.1, seconds),), 5.0)
    return Outcome(seconds, bound, 5.0, "feasible", "", 500, "s", 1.0, curve)


def answers(
    cells: list[PlanCell], found: Mapping[tuple[str, str], Mapping[str, float]]
) -> dict[PlanCell, Outcome]:
    """`found` by (graph, topology) and agent; nothing else could be run."""
    return {
        cell: outcome(known[cell.agent])
        if cell.agent in (known := found.get((cell.case.graph, cell.case.topology), {}))
        else Outcome.failed("does not fit")
        for cell in cells
    }


FOUND = {
    ("g", "four"): {UNIFORM: 10.0, "other": 9.0, "new": 8.0, FAIR: 7.5},
    ("h", "four"): {UNIFORM: 10.0, "other": 9.0, "new": 10.0, FAIR: 10.0},
    ("g", "eight"): {UNIFORM: 10.0, "other": 9.0, "new": 9.0, FAIR: 9.5},
}


def test_fair_sharing_needs_all_other_plans_of_its_case() -> None:
    cells = suite().cells()
    assert [cell.agent for cell in cells[:4]] == [UNIFORM, "other", "new", FAIR]
    assert len(cells) == 16
    for start in range(0, 16, 4):
        made, fair = cells[start : start + 3], cells[start + 3]
        assert fair.needs == tuple(made)
        files = [f"'$CELLS/{cell.folder}/plan.json'" for cell in made]
        assert fair.agent_overrides == ("agent=d", f"problem.plans=[{','.join(files)}]")


def test_reductions_stand_against_both_references() -> None:
    one = suite()
    report = one.report(answers(one.cells(), FOUND))
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    found = {(row["graph"], row["topology"]): row["reduction"]["new"] for row in rows}
    assert found["g", "four"] == {UNIFORM: pytest.approx(0.2), FAIR: pytest.approx(-1 / 15)}
    assert found["h", "four"] == {UNIFORM: 0.0, FAIR: 0.0}
    assert found["g", "eight"] == {UNIFORM: pytest.approx(0.1), FAIR: pytest.approx(1 / 19)}
    assert all(math.isnan(x) for x in found["h", "eight"].values())
    spread = {(row[1], row[2]): row[3:] for row in report.tables[1].rows}
    assert spread[UNIFORM, "four"] == ("2", "+20.0%", "+10.0%", "+0.0%", "yes")
    assert spread[UNIFORM, "all"] == ("3", "+20.0%", "+10.0%", "+0.0%", "yes")
    assert spread[FAIR, "all"] == ("3", "+5.3%", "+0.0%", "-6.7%", "worse in 1")
    assert report.headline[f"best reduction of new against {UNIFORM}"] == pytest.approx(0.2)
    assert report.headline[f"worst reduction of new against {FAIR}"] == pytest.approx(-1 / 15)
    assert report.tables[0].rows[0][-2:] == ("500 ms", "+1500.0%")


def test_what_does_not_fit_is_shown_and_counted_nowhere() -> None:
    one = suite()
    report = one.report(answers(one.cells(), FOUND))
    assert report.tables[2].rows == [("h on eight", "does not fit")]
    assert report.tables[0].rows[-1][2:5] == ("no plan", "no plan", "no plan")
    (axes,) = report.figures["joint.png"].axes
    assert [text.get_text() for text in axes.get_yticklabels()][-1] == "h on eight"
    dots = np.array([bars[0].get_xdata() for bars in axes.containers[:2]], dtype=np.float64)
    assert np.allclose(dots[:, :3], [[20.0, 10.0, 0.0], [-100 / 15, 100 / 19, 0.0]])
    assert np.isnan(dots[:, 3]).all()


def test_half_a_row_says_what_is_missing() -> None:
    one = suite()
    known = {key: dict(values) for key, values in FOUND.items()}
    del known["g", "four"][FAIR]
    report = one.report(answers(one.cells(), known))
    assert report.tables[2].rows[0] == ("g on four", f"{FAIR}: does not fit")
    spread = {(row[1], row[2]): row[3:] for row in report.tables[1].rows}
    assert spread[UNIFORM, "all"][0] == "3"
    assert spread[FAIR, "all"][0] == "2"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"methods": {FAIR: []}}, FAIR),
        ({"placed": {"new": []}}, "new"),
        ({"budget_s": 0}, "budget_s"),
        ({"methods": []}, "methods"),
    ],
)
def test_a_faulty_suite_is_named(changed: dict[str, Any], word: str) -> None:
    with refusal(word):
        suite(**changed)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the suite in `conf` on one small graph, two cells at a time."""
    work = tmp_path_factory.mktemp("joint")
    save_graph(layered_step(6, 2), work / "graph.npz")
    document = yaml.safe_load((CONF / "suite/joint.yaml").read_text())
    document["cases"][0]["graphs"] = {"layers": [f"graph={work / 'graph.npz'}"]}
    document["cases"][0]["topologies"] = {"planes_4x1": ["topology=planes_4x1"]}
    document["budget_s"] = 1
    (work / "suite.yaml").write_text(yaml.safe_dump(document))
    arguments = [f"suite={work / 'suite.yaml'}", "workers=2", f"hydra.run.dir={work / 'run'}"]
    with cells_in_this_process():
        assert run_job("benchmark", arguments) == 0
    return work / "run"


def test_a_run_comes_to_a_row_and_fair_sharing_has_the_best_of_all_plans(run: Path) -> None:
    (row,) = read_json(run / "table.json")["rows"]
    times = row["step_time_s"]
    assert set(times) == {UNIFORM, FAIR, "joint_milp", "single_port"}
    assert row["lower_bound_s"] <= min(times.values())
    wanted = 1.0 - times["joint_milp"] / times[UNIFORM]
    assert row["reduction"]["joint_milp"][UNIFORM] == pytest.approx(wanted, abs=1e-8)
    assert (run / "joint.png").is_file()
    step = problem_of(run)
    fair = Fair(name="fair", multipath=True).simulator(step)
    for folder in (run / "cells").iterdir():
        if (folder / "plan.json").exists():
            placed = read_plan(folder / "plan.json", step, OneFOneB())
            played = fair.step_time(placed.placement.device, placed.order)
            assert times[FAIR] <= played * (1 + 1e-9)


def problem_of(run: Path) -> StepProblem:
    """What the cells were asked about."""
    topology = topology_file(str(CONF / "topology/planes_4x1.yaml"))
    return StepProblem.build(layered_step(6, 2), topology, RooflineCost())


def test_a_cell_that_needs_another_one_than_are_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = suite().cells()[3:]
    monkeypatch.setattr(JointSuite, "cells", lambda self: without)
    with refusal("needs a cell"):
        suite().grid(tmp_path, 0)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["problem=shared", "agent=shared_placement"], "problem.plans"),
        (["problem=shared", "agent=shared_placement", "problem.plans=[no.json]"], "no.json"),
        (["problem=shared", "agent=shared_placement", "problem.plans=[]"], "plans"),
        (["problem=shared", "agent=heft", "problem.plans=[no.json]"], "does not plan"),
    ],
)
def test_plans_to_start_from_are_asked_for(
    arguments: list[str], word: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_graph(layered_step(3, 1), work / "graph.npz")
    asked = [*arguments, "graph=graph.npz", "topology=planes_4x1", "hydra.run.dir=run"]
    assert run_job("plan", asked) == 2
    assert word in capsys.readouterr().err
