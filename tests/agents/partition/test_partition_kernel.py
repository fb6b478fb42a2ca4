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
@given(seed=SEEDS, contiguous=st.booleans())
def test_loads_and_lines_are_those_of_the_problem_after_many_moves(seed, contiguous):
    problem = MaxLoadProblem(problem_of(seed), contiguous)
    walk = PartitionWalk(problem, seed)
    atoms, traffic, loads = walk.atoms, walk._traffic, walk._loads
    random = default_rng(seed)
    for start in range(4):
        walk.stand(random.integers(0, len(loads.load), atoms.num_atoms) * (start > 0))
        settle(traffic, loads)
        for _ in range(10):
            for i in range(propose(traffic, loads.device, walk._trial, 4, random)):
                move(traffic, loads, walk._trial.member[i], walk._trial.goal[i])
        device = atoms.expand(loads.device)
        broken = problem.violations(device)
        used = np.bincount(loads.device, weights=atoms.state, minlength=len(loads.used))
        np.testing.assert_allclose(loads.used, used, rtol=1e-9, atol=1e-9)
        if atoms.allowed[np.arange(atoms.num_atoms), loads.device].all():
            np.testing.assert_allclose(loads.load, problem.loads(device), rtol=1e-9, atol=1e-9)
        if not [found for found in broken if "contiguous" not in found]:
            assert in_line(loads.arcs) == (not broken)
    if atoms.allowed.any(axis=1).all():
        walk.run(0.1, 2000)
        seconds = problem.step.op_seconds
        if walk.value < 100.0 * seconds[np.isfinite(seconds)].sum():
            device = atoms.expand(walk.best)
            assert not problem.violations(device)
            assert walk.value == pytest.approx(problem.objective(device), rel=1e-9, abs=1e-12)


@examples(60)
@given(seed=SEEDS)
def test_latency_is_that_of_the_problem(seed):
    problem = LatencyProblem(problem_of(seed))
    walk = PartitionWalk(problem, 0)
    random = default_rng(seed)
    for trial in range(20):
        device = random.integers(0, problem.step.topology.num_devices, walk.atoms.num_atoms)
        device = np.sort(device) if trial % 2 else device
        if not walk.atoms.allowed[np.arange(len(device)), device].all():
            continue
        walk.stand(device)
        settle(walk._traffic, walk._loads)
        seconds, stuck = latency(walk._calls, walk._loads.device, walk._loads.load)
        expected = problem.objective(walk.atoms.expand(device))
        assert (stuck > 0.0) == np.isinf(expected)
        if not stuck:
            assert seconds == pytest.approx(expected, rel=1e-9, abs=1e-12)
