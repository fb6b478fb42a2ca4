"""The promises of every planner of synchronisation, on random networks and all primitives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hydra.utils import get_object
from hypothesis import given
from hypothesis import strategies as st

from envs.synchronisation.plan import Primitive
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from experiments.config.config_source import SHIPPED_CONFIGS, options
from experiments.config.targets import build
from experiments.network.synchronising import largest_error
from tests.envs.synchronisation.made_networks import networks
from tests.strength import examples


def shipped() -> dict[str, Any]:
    """Every option of the group `agent` that plans a synchronisation."""
    nodes = {name: SHIPPED_CONFIGS.node(f"agent/{name}") for name in options("agent")}
    nodes = {name: node for name, node in nodes.items() if "_target_" in node}
    solves = {x: getattr(get_object(nodes[x]["_target_"]), "solves", ()) for x in nodes}
    return {x: nodes[x] for x in nodes if SynchronisationProblem in solves[x]}


PLANNERS = shipped()


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
