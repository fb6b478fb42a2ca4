"""Hybrid plans as torch runs them: the same stages, ranks and orders, or a refusal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from plans_of_layers import BY_HAND, MICRO_BATCHES, NAMES, PLANS, write
from torch.distributed.pipelining.schedules import _Action, _validate_schedule

from experiments.execution.split import read_split
from tests.refusal import refusal


@pytest.mark.parametrize("name", PLANS)
def test_torch_reads_the_same_orders_and_finds_the_same_ranks(tmp_path: Path, name: str) -> None:
    split = read_split(write(tmp_path, name))
    rows = [line.split(",") for line in split.csv.splitlines()]
    actions = {rank: [_Action.from_str(text) for text in row] for rank, row in enumerate(rows)}
    assert [[str(action) for action in row] for row in actions.values()] == PLANS[name]["orders"]
    found = _validate_schedule(actions, split.ranks, len(split.layers), MICRO_BATCHES)
    assert tuple(found[stage] for stage in sorted(found)) == split.rank
    assert [layer for stage in split.layers for layer in stage] == NAMES
    assert split.planned == {"predicted_s": 0.25}


def stages_with(name: str, number: int, **changed: Any) -> dict[str, Any]:
    stages = copy.deepcopy(PLANS[name]["stages"])
    stages[number] |= changed
    return {"stages": stages}


SWAPPED = {"1F0": "1F1", "1F1": "1F0"}
FIRST, LAST = PLANS["gpipe"]["orders"]
LATE = {"orders": [FIRST, [SWAPPED.get(action, action) for action in LAST]]}
TWO = {"devices": ["a", "b"]}
REFUSED = {
    "shards": ("gpipe", stages_with("gpipe", 1, **TWO, shards=2), "2 shards"),
    "ragged": ("gpipe", stages_with("gpipe", 1, **TWO), "2 replicas here, 1"),
    "uneven": ("replicas", stages_with("replicas", 0, shares=[0.75, 0.25]), "evenly over replicas"),
    "shared": ("replicas", {
        "stages": [
            {**PLANS["replicas"]["stages"][0], "end": 3},
            {**PLANS["replicas"]["stages"][0], "first": 3, "devices": ["worker0.1", "worker0.0"]},
        ],
        "orders": PLANS["one_f_one_b"]["orders"],
    }, "in two different groups"),
    "late": ("gpipe", LATE, "out of turn"),
    "more lists": ("by_hand", {"orders": [*BY_HAND, []]}, "3 lists for 2 groups"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_does_not_do_is_refused(tmp_path: Path, case: str) -> None:
    name, changed, message = REFUSED[case]
    path = write(tmp_path, name, changed)
    with refusal(message) as refused:
        read_split(path)
    assert str(refused.value).startswith(path)
