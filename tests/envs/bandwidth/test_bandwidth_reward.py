"""The terms of the reward and their weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.bandwidth.env import BandwidthReward, PhaseOutcome
from tests.refusal import refusal

OUTCOME = PhaseOutcome(phase_s=36.0, uniform_phase_s=42.0, reference_s=54.0, overflow=None)


def test_terms_are_weighted() -> None:
    assert BandwidthReward().terms(OUTCOME) == {
        "time_saved": pytest.approx(6 / 54),
        "memory_violation": 0.0,
    }
    halved = BandwidthReward({"time_saved": 0.5}).terms(replace(OUTCOME, overflow=0.25))
    assert halved == {"time_saved": pytest.approx(3 / 54), "memory_violation": 0.0}


def test_what_does_not_fit_costs_more_than_a_step_can_save() -> None:
    terms = BandwidthReward().terms(replace(OUTCOME, phase_s=0.0, overflow=0.25))
    assert terms["memory_violation"] == -1.25
    assert sum(terms.values()) < 0


def test_unknown_terms_are_refused() -> None:
    with refusal("unknown reward term"):
        BandwidthReward({"speed": 1.0})
