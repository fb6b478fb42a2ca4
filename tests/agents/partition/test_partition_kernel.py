"""Loads and latencies kept by the kernels are those of the problems, move after move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from agents.partition.kernel import in_line, latency, move, propose, settle
from agents.partition.search import PartitionWalk
from envs.partition.problem import LatencyProblem, MaxLoadProblem
from tests.agents.partition.dp_graphs import braided, small_problem
from tests.strength import SEEDS, examples


def problem_of(seed: int):
    """A small random step, or a larger one, with or without backward pass."""
    if seed % 2:
        return small_problem(seed)
    return braided(seed, 24).problem(accelerators=3, capacity=30.0, training=seed % 4 == 0)


@examples(60)
@given(seed=SEEDS)
def test_loads_after_many_moves_are_those_of_the_problem(seed):
    problem = MaxLoadProblem(problem_of(seed), contiguous=False)
    walk = PartitionWalk(problem, 0)
    atoms, traffic, loads = walk.atoms, walk._traffic, walk._loads
    random = default_rng(seed)
    settle(traffic, loads)
    for _ in range(40):
        for i in range(propose(traffic, loads.device, walk._trial, 4, random)):
            move(traffic, loads, walk._trial.member[i], walk._trial.goal[i])
    device = loads.device.astype(np.int64)
    if not atoms.allowed[np.arange(atoms.num_atoms), device].all():
        return  # the start was not supported, and no move led away from it
    np.testing.assert_allclose(
        loads.load, problem.loads(atoms.expand(device)), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        loads.used,
        np.bincount(device, weights=atoms.state, minlength=len(loads.used)),
        rtol=1e-9,
        atol=1e-9,
    )


@examples(60)
@given(seed=SEEDS)
def test_a_line_exists_when_the_problem_says_so(seed):
    problem = MaxLoadProblem(problem_of(seed), contiguous=True)
    walk = PartitionWalk(problem, 0)
    random = default_rng(seed)
    count = problem.step.topology.num_devices
    for _ in range(20):
        walk.stand(random.integers(0, count, walk.atoms.num_atoms))
        settle(walk._traffic, walk._loads)
        device = walk.atoms.expand(walk._loads.device)
        broken = any("contiguous" in v for v in problem.violations(device))
        others = [v for v in problem.violations(device) if "contiguous" not in v]
        if not others:
            assert in_line(walk._loads.arcs) != broken


@examples(60)
@given(seed=SEEDS)
def test_latency_is_that_of_the_problem(seed):
    problem = LatencyProblem(problem_of(seed))
    walk = PartitionWalk(problem, 0)
    random = default_rng(seed)
    count = problem.step.topology.num_devices
    for trial in range(20):
        device = random.integers(0, count, walk.atoms.num_atoms)
        if trial % 2:
            device = np.sort(device)
        if not walk.atoms.allowed[np.arange(len(device)), device].all():
            continue
        walk.stand(device)
        settle(walk._traffic, walk._loads)
        seconds, stuck = latency(walk._calls, walk._loads.device, walk._loads.load)
        expected = problem.objective(walk.atoms.expand(device))
        assert (stuck > 0.0) == np.isinf(expected)
        if not stuck:
            assert seconds == pytest.approx(expected, rel=1e-9, abs=1e-12)


@examples(30)
@given(seed=SEEDS, contiguous=st.booleans())
def test_the_walk_keeps_what_it_says_it_keeps(seed, contiguous):
    problem = MaxLoadProblem(problem_of(seed), contiguous)
    walk = PartitionWalk(problem, seed)
    if not walk.atoms.allowed.any(axis=1).all():
        return
    walk.run(0.1, 2000)
    if walk.value < np.inf:
        device = walk.atoms.expand(walk.best)
        found = problem.violations(device)
        if walk.value < 100.0 * problem.step.op_seconds[np.isfinite(problem.step.op_seconds)].sum():
            assert not found
            assert walk.value == pytest.approx(problem.objective(device), rel=1e-9, abs=1e-12)
