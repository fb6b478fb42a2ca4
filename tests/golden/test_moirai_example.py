"""Moirai `example-1`: CP-SAT proves 30.0 with memory limits and 28.0 without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.partition.dp import ContiguousDP
from agents.placement.cp_sat import CpSat
from agents.placement.list_planners import Heft
from agents.placement.local_search import LocalSearch
from envs.cost import TabulatedCost
from envs.files import read_json
from envs.graphs.readers import read_graph_file
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.asking import planned

pytestmark = pytest.mark.slow

OPTIMUM = 30.0  # proved by CP-SAT; the best 1F1B order of the 20,124 placements takes 31.0


def problem_of(data: Path, name: str) -> StepProblem:
    file = read_graph_file(data / "graphs" / "moirai" / f"{name}.xls")
    assert file.topology is not None
    return StepProblem.build(file.graph, file.topology, TabulatedCost())


def exact() -> CpSat:
    return CpSat(
        operators=64,
        hint=Heft(groups=(32,)),
        partition_hint=ContiguousDP(ideals=10_000, groups=8),
        hint_share=0.1,
        hint_seconds=0.3,
        hint_limit=1,
        fused_share=0.2,
        rest=Heft(groups=(32,)),
        rest_limit=2000,
        workers=1,
        seed=0,
    )


def test_example_1_has_makespan_30_with_memory_limits(data: Path) -> None:
    problem = problem_of(data, "example-1")
    published = read_json(data / "oracles/placement.json")["moirai"]
    result = planned(exact(), problem, 60.0)
    assert result.status == "optimal"
    assert result.value == result.bound == 30.0
    assert published["example-1"]["optimal_makespan"] == 30.0
    assert result.solution is not None
    assert result.solution.violations(problem) == []
    device, order = result.solution.placement.device, result.solution.order
    assert StepSimulator(problem).step_time(device, order) == 30.0


def test_example_1_has_makespan_28_without_memory_limits(data: Path) -> None:
    problem = problem_of(data, "example-1")
    problem = replace(problem, capacity=np.full_like(problem.capacity, np.inf))
    result = planned(exact(), problem, 60.0)
    assert result.status == "optimal"
    assert result.value == result.bound == 28.0


def test_example_1_is_placed_by_heft_and_searched_to_the_proved_optimum(data: Path) -> None:
    problem = problem_of(data, "example-1")
    heft = planned(Heft(groups=(32,)), problem, 5.0)
    assert heft.solution is not None  # the state fills the devices to the last byte
    assert heft.solution.violations(problem) == []
    found = []
    for seed in range(3):
        search = LocalSearch(
            groups=(), operators=64, cycle_moves=7000, hot=0.3, cold=0.01, reheat=0.5, workers=1,
            starts=(), start_share=0.0, partitions=ContiguousDP(ideals=10_000, groups=8), seed=seed,
        )  # fmt: skip
        result = planned(search, problem, 30.0, 400_000)
        assert result.solution is not None
        assert result.solution.violations(problem) == []
        found.append(result.value)
        if found[-1] == OPTIMUM:
            break
    assert min(found) == OPTIMUM


def test_the_best_single_device_of_googlenet_is_as_published(data: Path) -> None:
    problem = problem_of(data, "GoogLeNet")
    published = read_json(data / "oracles/placement.json")["moirai"]
    n, d = problem.op_seconds.shape
    alone = np.repeat(np.arange(d)[:, None], n, axis=1)
    best = StepSimulator(problem).step_times(alone).min()
    assert best == pytest.approx(published["GoogLeNet"]["best_single_device"], abs=5e-4)
