"""Labels of placement problems: what is kept of a teacher's plan, and how it stands on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from agents.placement.labelling import (
    aligned,
    describe,
    label,
    read_dataset,
    shard_path,
    write_shard,
)
from agents.placement.local_search import LocalSearch
from agents.solver import Budget, Result
from agents.step.problems import StepPlanning
from envs.placement.generator import TrainingProblems
from envs.step.plans import Placement, Plan
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.stored_problem import problem_arrays, restored_problem
from tests.refusal import refusal
from tests.strength import trials

SOURCE = TrainingProblems((), 0.0, 0.1, 0.2, 32, 8)


def drawn(seed: int, stage: float = 0.3) -> StepProblem:
    return SOURCE(default_rng(seed), stage)


class Says:
    """A teacher that always says the same, and claims a time for it."""

    solves = (StepPlanning,)

    def __init__(self, device: np.ndarray, seconds: float) -> None:
        self.device, self.seconds, self.asked = device, seconds, 0

    def solve(self, problem: StepPlanning, budget: Budget, start: object = ()) -> Result[Plan]:
        self.asked += 1
        graph = problem.step.graph
        plan = Plan(Placement(self.device[graph.colocation]), np.arange(graph.num_operators))
        return Result(plan, "feasible", self.seconds)


@pytest.mark.parametrize("seed", range(trials(4, 2)))
def test_a_label_is_the_best_of_all_that_is_known_and_costs_what_it_says(seed: int) -> None:
    problem = drawn(seed)
    groups, devices = problem.graph.num_groups, problem.topology.num_devices
    pricer = Pricer(problem)
    rng = default_rng(seed)
    poor = Says(rng.integers(devices, size=groups), 0.0)
    found = label(7, problem, poor, 0.1)
    assert poor.asked == 2  # once more in named orders, for its time is not that of any rule
    price = pricer.price(found.fusion.expand_pieces(found.device))
    assert (found.number, found.seconds, found.rule) == (7, price.seconds, price.rule)
    assert price.excess <= 0.0
    assert found.seconds <= min(found.single_s, found.split_s) * (1 + 1e-9)
    taught = label(7, problem, Says(found.device, 0.0), 0.1)
    assert taught.seconds <= found.seconds * (1 + 1e-9)


def test_a_problem_without_a_plan_has_no_label() -> None:
    problem = drawn(1)
    tight = replace(problem, capacity=np.full_like(problem.capacity, 1.0))
    assert (
        label(0, tight, Says(np.zeros(problem.graph.num_groups, dtype=np.int64), 1.0), 0.1) is None
    )


@pytest.mark.parametrize("seed", range(trials(12, 4)))
def test_devices_that_are_alike_are_used_in_their_order(seed: int) -> None:
    problem = drawn(seed, stage=0.6)
    groups, devices = problem.graph.num_groups, problem.topology.num_devices
    rng = default_rng(seed)
    pricer = Pricer(problem)
    device = rng.integers(devices, size=groups)
    before = pricer.price(device[problem.graph.colocation])
    after = aligned(problem, device, pricer)
    price = pricer.price(after[problem.graph.colocation])
    assert price.excess <= before.excess
    assert price.seconds <= before.seconds * (1 + 1e-9)
    one_to_one = set(zip(device.tolist(), after.tolist(), strict=True))
    assert len(one_to_one) == len(set(device.tolist())) == len(set(after.tolist()))
    assert aligned(problem, after, pricer).tolist() == after.tolist()


def test_a_shuffled_pipeline_is_put_in_order() -> None:
    problem = next(
        found
        for found in map(drawn, range(200))
        if found.topology.num_devices >= 3
        and found.topology.num_servers == 1
        and len(found.topology.class_names) == 2
        and (found.op_seconds == found.op_seconds[:, :1]).all()
    )
    devices, groups = problem.topology.num_devices, problem.graph.num_groups
    split = np.arange(groups) * devices // groups
    pricer = Pricer(problem)
    for seed in range(5):
        shuffled = default_rng(seed).permutation(devices)[split]
        assert aligned(problem, shuffled, pricer).tolist() == split.tolist()


def test_problems_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    items = {}
    for place in (0, 2):
        found = label(place, drawn(place), LocalSearch(groups=(32,), starts=()), 0.05)
        assert found is not None
        items[place] = found
    describe(tmp_path, 2, 3, {"seed": 1})
    write_shard(shard_path(tmp_path, 0), items)
    describe(tmp_path, 3, 3, {"seed": 1})
    read = read_dataset(tmp_path)
    assert (len(read), read.numbers) == (2, (0, 2))
    for one, item in zip(read, items.values(), strict=True):
        stored, made = problem_arrays(one.problem), problem_arrays(item.problem)
        assert all(np.array_equal(stored[name], made[name]) for name in made)
        assert one.device.tolist() == item.device.tolist()
        facts = ("number", "rule", "seconds", "free_s", "single_s", "split_s")
        assert [getattr(one, f) for f in facts] == [getattr(item, f) for f in facts]
        price = Pricer(one.problem).price(one.fusion.expand_pieces(one.device))
        assert price.seconds == item.seconds
    with refusal("another dataset"):
        describe(tmp_path, 3, 3, {"seed": 2})


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    arrays = problem_arrays(drawn(0))
    with refusal("field 'capacity': is missing"):
        restored_problem({k: v for k, v in arrays.items() if k != "capacity"}, "file")
    with refusal("file: field 'tensor_bytes'"):
        restored_problem({**arrays, "producer": arrays["producer"][:-1]}, "file")
    with refusal("cannot be read"):
        read_dataset(tmp_path)
    describe(tmp_path, 1, 1, {})
    (tmp_path / "shard00000.npz").write_bytes(b"PK no archive")
    with refusal(r"shard00000.npz: is truncated or damaged"):
        read_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format": "meshwright.graph"}')
    with refusal("is no dataset"):
        read_dataset(tmp_path)
