"""What every planner of pipelines promises, on random rows of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hydra import compose
from hypothesis import given
from omegaconf import OmegaConf

from agents.hybrid.machines import PREDICTED
from agents.solver import Budget
from agents.step.problems import HybridPlanner
from envs.hybrid.simulation import simulate
from experiments.config.composing import hydra_over_configs
from experiments.config.targets import build
from tests.envs.hybrid.rows_of_layers import any_servers, random_row
from tests.strength import SEEDS, examples

NAMES = ("alpa", "dapple", "pipedream", "sbp", "spp", "fused_stages")
BUDGET, LIMIT = 20.0, 40


@pytest.fixture(params=NAMES, scope="module")
def planner(request: pytest.FixtureRequest) -> HybridPlanner:
    with hydra_over_configs():
        node = compose("plan", [f"agent={request.param}", "problem=pipeline", "seed=3"])
    described = cast(dict[str, Any], OmegaConf.to_container(node.agent, resolve=True))
    if "starts" in described:
        described["starts"] = {}
    return cast(HybridPlanner, build(described))


@examples(60)
@given(seed=SEEDS)
def test_plans_are_feasible_or_said_not_to_be(planner: HybridPlanner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = any_servers(rng)
    problem = random_row(rng, topology, int(rng.integers(1, 7)), int(rng.integers(1, 7)))
    room = float(rng.choice([np.inf, 400.0, 90.0]))
    problem = replace(problem, capacity=np.full(topology.num_devices, room))
    found = planner.solve(problem, Budget(BUDGET, LIMIT))
    if found.solution is None:
        assert found.reason
        assert np.isfinite(room)
        return
    assert found.solution.violations(problem) == []
    assert np.isfinite(found.figures[PREDICTED])
    seconds = simulate(problem, found.solution).step_time
    assert seconds >= max(problem.bound(), found.bound) * (1 - 1e-9)
