"""Searched partitions: feasible, as good as exhaustive search on small steps, and as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.partition.search import PartitionSearch
from agents.solver import Budget, Result
from agents.step.problems import Partition
from envs.partition.problem import LatencyProblem, MaxLoadProblem
from envs.step.plans import Placement, Plan
from envs.units import MILLISECOND
from tests.agents.partition.dp_graphs import (
    braided,
    least,
    oracle,
    published,
    small_problem,
)
from tests.asking import partitioned
from tests.refusal import refusal
from tests.strength import SEEDS, examples

LIMIT = 2_000_000  # proposed moves, about a second


def search(**changes) -> PartitionSearch:
    """A search with the values of its configuration, or with `changes`."""
    values = {
        "first_moves": 2000, "growth": 1.5, "hot": 0.3, "warm": 0.02, "cold": 0.0003,
        "starts": (), "start_share": 0.0, "seed": 0,
    }  # fmt: skip
    return PartitionSearch(**{**values, **changes})


def checked(problem, result: Result[Plan]) -> None:
    """Everything that is true of any result."""
    assert result.bound <= result.value * (1 + 1e-12)
    times = [seconds for seconds, _ in result.history]
    values = [value for _, value in result.history]
    assert times == sorted(times)
    assert values == sorted(values, reverse=True)
    if result.solution is None:
        assert result.status in {"infeasible", "limit"}
        assert result.reason
        assert result.value == np.inf
        return
    device = result.solution.placement.device
    assert problem.violations(device) == []
    assert result.value == problem.objective(device) == values[-1]
    assert result.status == ("optimal" if result.value <= result.bound * (1 + 1e-9) else "feasible")


KINDS = {
    "max_load": lambda step: MaxLoadProblem(step, contiguous=False),
    "contiguous": lambda step: MaxLoadProblem(step, contiguous=True),
    "latency": LatencyProblem,
}


@examples(120, derandomize=True)
@given(seed=SEEDS, kind=st.sampled_from(sorted(KINDS)))
def test_the_best_is_that_of_exhaustive_search(seed, kind):
    problem = KINDS[kind](small_problem(seed))
    result = partitioned(search(), problem, 30.0, 25_000)
    checked(problem, result)
    best = least(problem)
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.bound <= best * (1 + 1e-12) or best == np.inf


@pytest.mark.parametrize("kind", KINDS)
def test_a_deterministic_limit_makes_it_reproducible(kind):
    problem = KINDS[kind](braided(1, 60).problem(accelerators=3, capacity=50.0))
    first, second, other = (partitioned(search(seed=s), problem, 60.0, 9_000) for s in (0, 0, 1))
    checked(problem, first)
    assert (first.value, first.evaluations) == (second.value, second.evaluations)
    assert first.evaluations <= 9_000
    found = [result.solution.placement.device for result in (first, second, other)]
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_the_budget_is_kept():
    step = braided(1, 60).problem(accelerators=3, capacity=np.inf)
    result = partitioned(search(first_moves=10**9), MaxLoadProblem(step, contiguous=False), 0.2)
    checked(MaxLoadProblem(step, contiguous=False), result)
    assert result.status == "optimal" or result.seconds > 0.15


@pytest.mark.parametrize("capacity", [0.5, 30.0])  # of one device, and of both together
def test_state_that_fits_nowhere_is_a_proof(capacity):
    step = braided(1, 60).problem(accelerators=2, capacity=capacity, host=False)
    result = partitioned(search(), MaxLoadProblem(step, contiguous=False), 5.0, 5_000)
    assert (result.status, result.bound) == ("infeasible", np.inf)
    assert "does not fit" in result.reason


class Given:
    """A planner that has one placement to offer, and notes what it was asked."""

    solves = (Partition,)

    def __init__(self, device) -> None:
        self.device = device
        self.asked = []

    def solve(self, problem, budget, start=()):
        self.asked.append((problem.problem.contiguous, budget))
        return Result(Plan(Placement(self.device), np.arange(len(self.device))), "feasible")


@pytest.mark.parametrize("kind", ["max_load", "latency"])
def test_what_a_start_planner_finds_is_never_lost(kind):
    problem = KINDS[kind](braided(1, 60).problem(accelerators=3, capacity=np.inf))
    good = partitioned(search(seed=5), problem, 60.0, 40_000)
    start = Given(good.solution.placement.device)
    result = partitioned(search(first_moves=10, starts=[start], start_share=0.5), problem, 60.0, 20)
    checked(problem, result)
    assert start.asked == [(True, Budget(30.0, 20))]
    assert result.value <= good.value


def test_temperatures_that_do_not_fall_are_refused():
    with refusal("warm"):
        search(warm=0.5)


def test_other_objectives_are_refused():
    with refusal("problem"):
        partitioned(search(), object(), 1.0)


def of_published(data: Path, objective: str, name: str, moves: int) -> Result[Plan]:
    """What a search of so many moves finds on a published graph."""
    inputs = "latency" if objective == "latency" else "throughput"
    problem = KINDS[objective](published(data, inputs, name))
    result = partitioned(search(first_moves=20_000, growth=1.2), problem, 60.0, moves)
    checked(problem, result)
    return result


@pytest.mark.parametrize("name", ["bert_l-3_inference", "bert_l-3_training"])
def test_published_max_loads_are_proved_optimal(data, name):
    best = oracle(data, "throughput_max_load_noncontiguous")[f"OperatorGraphs/{name}"]
    result = of_published(data, "max_load", f"OperatorGraphs/{name}", LIMIT)
    assert result.status == "optimal"
    assert result.value / MILLISECOND == pytest.approx(best["value"], rel=2e-6)
    assert result.bound / MILLISECOND >= best["lower_bound"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "LayerGraphs/bert24_inference", "LayerGraphs/bert24_training",
        "LayerGraphs/resnet50_inference", "LayerGraphs/resnet50_training",
        "OperatorGraphs/bert_l-6_training",
    ],
)  # fmt: skip
def test_published_max_loads_are_reached(data, name):
    best = oracle(data, "throughput_max_load_noncontiguous")[name]["value"]
    assert of_published(data, "max_load", name, LIMIT).value / MILLISECOND <= 1.01 * best


@pytest.mark.parametrize(
    "name", ["LayerGraphs/bert24_inference", "OperatorGraphs/bert_l-3_inference"]
)
def test_published_latencies_are_reached(data, name):
    best = oracle(data, "latency_q1_optimal")[name]
    found = of_published(data, "latency", name, 400_000).value / MILLISECOND
    assert found == pytest.approx(best, rel=5e-5)


def test_the_published_greedy_latency_is_beaten(data):
    name = "LayerGraphs/resnet50_inference"
    found = of_published(data, "latency", name, 200_000).value / MILLISECOND
    assert found < oracle(data, "latency_greedy")[name] / 3
