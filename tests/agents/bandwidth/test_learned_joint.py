"""`LearnedJoint` and allocators that learned nothing: what it promises all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.learned import LearnedJoint
from agents.placement.policy import Answer, LearnedPlanner
from agents.step.grouping import GroupedProblem
from envs.joint.piped import PipedGroups
from envs.step.problem import StepProblem
from models.export.allocator import OnnxAllocator, export_allocator
from models.export.checkpoint import ModelCard
from models.step.channels import PipesConfig, PipesPolicy
from tests.agents.bandwidth.joint_steps import check_promises, diamond_step, unplaced_steps
from tests.agents.placement.test_local_search import search
from tests.asking import jointly
from tests.refusal import refusal
from tests.strength import examples

pytestmark = pytest.mark.slow

CARD = ModelCard("A policy", "It was never trained.", "seed: 0\n", {"seed": 0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    allocator = PipesPolicy(PipesConfig(hidden=8, initial_root=1.0, initial_spread=1.0))
    torch.nn.init.normal_(allocator.level.weight)
    return str(export_allocator(allocator, tmp_path_factory.mktemp("made") / "allocator", CARD))


def planner(folder: str, searches: bool, **chosen: Any) -> LearnedJoint:
    placement = LearnedPlanner(
        checkpoint="any_step", groups=16, samples=4, starts=[0, 4], rounds=1,
        moves=0, temperature=1.0,
        search=search() if searches else None, levels=(), descent=0.0, seed=0,
    )  # fmt: skip
    arguments: dict[str, Any] = {
        "placement": placement, "allocator": folder,
        "allocation": ConvexRates(gap=1e-4, rounds=20), "allocation_s": 5.0, "promising": 1.1,
        "turn_s": 5.0, "spared": 0.2,
    }  # fmt: skip
    return LearnedJoint(**{**arguments, **chosen})


@pytest.mark.proof
@given(problem=unplaced_steps(servers=(1, 3)))
@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_plans_are_feasible_and_no_slower_than_their_start(
    folder: str, problem: StepProblem
) -> None:
    alone = jointly(planner(folder, searches=False), problem, 60.0)
    check_promises(problem, alone)
    found = jointly(planner(folder, searches=True), problem, 60.0, 200)
    check_promises(problem, found)
    assert found.value <= alone.value
    assert found.history[0][1] == alone.value


def test_the_policies_alone_take_the_levels_of_the_allocators(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, spread = diamond_step(1e9), np.array([0, 1, 2, 0])
    monkeypatch.setattr(Answer, "best_first", lambda answer: ([spread], 1))
    found = jointly(planner(folder, searches=False), problem, 60.0)
    check_promises(problem, found)
    assert found.solution is not None
    assert found.solution.allocation is not None
    grouped = GroupedProblem.of(problem, 16)
    piped = PipedGroups(problem, grouped.fusion)
    assert (found.solution.placement.device == grouped.fusion.expand(spread)).all()
    traffic = piped.traffic(spread)
    level = OnnxAllocator(Path(folder)).levels(traffic)
    np.testing.assert_allclose(
        found.solution.allocation.rate, piped.allocation(level, traffic.used).rate
    )
    assert len(np.unique(level[traffic.mask])) > 1
    even = jointly(planner(folder, searches=False, allocator=None), problem, 60.0)
    check_promises(problem, even)


def test_the_shipped_allocators_have_a_name() -> None:
    found = jointly(planner("any_network", searches=False), diamond_step(1e9), 60.0)
    check_promises(diamond_step(1e9), found)
    with refusal("neither a folder nor shipped"):
        planner("no_such_network", searches=False)


def test_no_room_is_said_and_found_out_by_the_search(folder: str) -> None:
    impossible = jointly(planner(folder, searches=True), diamond_step(3.0), 5.0)
    assert impossible.solution is None
    assert impossible.status == "infeasible"
    with refusal("not a checkpoint folder"):
        planner(folder, searches=False, allocator="absent/folder")
