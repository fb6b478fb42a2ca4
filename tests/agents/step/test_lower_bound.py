from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.step.grouping import device_kinds
from agents.step.lower_bound import _atoms, _certified, _windows, longest_paths, lower_bound
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, Ports
from tests.agents.placement.random_problems import cluster, optimum, pipeline, problems
from tests.strength import SEEDS, examples


@examples(150)
@given(
    problem=problems(max_operators=5),
    communication=st.sampled_from([SINGLE_PORT, NO_COMMUNICATION]),
)
def test_no_placement_and_order_beats_the_bound(problem: StepProblem, communication: Ports) -> None:
    bound = lower_bound(problem)
    best = optimum(problem, communication, live=False)
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
    assert lower_bound(alike).seconds <= optimum(alike, NO_COMMUNICATION, live=False) * (1 + 1e-12)


@examples(50)
@given(problem=problems(max_operators=5), seed=SEEDS)
def test_devices_are_of_a_kind_where_seconds_and_capacity_are_equal(
    problem: StepProblem, seed: int
) -> None:
    copied = np.random.default_rng(seed).integers(0, problem.topology.num_devices, 6)
    step = replace(
        problem, op_seconds=problem.op_seconds[:, copied], capacity=problem.capacity[copied]
    )
    kind = device_kinds(step)
    for a in range(len(copied)):
        for b in range(a + 1):
            same = np.array_equal(step.op_seconds[:, a], step.op_seconds[:, b])
            assert (kind[a] == kind[b]) == (same and step.capacity[a] == step.capacity[b])
        assert kind[a] <= kind[:a].max(initial=-1) + 1


@pytest.mark.parametrize(
    ("speed", "capacity", "work"),
    [
        ([1], [1e6] * 3, 8 * 12.1 / 3), ([2, 2, 1], [1e6] * 3, 8 * 12.1 / 5),
        ([2, 1], [1e6] * 2, 8 * 12.1 / 3),
        # 4 of 8 layers fit the two fast devices, 2 each; the slow one has the others
        ([2, 2, 1], [8.0, 8.0, 100.0], 4 * 12.1), ([2, 1], [8.0, 100.0], 6 * 12.1),
    ],
)  # fmt: skip
def test_work_is_shared_by_speed_and_by_memory(
    speed: list[float], capacity: list[float], work: float
) -> None:
    problem = pipeline([1.0] * 8, 4, cluster([0] * len(capacity), capacity), speed)
    assert lower_bound(problem).work == pytest.approx(work)


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
    assert value <= optimum(problem, NO_COMMUNICATION, live=False) * (1 + 1e-12)


def test_filling_and_draining_a_pipeline_counts() -> None:
    problem = pipeline([1.0, 5.0], 2, cluster([0, 0]))
    long = np.array([name.split("/")[0][-1] == "1" for name in problem.graph.op_names])
    seconds = problem.op_seconds.copy()
    seconds[long, 0] = np.inf  # only the second device can run the long layer
    bound = lower_bound(replace(problem, op_seconds=seconds))
    assert bound.critical_path == pytest.approx(3 * (1 + 5) + 0.1)
    # its work, behind one forward and before one backward of the short layer and an update
    assert bound.work == pytest.approx(1 + 2 * 15 + 2 + 0.1)


@pytest.mark.parametrize(
    ("seconds", "capacity", "reason"),
    [([1.0, 1.0], 3.5, "4 bytes of parameters and state"), ([1.0, np.inf], 100.0, "'FORWARD1/0'")],
)
def test_the_reason_names_what_is_too_large_or_runs_nowhere(
    seconds: list[float], capacity: float, reason: str
) -> None:
    bound = lower_bound(pipeline(seconds, 1, cluster([0, 0], capacity)))
    assert (bound.memory_ok, bound.seconds) == (False, np.inf)
    assert reason in bound.reason


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
