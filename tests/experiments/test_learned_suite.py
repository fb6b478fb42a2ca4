"""`suite=learned_placement`: races, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layered_step import layered_step

from envs.files import read_json
from envs.graphs.storage import save_graph
from experiments.run.app import run_job
from experiments.step.suites.cell import Cases
from experiments.step.suites.learned_placement import LearnedPlacement
from experiments.study.grid import AppCell
from experiments.study.statistics import bootstrap_median
from tests.refusal import refusal

CASES = Cases(problems={"makespan": []}, graphs={"g": [], "h": [], "i": []}, topologies={"t": []})
SUITE = LearnedPlacement(
    title="races", cases={"all": CASES}, learned={"best of 8": ["agent=l"]},
    ablations={"untrained": ["agent=l", "agent.checkpoint=u"]},
    guided={"guided": ["agent=l", "agent.search.groups=[2]"], "twin": ["agent=w"]},
    searches={"long": ["agent=s"]}, quick={"alone": ["agent=a"], "split": ["agent=b"]},
    always=["split"], alone="alone", budgets_s=[1, 60], some_budgets_s=[9], some=1,
    quick_budget_s=5,
)  # fmt: skip


def entrant(*points: tuple[float, float], seconds: float) -> dict[str, Any]:
    """What a race says of a planner with this curve."""
    return {
        "seconds": seconds, "status": "feasible", "reason": "" if points else "no room",
        "unit": "s", "unit_s": 1.0, "lower_bound_s": 0.5, "trajectory": [list(x) for x in points],
        "feasible": bool(points), "violations": [],
        "objective_s": points[-1][1] if points else None,
    }  # fmt: skip


def result(learned: Any, untrained: Any, alone: Any, split: Any, **told: tuple[Any, ...]) -> Any:
    """Of searches what each of their runs found, by the seconds it was told; inf: nothing."""
    entrants = {"best_of_8": learned, "untrained": untrained, "alone": alone, "split": split}
    for name, runs in told.items():
        for seconds, best in runs:
            points = [(seconds / 2, best)] if np.isfinite(best) else []
            entrants[f"{name}_told_{seconds}_s"] = entrant(*points, seconds=seconds)
    return {"operators": 10, "entrants": entrants}


RESULTS = [
    # the split comes late and counts all the same; told a second the search finds nothing:
    # the single device stands in
    result(
        entrant((0.1, 9.0), seconds=0.2), entrant((0.1, 18.0), seconds=0.2),
        entrant((0.01, 30.0), seconds=0.02), entrant((0.4, 12.0), seconds=0.4),
        guided=((1, 9.0), (9, 9.0), (60, 8.0)), twin=((1, 10.0), (9, 9.0), (60, 8.0)),
        long=((1, np.inf), (9, 10.0), (60, 6.0)),
    ),
    # it loses to the search, which is quick here
    result(
        entrant((0.1, 8.0), seconds=0.2), entrant((0.1, 8.0), seconds=0.2),
        entrant((0.01, 30.0), seconds=0.02), entrant((0.4, 12.0), seconds=0.4),
        guided=((1, 8.0), (60, 8.0)), twin=((1, 8.0), (60, 8.0)), long=((1, 5.0), (60, 4.0)),
    ),
    {"exit_code": 2, "reason": "does not fit"},
]  # fmt: skip


def found(suite: LearnedPlacement, tmp_path: Path) -> dict[AppCell, Any]:
    """Both cells of a problem have the whole result: each is asked for its own planners."""
    twice = [document for document in RESULTS for _ in range(2)]
    return dict(zip(suite.grid(tmp_path, 3), twice, strict=True))


def test_a_problem_is_a_run_of_its_opponents_and_one_of_the_policies(tmp_path: Path) -> None:
    cells = SUITE.grid(tmp_path, 3)
    assert [cell.app for cell in cells] == ["race"] * 6
    # one of the three problems has the further budget of nine seconds
    assert [cell.budget_s for cell in cells[:4]] == [80, 10 + 2 * 70, 71, 10 + 2 * 61]
    for seconds in (1, 9, 60):
        assert f"+budgets_s.long_told_{seconds}_s={seconds}" in cells[0].overrides
        assert f"+agent@entrants.long_told_{seconds}_s=s" in cells[0].overrides
    assert "+budgets_s.long_told_9_s=9" not in cells[2].overrides
    for word in (
        "+agent@entrants.untrained=l", "entrants.untrained.checkpoint=u",
        "entrants.guided_told_1_s.search.groups=[2]", "+budgets_s.best_of_8=5",
    ):  # fmt: skip
        assert word in cells[1].overrides
        assert word not in cells[0].overrides
    retrained = replace(SUITE, learned={"best of 8": ["agent=l", "agent.checkpoint=v"]})
    again = retrained.grid(tmp_path, 3)
    assert (again[0].key, again[1].key == cells[1].key) == (cells[0].key, False)


def test_plans_are_held_against_what_others_have_by_then(tmp_path: Path) -> None:
    report = SUITE.summary(found(SUITE, tmp_path))
    shown = {table.title: [list(row) for row in table.rows] for table in report.tables}
    learned, untrained = shown["races"]
    # over the best of 60 s 9 / 6 and 8 / 4; against what is told 1 s 9 / 12 (split) and 8 / 5
    assert learned[:5] == ["best of 8", "2", "0", "0.2 s", "0.2 s"]
    assert learned[5].startswith("1.750 [1.500, 2.000]")
    assert learned[6:] == ["50%", "50%", "1"]
    assert untrained[6] == "0%"
    pairs = {
        (row[0], row[1], row[2]): row[3:] for row in shown["With a search, each told the same time"]
    }
    # told 1 s 9 / 30 and 8 / 5, told 60 s 8 / 6 and 8 / 4: never 60 s read early
    assert pairs["guided", "long", "1 s"] == ["1 s and 1 s", "2", "0.950 [0.300, 1.600]", "50%"]
    assert pairs["guided", "long", "9 s"] == ["9 s and 9 s", "1", "0.900 [0.900, 0.900]", "100%"]
    assert pairs["guided", "long", "60 s"][2].startswith("1.667")
    assert pairs["guided", "twin", "1 s"] == ["1 s and 1 s", "2", "0.950 [0.900, 1.000]", "100%"]
    assert shown["What the parts add"] == [
        ["untrained", "best of 8", "1.500 [1.000, 2.000]", "50%"]
    ]
    assert [row[:2] for row in shown["Where it loses"]] == [
        ["g on t", "guided told 60 s"], ["g on t", "twin told 60 s"], ["h on t", "best of 8"],
        ["h on t", "guided told 1 s"], ["h on t", "guided told 60 s"],
        ["h on t", "twin told 1 s"], ["h on t", "twin told 60 s"],
    ]  # fmt: skip
    assert shown["Without a plan"] == [["i on t", "does not fit"]]
    assert report.headline["best of 8: below every planner in its time"] == 1
    medians: Any = report.numbers["median_over_the_best"]
    assert medians["long"] == [np.inf, 1.0]


def test_who_has_no_plan_has_missed_it(tmp_path: Path) -> None:
    documents = found(SUITE, tmp_path)
    first = list(documents)[1]
    documents[first] = json.loads(json.dumps(documents[first]))
    documents[first]["entrants"]["best_of_8"] = entrant(seconds=0.2)
    report = SUITE.summary(documents)
    assert list(report.tables[0].rows[0])[2] == "1"
    assert report.headline["best of 8: median over the best"] == np.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alone": "nobody"}, "'nobody' is none of alone, split"),
        ({"learned": {}}, "learned"),
        ({"ablations": {"best-of-8": ["agent=l"]}}, "stands twice"),
        ({"guided": {"x": ["graph=gpt2"]}}, "'graph=gpt2' is not about an agent"),
        ({"budgets_s": [0.0]}, "is not positive"),
    ],
)
def test_a_suite_that_is_not_sound_is_refused(change: dict[str, Any], message: str) -> None:
    with refusal(message):
        replace(SUITE, **change)


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    documents = found(SUITE, tmp_path)
    documents[next(iter(documents))] = {"operators": 3, "entrants": {}}
    with refusal("is no result of a planner"):
        SUITE.summary(documents)


def test_the_median_stands_with_its_interval_infinite_values_among_them() -> None:
    interval = bootstrap_median(np.array([1.0, 2.0, 3.0, np.inf]), 500, 0)
    assert (interval.mean, interval.low) == (2.5, 1.0)
    assert interval.high == np.inf
    same = bootstrap_median(np.full(9, 1.5), 100, 0)
    assert (same.mean, same.low, same.high) == (1.5, 1.5, 1.5)


def test_a_race_gives_every_entrant_a_fresh_problem_and_its_own_budget(work: Path) -> None:
    save_graph(layered_step(6, 2), work / "graph.npz")
    words = ["graph=graph.npz", "topology=mixed_v100_p100", "warm_s=0.01", "budget_s=5",
             "+agent@entrants.a=contiguous", "+agent@entrants.b=local_search", "+budgets_s.b=0.2",
             "hydra.run.dir=run"]  # fmt: skip
    assert run_job("race", words) == 0
    document = read_json(work / "run/result.json")
    split, search = document["entrants"]["a"], document["entrants"]["b"]
    assert (split["budget_s"], search["budget_s"]) == (5.0, 0.2)
    assert split["feasible"]
    assert search["feasible"]
    assert split["seconds"] < 0.2 <= search["seconds"]
    assert search["trajectory"][-1][1] == pytest.approx(search["objective"])
