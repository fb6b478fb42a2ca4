"""`suite=learned_placement`: races, and what is said of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layered_step import layered_step

from envs.errors import InputError
from envs.graphs.storage import save_graph
from experiments.race import RaceConfig, race
from experiments.run.app import run_app
from experiments.run.grid import AppCell
from experiments.run.statistics import bootstrap_median
from experiments.step.suites.cell import Cases
from experiments.step.suites.learned_placement import LearnedPlacement

CASES = Cases(problems={"makespan": []}, graphs={"g": [], "h": [], "i": []}, topologies={"t": []})
SUITE = LearnedPlacement(
    title="races", cases={"all": CASES}, learned={"best of 8": ["agent=l"]},
    ablations={"untrained": ["agent=l", "agent.checkpoint=u"]},
    guided={"guided": ["agent=l", "agent.search.groups=[2]"]},
    searches={"long": ["agent=s"]}, quick={"alone": ["agent=a"], "split": ["agent=b"]},
    always=["split"], alone="alone", budget_s=60, guided_budget_s=60,
    quick_budget_s=5, times_s=[0.1, 1, 60],
)  # fmt: skip


def entrant(*points: tuple[float, float], seconds: float) -> dict[str, Any]:
    """What a race says of a planner with this curve."""
    return {
        "seconds": seconds, "status": "feasible", "reason": "" if points else "no room",
        "unit": "s", "unit_s": 1.0, "lower_bound_s": 0.5, "trajectory": [list(x) for x in points],
        "feasible": bool(points), "violations": [],
        "objective_s": points[-1][1] if points else None,
    }  # fmt: skip


def result(learned: Any, untrained: Any, guided: Any, long: Any, alone: Any, split: Any) -> Any:
    entrants = {"best_of_8": learned, "untrained": untrained, "guided": guided, "long": long,
                "alone": alone, "split": split}  # fmt: skip
    return {"operators": 10, "entrants": entrants}


RESULTS = [
    # the split comes late and counts all the same; the search has nothing yet: alone stands in
    result(
        entrant((0.1, 9.0), seconds=0.2), entrant((0.1, 18.0), seconds=0.2),
        entrant((0.2, 9.0), (2.0, 8.0), seconds=60), entrant((0.5, 20.0), (9.0, 6.0), seconds=60),
        entrant((0.01, 30.0), seconds=0.02), entrant((0.4, 12.0), seconds=0.4),
    ),
    # it loses to the search, which is quick here
    result(
        entrant((0.1, 8.0), seconds=0.2), entrant((0.1, 8.0), seconds=0.2),
        entrant((0.2, 8.0), seconds=60), entrant((0.05, 5.0), (50.0, 4.0), seconds=60),
        entrant((0.01, 30.0), seconds=0.02), entrant((0.4, 12.0), seconds=0.4),
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
    assert [cell.budget_s for cell in cells[:2]] == [2 * 5 + 60, 2 * 5 + 60]
    assert "+budgets_s.long=60" in cells[0].overrides
    for word in (
        "+agent@entrants.untrained=l", "entrants.untrained.checkpoint=u",
        "entrants.guided.search.groups=[2]", "+budgets_s.best_of_8=5",
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
    # over the best in the end 9 / 6 and 8 / 4; in its time 9 / 12 (the split's) and 8 / 5
    assert learned[:5] == ["best of 8", "2", "0", "0.2 s", "0.2 s"]
    assert learned[5].startswith("1.750 [1.500, 2.000]")
    assert learned[6:] == ["50%", "50%", "1"]
    assert untrained[6] == "0%"
    pairs = {
        (row[0], row[1], row[2]): row[3:] for row in shown["With a search, after the same time"]
    }
    # after 1 s 9 / 20 and 8 / 5; after 60 s 8 / 6 and 8 / 4
    assert pairs["guided", "long", "1 s"] == ["1.025 [0.450, 1.600]", "50%"]
    assert pairs["guided", "long", "60 s"][0].startswith("1.667")
    assert shown["What the parts add"] == [
        ["untrained", "best of 8", "1.500 [1.000, 2.000]", "50%"]
    ]
    assert [row[:2] for row in shown["Where it loses"]] == [
        ["g on t", "guided"], ["h on t", "best of 8"], ["h on t", "guided"],
    ]  # fmt: skip
    assert shown["Without a plan"] == [["i on t", "does not fit"]]
    assert report.headline["best of 8: below every planner in its time"] == 1
    medians: Any = report.numbers["median_over_the_best"]
    assert medians["long"] == [np.inf, pytest.approx((20 / 6 + 5 / 4) / 2), 1.0]


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
        ({"learned": {}}, "is no mapping of labels"),
        ({"ablations": {"best-of-8": ["agent=l"]}}, "stands twice"),
        ({"guided": {"x": ["graph=gpt2"]}}, "'graph=gpt2' is not about an agent"),
        ({"times_s": [0.0]}, "is not positive"),
    ],
)
def test_a_suite_that_is_not_sound_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SUITE, **change)


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    documents = found(SUITE, tmp_path)
    documents[next(iter(documents))] = {"operators": 3, "entrants": {}}
    with pytest.raises(InputError, match="is no result of a race"):
        SUITE.summary(documents)


def test_the_median_stands_with_its_interval_infinite_values_among_them() -> None:
    interval = bootstrap_median(np.array([1.0, 2.0, 3.0, np.inf]), 500, 0)
    assert (interval.mean, interval.low) == (2.5, 1.0)
    assert interval.high == np.inf
    same = bootstrap_median(np.full(9, 1.5), 100, 0)
    assert (same.mean, same.low, same.high) == (1.5, 1.5, 1.5)


def test_a_race_gives_every_entrant_a_fresh_problem_and_its_own_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_graph(layered_step(6, 2), tmp_path / "graph.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["race"])
    words = ["graph=graph.npz", "topology=mixed_v100_p100", "warm_s=0.01", "budget_s=5",
             "+agent@entrants.a=contiguous", "+agent@entrants.b=local_search", "+budgets_s.b=0.2",
             "hydra.run.dir=run"]  # fmt: skip
    assert run_app("race", RaceConfig, race, words) == 0
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    split, search = document["entrants"]["a"], document["entrants"]["b"]
    assert (split["budget_s"], search["budget_s"]) == (5.0, 0.2)
    assert split["feasible"]
    assert search["feasible"]
    assert split["seconds"] < 0.2 <= search["seconds"]
    assert search["trajectory"][-1][1] == pytest.approx(search["objective"])
