"""The numbers of a rule are sought, and read from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.cluster.rule_numbers import NumberSearch
from tests.agents.cluster.further_policies import joint_choice
from tests.refusal import refusal


def test_the_search_finds_the_least_and_tells_all_that_it_tried() -> None:
    asked: list[int] = []

    def costs(many: Sequence[dict[str, Any]]) -> np.ndarray:
        asked.append(len(many))
        return np.array([(one["x"] - 0.3) ** 2 + "bca".index(one["kind"]) for one in many])

    start, numbers = {"x": -1.0, "kind": "a"}, {"x": {"least": -1.0, "most": 1.0}, "kind": [*"abc"]}
    search = NumberSearch(numbers, drawn=8, rounds=6, near=10, spread=0.3)
    found = search.tried(start, costs, np.random.default_rng(0))
    assert asked == [9, *[10] * 6]
    assert len(found) == 69
    assert start in [one.numbers for one in found]
    assert [one.cost for one in found] == sorted(one.cost for one in found)
    assert found[0].numbers == {"x": pytest.approx(0.3, abs=0.05), "kind": "b"}
    assert all(-1.0 <= one.numbers["x"] <= 1.0 for one in found)


@pytest.mark.parametrize("among", [[], {"least": 1.0}, {"least": 1.0, "most": 1.0}, "gain"])
def test_a_number_needs_a_range_or_a_list(among: object) -> None:
    with refusal("neither a least and a most nor a list") as caught:
        NumberSearch({"own": among}, drawn=1, rounds=1, near=1, spread=0.1)
    assert caught.value.field == "numbers.own"


def file_of(folder: Path, numbers: object) -> str:
    path = folder / "rule.json"
    path.write_text(json.dumps({"kind": "meshwright.rule_numbers", "numbers": numbers}))
    return str(path)


def test_a_rule_takes_the_numbers_of_a_file(tmp_path: Path) -> None:
    numbers = {"order": "shortest", "own": 0.25, "first": 3, "joint": False}
    found = joint_choice(numbers=file_of(tmp_path, numbers)).rule
    assert found == joint_choice(**numbers).rule != joint_choice().rule


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ({"own": 1.5}, "numbers.own"),
        ({"own": "much"}, "numbers.own"),
        ({"first": 2.5}, "numbers.first"),
        ({"first": 0}, "numbers.first"),
        ({"order": "luck"}, "numbers.order"),
        ({"luck": 1.0}, "numbers.luck"),
        ([], "kind"),
    ],
)
def test_a_file_of_numbers_says_what_is_wrong_with_it(
    tmp_path: Path, numbers: object, field: str
) -> None:
    path = file_of(tmp_path, numbers)
    with refusal() as caught:
        joint_choice(numbers=path)
    assert (caught.value.file, caught.value.field) == (path, field)
