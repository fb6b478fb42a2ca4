from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.step.lower_bound import _atoms, _certified, _windows, longest_paths, lower_bound
from envs.step.plans import Placement
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, Ports, StepSimulator
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.strength import examples


def topological_orders(problem: StepProblem) -> list[list[int]]:
    """Every topological permutation of the operators."""
    n = problem.graph.num_operators
    before = [set() for _ in range(n)]
    for u, v, _ in problem.graph.edges.tolist():
        before[v].add(u)
    orders: list[list[int]] = [[]]
    for _ in range(n):
        orders = [
            [*order, op]
            for order in orders
            for op in range(n)
            if op not in order and before[op] <= set(order)
        ]
    return orders


def optimum(problem: StepProblem, communication: Ports) -> float:
    """The least step time over all feasible placements and all orders."""
    n, d = problem.op_seconds.shape
    placements = [np.array(device) for device in product(range(d), repeat=n)]
    feasible = [device for device in placements if not Placement(device).violations(problem)]
    if not feasible:
        return np.inf
    simulator = StepSimulator(problem, communication=communication)
    return min(
        float(simulator.step_times(np.array(feasible), np.array(order)).min())
        for order in topological_orders(problem)
    )


@examples(150)
@given(
    problem=problems(max_operators=5),
    communication=st.sampled_from([SINGLE_PORT, NO_COMMUNICATION]),
)
def test_no_placement_and_order_beats_the_bound(problem: StepProblem, communication: Ports) -> None:
    bound = lower_bound(problem)
    best = optimum(problem, communication)
    assert bound.seconds <= best * (1 + 1e-12)
    if np.isfinite(best):
        assert bound.memory_ok


@examples(100)
@given(problem=problems(max_operators=5))
def test_no_plan_on_devices_that_are_alike_beats_the_bound(problem: StepProblem) -> None:
    d = problem.topology.num_devices
    alike = replace(
        problem,
        op_seconds=np.repeat(problem.op_seconds[:, :1], d, axis=1),
        capacity=np.full(d, problem.capacity[0]),
    )
    assert len(_atoms(alike).members) == 1
    assert lower_bound(alike).seconds <= optimum(alike, NO_COMMUNICATION) * (1 + 1e-12)


def test_devices_that_are_alike_share_the_work_and_the_memory() -> None:
    problem = pipeline([1.0] * 8, 4, cluster([0, 0, 0], 1e6))
    assert lower_bound(problem).work >= 8 * (4 * 3.0 + 0.1) / 3 * (1 - 1e-9)
    mixed = pipeline([1.0] * 8, 4, cluster([0, 0, 0], 1e6), [2, 2, 1])
    assert lower_bound(mixed).work >= 8 * (4 * 3.0 + 0.1) / 5 * (1 - 1e-9)
    # 4 of 8 layers fit the two fast devices, 2 each; the slow one has the others
    tight = pipeline([1.0] * 8, 4, cluster([0, 0, 0], [8.0, 8.0, 100.0]), [2, 2, 1])
    assert _atoms(tight).members.tolist() == [2, 1]
    assert lower_bound(tight).work == pytest.approx(4 * 12.1)


@examples(50)
@given(problem=problems(max_operators=5, tight=False), scale=st.floats(0.0, 3.0))
def test_the_certificate_holds_for_any_multipliers(problem: StepProblem, scale: float) -> None:
    if not lower_bound(problem).memory_ok:
        return
    atoms = _atoms(problem)
    fastest = problem.op_seconds.min(axis=1)
    head, tail = longest_paths(fastest, problem.graph.use_ptr, problem.graph.use_op)
    offset, seconds = _windows(atoms, head, tail, max(float(fastest.sum()), 1.0))
    value = _certified(atoms, offset, seconds, max(scale, 0.1))
    assert value <= optimum(problem, NO_COMMUNICATION) * (1 + 1e-12)


def test_work_is_shared_in_proportion_to_speed() -> None:
    problem = pipeline([1.0] * 8, 4, cluster([0, 0], 1e6), [2, 1])
    total = 8 * (4 * 3.0 + 0.1)
    assert lower_bound(problem).work >= total / 3 * (1 - 1e-9)
    assert lower_bound(problem).critical_path == pytest.approx((8 * 3.0 + 0.1) / 2)


def test_memory_moves_work_to_the_slow_device() -> None:
    ample = pipeline([1.0] * 8, 4, cluster([0, 0]), [2, 1])
    tight = pipeline([1.0] * 8, 4, cluster([0, 0], [8.0, 100.0]), [2, 1])
    # two of eight layers fit the fast device: the slow one has six
    assert lower_bound(tight).work >= 6 * 12.1 * (1 - 1e-9)
    assert lower_bound(ample).work < 6 * 12.1


def test_filling_and_draining_a_pipeline_counts() -> None:
    problem = pipeline([1.0, 5.0], 2, cluster([0, 0]))
    long = np.array([name.split("/")[0][-1] == "1" for name in problem.graph.op_names])
    seconds = problem.op_seconds.copy()
    seconds[long, 0] = np.inf  # only the second device can run the long layer
    bound = lower_bound(replace(problem, op_seconds=seconds))
    assert bound.critical_path == pytest.approx(3 * (1 + 5) + 0.1)
    # its work, behind one forward and before one backward of the short layer and an update
    assert bound.work == pytest.approx(1 + 2 * 15 + 2 + 0.1)


def test_the_reason_names_the_group_that_is_too_large() -> None:
    problem = pipeline([1.0, 1.0], 1, cluster([0, 0, 0], [3.5, 3.0, 3.0]))
    bound = lower_bound(problem)
    assert not bound.memory_ok
    assert bound.seconds == np.inf
    assert "4 bytes of parameters and state" in bound.reason


def test_an_operator_no_device_can_run_is_named() -> None:
    problem = pipeline([1.0, np.inf], 1, cluster([0, 0]))
    assert "'FORWARD1/0'" in lower_bound(problem).reason


@pytest.mark.parametrize("seed", range(5))
def test_heads_and_tails_are_those_of_the_longest_paths(seed: int) -> None:
    random = np.random.default_rng(seed)
    users = [sorted({int(v) for v in random.integers(u + 1, 20, 3)} if u < 19 else set())
             for u in range(20)]  # fmt: skip
    weight = random.random(20)
    use_ptr = np.concatenate([[0], np.cumsum([len(row) for row in users])])
    head, tail = longest_paths(weight, use_ptr, np.array([v for row in users for v in row]))

    def after(u: int) -> float:
        return max((weight[v] + after(v) for v in users[u]), default=0.0)

    def before(v: int) -> float:
        return max((before(u) + weight[u] for u in range(v) if v in users[u]), default=0.0)

    np.testing.assert_allclose(tail, [after(u) for u in range(20)], rtol=1e-12)
    np.testing.assert_allclose(head, [before(v) for v in range(20)], rtol=1e-12)
