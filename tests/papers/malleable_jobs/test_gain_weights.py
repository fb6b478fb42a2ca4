"""Learned weights of GADGET's gains: what each of them does, and files that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents.cluster.rule_numbers import NUMBERS_KIND
from experiments.papers.malleable_jobs.gadget import Gadget, GainWeights, gains
from experiments.papers.malleable_jobs.generated import random_problem
from tests.refusal import refusal


@pytest.mark.parametrize("utility", ["linear", "log"])
def test_weights_by_hand(utility: str) -> None:
    problem = random_problem(np.random.default_rng(3), "ring", utility, slots=8)  # type: ignore[arg-type]
    j = int(np.argmax([len(window) for window in problem.windows]))
    now, stop, made = problem.windows[j].start, problem.windows[j].stop, np.array([0.2, 0.3, 0.5])
    own = gains(problem, j, now, 0.5, made)
    assert (own > 0.0).any()
    weights = GainWeights(part=2.0, done=0.4, slack=0.6, wait=0.5, partial=-0.3)
    found = gains(problem, j, now, 0.5, made, weights)
    left = stop - now
    if utility == "log":
        factor = np.full(3, left**0.5 * np.exp(-0.3))
    else:
        slots = np.ceil(0.5 / made - 1e-9)
        factor = np.minimum(made / 0.5, 1.0) * np.exp(0.4 * 0.5 + 0.6 * (1.0 - slots / left))
    np.testing.assert_allclose(found, own * factor)


def test_gadgets_own_weights_make_its_own_plan(tmp_path: Path) -> None:
    problem = random_problem(np.random.default_rng(0))
    document = {"kind": NUMBERS_KIND, "numbers": {"part": 1.0, "slack": 0.0}}
    (tmp_path / "gains.json").write_text(json.dumps(document))
    told = Gadget(weights=str(tmp_path / "gains.json")).solve(problem)
    assert told.value == Gadget().solve(problem).value
    assert "guarantee" not in Gadget(weights={"slack": 1.0}).solve(problem).figures


@pytest.mark.parametrize(
    ("numbers", "says"),
    [({"hurry": 1.0}, "unknown"), ({"part": "1"}, "no float"), ({"part": -1.0}, "part")],
)
def test_weights_that_make_no_sense(tmp_path: Path, numbers: object, says: str) -> None:
    path = tmp_path / "gains.json"
    path.write_text(json.dumps({"kind": NUMBERS_KIND, "numbers": numbers}))
    with refusal(says):
        Gadget(weights=str(path))
