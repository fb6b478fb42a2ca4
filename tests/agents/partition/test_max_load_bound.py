"""The bound on the largest load is below every placement's, and tight where it can be shown."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from agents.partition.atoms import Cuts, PartitionAtoms, max_load_bound
from envs.partition.problem import MaxLoadProblem
from tests.agents.partition.dp_graphs import Sketch, small_problem
from tests.strength import SEEDS, examples

FREE = np.zeros((0, 2), dtype=np.int64)


def test_equal_items_share_the_devices():
    sketch = Sketch(0)
    for _ in range(7):
        sketch.node([], 1.0, 0.0, slower=1.0)
    sketch.accelerator = [1.0] * 7
    problem = MaxLoadProblem(sketch.problem(accelerators=3, capacity=np.inf, host=False), False)
    assert max_load_bound(PartitionAtoms.build(problem, FREE)) == pytest.approx(7 / 3, rel=1e-9)


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
