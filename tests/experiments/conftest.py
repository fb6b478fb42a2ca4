"""A working folder, a pipelined step on the cluster of the main job, and a plan for it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from envs import compilation
from envs.cost import RooflineCost
from envs.hardware.topology import Topology
from envs.step.order import OneFOneB
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from experiments.run import one_run
from tests.envs.topologies import topology_named
from tests.experiments.layered_step import layered_step


@pytest.fixture(autouse=True)
def says_only_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine no run says that it still runs, or that it compiles."""
    monkeypatch.setattr(one_run, "SILENT_S", 3600.0)
    monkeypatch.setattr(compilation, "SHORT_S", 3600.0)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, empty; nothing of the tests' command line is written down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    return tmp_path


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
