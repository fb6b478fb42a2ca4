"""The figures of the suites, on outcomes made up for the purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.step.problems import Verdict
from experiments.pictures.step import AnytimeCurve, Panel, draw_anytime
from experiments.step.suites.cell import Case, Cases, Outcome, PlanCell
from experiments.step.suites.contest import Contest
from experiments.step.suites.order_gain import OrderGain
from experiments.step.suites.placement import Part, PlacementSuite
from experiments.step.suites.search_ratio import Ratio, SearchRatio
from tests.refusal import refusal

CASES = Cases(problems={"makespan": []}, graphs={"g": [], "h": []}, topologies={"t": []})
Points = list[tuple[float, float]]


def outcome(points: Points, end: float = 100.0, bound: float = 0.5) -> Outcome:
    """A search with these (seconds, step time) points."""
    curve = AnytimeCurve(tuple(points), end)
    return Outcome(curve.final, bound, end, "feasible", "", 500, "s", 1.0, curve)


def answers(
    cells: list[PlanCell], found: Mapping[tuple[str, str], Outcome]
) -> dict[PlanCell, Outcome]:
    """`found` by (graph, agent); nothing else is feasible."""
    nothing = Outcome(np.inf, 0.1, 1.0, "limit", "no plan was tried", 500, "s", 1.0,
                      AnytimeCurve((), 1.0))  # fmt: skip
    return {cell: found.get((cell.case.graph, cell.agent), nothing) for cell in cells}


FUSED, UNFUSED = "fused", "un-fused"
FUSED_CURVE = AnytimeCurve(((0.5, 10.0), (1.0, 6.0), (20.0, 5.0)), 60.0)
UNFUSED_CURVE = AnytimeCurve(((100.0, 12.0), (400.0, 6.0)), 900.0)


def test_the_ratio_is_that_of_the_times_to_the_same_quality() -> None:
    exact = Ratio.at(6.0, FUSED_CURVE, UNFUSED_CURVE, 900.0)
    assert exact is not None
    assert (exact.value, exact.censored, exact.text()) == (400.0, False, "400x")
    poor = Ratio.at(11.0, FUSED_CURVE, UNFUSED_CURVE, 900.0)
    assert poor is not None
    assert (poor.unfused_s, poor.fused_s) == (400.0, 0.5)


def test_what_the_unfused_search_does_not_reach_is_censored_by_its_limit() -> None:
    ratio = Ratio.at(5.0, FUSED_CURVE, UNFUSED_CURVE, 900.0)
    assert ratio is not None
    assert (ratio.value, ratio.censored, ratio.text()) == (45.0, True, "≥ 45x")
    early = AnytimeCurve(UNFUSED_CURVE.points, 500.0)  # gave up by itself
    ratio = Ratio.at(5.0, FUSED_CURVE, early, 900.0)
    assert ratio is not None
    assert ratio.value == 25.0
    late = AnytimeCurve(UNFUSED_CURVE.points, 990.0)  # came home late
    ratio = Ratio.at(5.0, FUSED_CURVE, late, 900.0)
    assert ratio is not None
    assert ratio.value == 45.0


def test_where_the_fused_search_does_not_come_there_is_no_ratio() -> None:
    assert Ratio.at(4.9, FUSED_CURVE, UNFUSED_CURVE, 900.0) is None


@given(
    st.lists(st.tuples(st.floats(0.01, 99), st.floats(1, 99)), min_size=1, max_size=8),
    st.floats(1, 99),
)
def test_the_time_to_a_quality_is_the_first_that_has_it(points: Points, quality: float) -> None:
    seconds = sorted(at for at, _ in points)
    values = np.minimum.accumulate([value for _, value in points]).tolist()
    curve = AnytimeCurve(tuple(zip(seconds, values, strict=True)), 100.0)
    reached = [at for at, value in curve.points if value <= quality * (1 + 1e-9)]
    assert curve.time_to(quality) == min(reached, default=math.inf)
    assert curve.time_to(curve.final) <= 100.0


def race() -> SearchRatio:
    return SearchRatio(
        title="race", cases=[CASES], fused={FUSED: ["agent=a"]}, fused_budget_s=60,
        unfused={UNFUSED: ["agent=b"]}, unfused_limit_s=900, reference={"other": ["agent=c"]},
        reference_budget_s=60,
    )  # fmt: skip


def test_a_race_reports_every_ratio_and_the_loss() -> None:
    suite = race()
    cells = suite.cells()
    assert len(cells) == 6
    assert [cell.budget_s for cell in cells if cell.agent == UNFUSED] == [900, 900]
    found = {
        ("g", FUSED): outcome(list(FUSED_CURVE.points), 60.0),
        ("g", UNFUSED): outcome(list(UNFUSED_CURVE.points), 900.0),
        ("g", "other"): outcome([(1.0, 4.0)]),
        ("h", FUSED): outcome([(0.5, 3.0)], 60.0),
        ("h", "other"): outcome([(1.0, 3.5)]),
    }
    report = suite.report(answers(cells, found))
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    first, second = rows
    assert [ratio["ratio"] for ratio in first["ratios"]] == [800.0, 400.0, 45.0]
    assert [ratio["censored"] for ratio in first["ratios"]] == [False, False, True]
    assert first["at_fused_plan"]["ratio"] == 45.0
    assert first["at_worse_plan"]["ratio"] == 400.0
    assert first["fused_s_to_unfused_plan"] == 1.0
    assert first["loss_to_best_known"] == pytest.approx(0.25)
    assert second["at_worse_plan"] is None
    assert second["at_fused_plan"] == {
        "step_time_s": 3.0, "fused_s": 0.5, "unfused_s": 1.0, "censored": True, "ratio": 2.0,
    }  # fmt: skip
    assert second["loss_to_best_known"] == 0.0
    # within 2 % of 4.0, the best known, nobody but the reference comes; of 3.0 the fused one alone
    assert [row["near_best_known"] and row["near_best_known"]["ratio"] for row in rows] == [None, 2]
    pair = f"{FUSED} / {UNFUSED}"
    assert report.headline == {f"{pair}: median ratio near the best known": 2.0}
    whole = report.numbers["fused"]
    assert isinstance(whole, dict)
    assert whole[pair]["median_loss_to_best_known"] == pytest.approx(0.125)
    assert whole[pair]["largest_at_worse_plan"]["ratio"] == 400.0
    text = "".join(sheet.markdown() for sheet in report.tables)
    for words in ("≥ 45x", "| 400x |", "+25.0%", "| no plan |", "| 100 to 1000 | 2 | 0 |"):
        assert words in text
    assert report.tables[1].rows[0][2:5] == ("2", "1", "0")


def test_an_opponent_that_alone_comes_near_the_best_is_a_ratio_of_nothing() -> None:
    suite = race()
    found = {
        ("g", FUSED): outcome([(0.5, 6.0)], 60.0),
        ("g", UNFUSED): outcome([(400.0, 5.0)], 900.0),
        ("h", FUSED): outcome([(0.5, 3.0)], 60.0),
        ("h", UNFUSED): outcome([(5.0, 3.0)], 900.0),
    }
    report = suite.report(answers(suite.cells(), found))
    assert report.tables[1].rows[0] == (FUSED, UNFUSED, "2", "1", "2", "0", "0", "10x")
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    assert [row["opponent_alone_near_best_known"] for row in rows] == [True, False]


def test_an_opponent_that_could_not_run_has_no_ratio() -> None:
    suite = race()
    found = {("g", FUSED): outcome(list(FUSED_CURVE.points)), ("g", UNFUSED): Outcome.failed("oh")}
    report = suite.report(answers(suite.cells(), found))
    assert any("no plan: oh" in row for row in report.tables[0].rows)
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    assert rows[0]["ratios"] == []
    assert rows[0]["at_fused_plan"] is None


def test_gaps_are_to_the_best_bound_and_to_the_best_or_published_value() -> None:
    parts = [Part(CASES, {"a": [], "b": []}, [1, 10])]
    suite = PlacementSuite("gaps", parts, {"makespan": {"h": 2.0}})
    cells = suite.cells()
    assert len(cells) == 8
    found = {
        ("g", "a"): outcome([(0.1, 4.0)], bound=1.0),
        ("g", "b"): outcome([(0.1, 5.0)], bound=2.5),
        ("h", "a"): outcome([(0.1, 3.0)]),
    }
    report = suite.report(answers(cells, found))
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    gaps = {(row["graph"], row["agent"]): row for row in rows}
    assert gaps["g", "a"]["gap_to_bound"] == pytest.approx(0.6)
    assert gaps["g", "b"]["gap_to_bound"] == pytest.approx(1.0)
    assert gaps["g", "b"]["gap_to_best_known"] == pytest.approx(0.25)
    assert gaps["h", "a"]["gap_to_best_known"] == pytest.approx(0.5)
    assert gaps["h", "b"]["gap_to_best_known"] == math.inf
    summary = {row[0]: row for row in report.tables[0].rows}
    assert summary["a"][2:5] == ("2", "2", "1")
    assert list(report.figures) == ["anytime_1.png"]


def test_values_are_shown_in_the_unit_of_the_file() -> None:
    document = {
        "objective_s": 3e-3, "lower_bound_s": 2e-3, "seconds": 1.0, "status": "feasible",
        "reason": "", "violations": [], "operators": 3, "feasible": True, "unit": "ms",
        "unit_s": 1e-3, "trajectory": [[0.1, 4.0], [0.2, 3.0]],
    }  # fmt: skip
    found = Outcome.of(document)
    assert found.curve.points == ((0.1, pytest.approx(4e-3)), (0.2, pytest.approx(3e-3)))
    assert found.time(found.objective) == "3 ms"
    own = Outcome.of({**document, "unit": "the file's own", "unit_s": 1.0, "objective_s": 30.0})
    assert own.time(own.objective) == "30"
    overfull = Outcome.of({**document, "feasible": False, "violations": ["too many bytes"]})
    assert (overfull.feasible, overfull.reason) == (False, "too many bytes")
    assert overfull.curve.points == ()


def test_graphs_of_published_data_are_left_out_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {"ours": ["graph=a"], "theirs": ["graph=$MESHWRIGHT_DATA/x.json"]}
    cases = Cases(problems={"p": []}, graphs=graphs, topologies={"t": []})
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    assert [case.graph for case in cases] == ["ours"]
    assert cases.left_out == ["theirs"]
    monkeypatch.setenv("MESHWRIGHT_DATA", "/data")
    assert [case.overrides for case in cases] == [("graph=a",), ("graph=/data/x.json",)]
    assert cases.left_out == []


def test_names_of_run_folders_tell_cells_apart() -> None:
    case = Case("max load", "a/b", "t", ())
    folders = {PlanCell(case, "x", seconds, ()).folder for seconds in (1, 10, 0.5)}
    assert folders == {f"max_load.a_b.t.x.{text}s" for text in ("1", "10", "0_5")}


def test_the_picture_draws_every_near_curve_and_names_the_others() -> None:
    curves = {
        "near": AnytimeCurve(((0.1, 12.0), (1.0, 10.0)), 5.0),
        "far": AnytimeCurve(((0.1, 90.0),), 5.0),
        "none": AnytimeCurve((), 5.0),
    }
    figure = draw_anytime([Panel("p", curves, 9.0, np.inf, "ms")], "title", "step time", 1.6)
    (axes,) = figure.axes
    words = " ".join(text.get_text() for text in axes.texts)
    assert "above: far 90" in words
    assert "no plan: none" in words
    low, high = axes.get_ylim()
    assert low < 9.0
    assert 10.0 < high < 90.0
    steps = axes.lines[1].get_xydata()
    np.testing.assert_allclose(np.asarray(steps), [[0.1, 12.0], [1.0, 10.0], [5.0, 10.0]])
    assert {text.get_text() for text in axes.texts} >= {"near"}
    given_up = [one for one in axes.lines if one.get_marker() == "x"]
    assert [one.get_xdata()[0] for one in given_up] == [5.0]
    better = [one for one in axes.lines if one.get_marker() == "o"]
    assert better[0].get_xdata().tolist() == [0.1, 1.0]
    whole = draw_anytime([Panel("p", curves, 9.0, np.inf, "ms")], "title", "step time", np.inf)
    assert whole.axes[0].get_ylim()[1] > 90.0


def test_at_most_eight_agents_have_a_colour_and_a_name() -> None:
    curves = {f"agent{i:02}": AnytimeCurve(((1.0, 10.0 + 0.1 * i),), 5.0) for i in range(11)}
    figure = draw_anytime([Panel("p", curves, 9.0, np.inf, "ms")], "title", "step time", 2.0)
    named = {text.get_text() for text in figure.axes[0].texts if text.get_text()}
    assert named == {f"agent{i:02}" for i in range(8)}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "others: agent08, agent09, agent10" in legend


def contest() -> Contest:
    return Contest(
        title="contest", cases=CASES, contenders={"new": ["agent=a"]}, budget_s=30,
        quick={"heft": ["agent=b"]}, searches={"new": ["agent=a"], "old": ["agent=c"]},
        search_budget_s=300,
    )  # fmt: skip


def test_a_contender_is_held_against_the_best_and_against_every_quick_planner() -> None:
    suite = contest()
    cells = suite.cells()
    assert [(cell.agent, cell.budget_s) for cell in cells[:4]] == [
        ("new", 30), ("heft", 30), ("new", 300), ("old", 300),
    ]  # fmt: skip
    times = {("g", "new", 30): 6.0, ("g", "heft", 30): 5.0, ("g", "new", 300): 4.0}
    found = {
        cell: outcome([(1.0, at)])
        if (at := times.get((cell.case.graph, cell.agent, cell.budget_s)))
        else Outcome.failed("does not fit")
        for cell in cells
    }
    report = suite.report(found)
    first, second = report.tables[0].rows
    assert first[2:] == ("4000 ms", "new (300 s)", "6000 ms", "1.500x", "heft")
    assert second[2:] == ("no plan", "", "no plan", "", "")
    assert report.headline == {
        "problems": 2,
        "without a plan": 1,
        "new (30 s): median over the best": 1.5,
        "new (30 s): worst over the best": 1.5,
        "new (30 s): plans missed": 0,
        "new (30 s): slower than a quick planner": 1,
    }
    assert report.tables[1].rows[3] == ("old (300 s)", "2", "0", "0", "", "")
    assert report.tables[3].rows == [("h on t", "does not fit")]


def test_a_plan_that_fails_the_second_look_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = contest()
    document = {
        "objective_s": 5.0, "lower_bound_s": 1.0, "seconds": 1.0, "status": "feasible",
        "reason": "", "operators": 9, "unit": "s", "unit_s": 1.0, "trajectory": [[0.5, 5.0]],
        "feasible": True, "violations": [],
    }  # fmt: skip
    looks: list[list[str]] = []

    def look(folders: list[Path]) -> list[Verdict | None]:
        looks.append([folder.name for folder in folders])
        fine, wrong = Verdict(5.0, (), 1.0), Verdict(5.0, ("holds too much",), 1.0)
        return [wrong if "heft" in folder.name else fine for folder in folders]

    monkeypatch.setattr("experiments.step.suites.contest.judged_again", look)
    report = suite.summary(dict.fromkeys(suite.grid(tmp_path, 0), document))
    assert [len(folders) for folders in looks] == [4, 4]
    assert report.tables[2].rows[0][1:] == ["5000 ms", "no plan", "5000 ms", "5000 ms"]
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    assert rows[0]["reason"] == {"heft": "holds too much"}


def test_a_plan_missed_is_no_small_ratio() -> None:
    suite = contest()
    found = {
        cell: outcome([(1.0, 5.0)]) if cell.agent == "old" else Outcome.failed("nothing")
        for cell in suite.cells()
    }
    headline = suite.report(found).headline
    assert headline["new (30 s): median over the best"] == math.inf
    assert headline["new (30 s): plans missed"] == 2


ORDERS = Cases(problems={"one": [], "all": []}, graphs={"g": []}, topologies={"t": [], "u": []})


def test_the_parts_of_a_reduction_multiply_to_the_whole() -> None:
    suite = OrderGain("order", ORDERS, "one", "all", "split", {"split": [], "search": []}, 5)
    times = {("split", "one"): 10.0, ("split", "all"): 8.0,
             ("search", "one"): 7.0, ("search", "all"): 6.0}  # fmt: skip
    found = {
        cell: outcome([(1.0, times[cell.agent, cell.case.problem])])
        if cell.case.topology == "t"
        else Outcome.failed("does not fit")
        for cell in suite.cells()
    }
    report = suite.report(found)
    rows = report.numbers["rows"]
    assert isinstance(rows, list)
    assert [(row["by the order"], row["over the split"]) for row in rows[:2]] == [
        (pytest.approx(0.2), 0.0),
        (pytest.approx(1 / 7), pytest.approx(0.25)),
    ]
    whole = report.numbers["parts"]
    assert isinstance(whole, dict)
    parts = whole["g on t"]
    assert 1 - parts["reduction"] == pytest.approx((1 - parts["order"]) * (1 - parts["placement"]))
    assert report.headline["reduction: median"] == pytest.approx(0.4)
    assert report.headline["order: largest"] == pytest.approx(0.2)
    assert report.tables[0].rows[2][3:] == ("no plan", "no plan", "", "")
    with refusal("'split': 'nobody' is none of"):
        OrderGain("order", ORDERS, "one", "all", "nobody", {"split": []}, 5)
