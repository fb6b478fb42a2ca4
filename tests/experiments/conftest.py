"""A pipelined step on the cluster of the main job, and a plan for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from envs.cost import RooflineCost
from envs.hardware.topology import Topology
from envs.step.order import OneFOneB
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from tests.envs.topologies import topology_named
from tests.experiments.commands import Command
from tests.experiments.layered_step import layered_step
from tests.experiments.refusals import Refuses, run_refused


@pytest.fixture(autouse=True)
def all_say_only_what_they_find(says_only_what_it_finds: None) -> None:
    """Whether they use the working folder or not."""


@pytest.fixture
def refuses(work: Path, capfd: pytest.CaptureFixture[str]) -> Refuses:
    """A command is refused with one line that has in it what is `said`, and writes nothing."""

    def line(command: Command, words: Sequence[str], *said: str) -> str:
        return run_refused(command, words, said, Path(), capfd)

    return line


@pytest.fixture
def topology() -> Topology:
    return topology_named("mixed_v100_p100")


@pytest.fixture
def problem(topology: Topology) -> StepProblem:
    return StepProblem.build(layered_step(8, 4), topology, RooflineCost())


@pytest.fixture
def plan(problem: StepProblem) -> Plan:
    """The layers split in four equal segments."""
    layer = np.array([int(name.split(".")[-1]) for name in problem.graph.op_names])
    device = (layer // 2).astype(np.int64)
    return Plan(Placement(device), OneFOneB()(problem.graph, device))
