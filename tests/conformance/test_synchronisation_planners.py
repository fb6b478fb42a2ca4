"""The promises of every planner of synchronisation, on random networks and all primitives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.entries import entries
from envs.synchronisation.plan import Primitive
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from experiments.config.targets import build
from experiments.network.synchronising import largest_error
from tests.envs.synchronisation.made_networks import networks
from tests.strength import examples

PLANNERS = {e.name: e.node for e in entries() if SynchronisationProblem in e.answers}


@cache
def planner(name: str) -> Any:
    return build(PLANNERS[name], "agent")


@pytest.mark.parametrize("name", PLANNERS)
@given(networks(most=6), st.sampled_from(Primitive), st.booleans())
@examples(60, daily=3)
def test_a_plan_is_allowed_sums_rightly_and_takes_no_less_than_its_busiest_link(
    name: str, network: Any, primitive: Primitive, adding: bool
) -> None:
    if adding:
        network = replace(network, sums=network.sums | network.forwards)
    problem = SynchronisationProblem(network, 1e3, primitive)
    found = planner(name).solve(problem)
    if found.solution is None:
        assert found.reason
        assert found.status in ("infeasible", "limit")
        return
    assert found.solution.violations(problem) == []
    assert largest_error(problem, found.solution) < 1e-12
    seconds = found.solution.own_seconds(problem)
    if seconds is None:
        seconds = play(problem, found.solution).seconds
        assert seconds >= found.solution.busiest_seconds(problem) * (1 - 1e-9)
    if not adding:
        assert seconds >= found.bound * (1 - 1e-9)
