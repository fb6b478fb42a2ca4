"""The reward's terms, with the docstring's figures."""

from __future__ import annotations

import pytest

from envs.placement.env import PlacementReward
from tests.refusal import refusal


def test_the_worked_example_of_the_docstring() -> None:
    terms = PlacementReward().terms(0.6, 0.5, 0.8, None, supported=True)
    assert terms["step_time_improvement"] == pytest.approx(0.125)
    assert sum(terms.values()) == pytest.approx(0.125)
    overfull = PlacementReward().terms(0.6, 0.5, 0.8, 4 / 16, supported=True)
    assert overfull["memory_violation"] == pytest.approx(-1.25)


def test_weights_scale_terms_and_missing_ones_are_zero() -> None:
    reward = PlacementReward({"step_time_improvement": 2.0})
    terms = reward.terms(2.0, 1.0, 4.0, 0.5, supported=False)
    assert terms == {
        "step_time_improvement": 0.5,
        "memory_violation": 0.0,
        "unsupported_device": 0.0,
    }


def test_an_unknown_term_is_named() -> None:
    with refusal("step_tme"):
        PlacementReward({"step_tme": 1.0})
