"""The bound on the largest load is below every placement's, and tight where it can be shown."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given

from agents.partition.atoms import Cuts, PartitionAtoms, max_load_bound
from envs.partition.problem import MaxLoadProblem
from tests.agents.partition.dp_graphs import Sketch, small_problem
from tests.strength import SEEDS, examples

FREE = np.zeros((0, 2), dtype=np.int64)


@examples(30)
@given(seed=SEEDS)
def test_no_placement_has_a_smaller_largest_load(seed):
    problem = MaxLoadProblem(small_problem(seed), contiguous=False)
    atoms = PartitionAtoms.build(problem, FREE)
    able = [np.flatnonzero(row) for row in atoms.allowed]  # memory aside
    loads = [problem.objective(atoms.expand(np.array(device))) for device in product(*able)]
    assert max_load_bound(atoms) <= min(loads, default=np.inf) * (1 + 1e-12)


def test_equal_items_share_the_devices():
    sketch = Sketch(0)
    for _ in range(7):
        sketch.node([], 1.0, 0.0, slower=1.0)
    sketch.accelerator = [1.0] * 7
    problem = MaxLoadProblem(sketch.problem(accelerators=3, capacity=np.inf, host=False), False)
    assert max_load_bound(PartitionAtoms.build(problem, FREE)) == pytest.approx(7 / 3, rel=1e-9)


def test_an_atom_pays_for_its_parcels_or_for_its_neighbours():
    sketch = Sketch(0)
    for inputs in ([], [0], [1]):
        sketch.node(inputs, 1.0, 1.0, slower=100.0)
    sketch.accelerator, sketch.traffic = [1.0, 1.0, 9.0], [5.0, 2.0, 0.0]
    problem = MaxLoadProblem(sketch.problem(accelerators=2, capacity=np.inf), contiguous=False)
    atoms = PartitionAtoms.build(problem, FREE)
    # the third alone reads for 2 seconds; with the second it reads for 5; all three take 11
    assert Cuts(atoms, 0).least(2) == pytest.approx(11.0)
    assert max_load_bound(atoms) == pytest.approx(11.0, rel=1e-9)
    nowhere = replace(atoms, allowed=atoms.allowed & (np.arange(3) < 2)[:, None])
    assert Cuts(nowhere, 0).least(2) == np.inf


@examples(80)
@given(seed=SEEDS)
def test_cuts_are_those_of_exhaustive_search(seed):
    atoms = PartitionAtoms.build(MaxLoadProblem(small_problem(seed), False), FREE)
    cost = np.where(atoms.allowed, atoms.seconds, np.inf)[:, 0]
    least = np.full(atoms.num_atoms, np.inf)
    for size in range(1, atoms.num_atoms + 1):
        for chosen in combinations(range(atoms.num_atoms), size):
            held = set(chosen)
            traffic = sum(
                seconds
                for sender, readers, seconds in zip(
                    atoms.sender.tolist(), atoms.readers, atoms.parcel_seconds[:, 0], strict=True
                )
                if (not held.issuperset(readers) if sender in held else held & set(readers))
            )
            own = list(chosen)
            least[own] = np.minimum(least[own], cost[own].sum() + traffic)
    found = np.array([Cuts(atoms, 0).least(atom) for atom in range(atoms.num_atoms)])
    assert (found <= least + 1e-12).all()
    np.testing.assert_allclose(found, least, rtol=1e-9, atol=1e-9)
