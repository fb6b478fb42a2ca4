"""The bound on the largest load is below every placement's, and tight where it can be shown."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given

from agents.partition.atoms import PartitionAtoms
from agents.partition.bound import Cuts, dearest, max_load_bound
from envs.partition.problem import MaxLoadProblem
from tests.agents.partition.dp_graphs import Sketch, small_problem
from tests.strength import SEEDS, examples

FREE = np.zeros((0, 2), dtype=np.int64)


@examples(30)
@given(seed=SEEDS)
def test_no_placement_has_a_smaller_largest_load(seed):
    problem = MaxLoadProblem(small_problem(seed), contiguous=False)
    atoms = PartitionAtoms.build(problem, FREE)
    if not atoms.allowed.any(axis=1).all():
        return
    count = problem.step.topology.num_devices
    best = np.inf
    for device in product(range(count), repeat=atoms.num_atoms):
        chosen = np.array(device, dtype=np.int64)
        if atoms.allowed[np.arange(len(chosen)), chosen].all():
            best = min(best, problem.objective(atoms.expand(chosen)))
    quick = max_load_bound(atoms, np.inf, 0.0)
    assert quick <= best * (1 + 1e-12)
    loose = max_load_bound(atoms, 3.0 * best, 2.0)
    assert loose <= best * (1 + 1e-12)
    assert quick <= max_load_bound(atoms, best, 2.0) <= best


def test_equal_items_do_not_share_evenly():
    sketch = Sketch(0)
    for _ in range(7):
        sketch.node([], 1.0, 0.0, slower=1.0)
    sketch.accelerator = [1.0] * 7
    problem = MaxLoadProblem(sketch.problem(accelerators=3, capacity=np.inf, host=False), False)
    atoms = PartitionAtoms.build(problem, FREE)
    assert max_load_bound(atoms, np.inf, 0.0) == pytest.approx(7 / 3, rel=1e-9)
    assert max_load_bound(atoms, 3.0, 5.0) == pytest.approx(3.0, rel=1e-3)


def test_an_atom_pays_for_its_parcels_or_for_its_neighbours():
    sketch = Sketch(0)
    first = sketch.node([], 1.0, 5.0, slower=100.0)
    second = sketch.node([first], 1.0, 2.0, slower=100.0)
    sketch.node([second], 9.0, 0.0, slower=100.0)
    sketch.accelerator, sketch.traffic = [1.0, 1.0, 9.0], [5.0, 2.0, 0.0]
    problem = MaxLoadProblem(sketch.problem(accelerators=2, capacity=np.inf), False)
    atoms = PartitionAtoms.build(problem, FREE)
    # The third alone reads for 2 seconds; with the second it reads for 5; all three take 11.
    assert Cuts(atoms, 0).least(atoms.seconds[:, 0], 1.0, np.array([2])) == pytest.approx(11.0)
    assert max_load_bound(atoms, np.inf, 0.0) == pytest.approx(11.0, rel=1e-9)
    nowhere = np.array([1.0, 1.0, np.inf])
    assert Cuts(atoms, 0).least(nowhere, 1.0, np.array([2])) == np.inf


@examples(80)
@given(seed=SEEDS)
def test_cuts_are_those_of_exhaustive_search(seed):
    random = np.random.default_rng(seed)
    atoms = PartitionAtoms.build(MaxLoadProblem(small_problem(seed), False), FREE)
    count = atoms.num_atoms
    cost = random.integers(-6, 9, count).astype(np.float64)
    inside = random.choice(count, size=int(random.integers(0, min(count, 3))), replace=False)
    outside = [a for a in range(count) if a not in inside and random.random() < 0.2]
    cost[outside] = np.inf
    weight = float(random.integers(0, 3))
    least = np.inf
    for size in range(count + 1):
        for chosen in combinations(range(count), size):
            if not set(inside.tolist()) <= set(chosen):
                continue
            held = set(chosen)
            traffic = sum(
                seconds
                for sender, readers, seconds in zip(
                    atoms.sender.tolist(), atoms.readers, atoms.parcel_seconds[:, 0], strict=True
                )
                if (not held.issuperset(readers) if sender in held else held & set(readers))
            )
            least = min(least, float(cost[list(chosen)].sum()) + weight * traffic)
    found = Cuts(atoms, 0).least(cost, weight, inside)
    assert found <= least + 1e-12
    assert found == pytest.approx(least, rel=1e-9, abs=1e-9)


@examples(80)
@given(seed=SEEDS)
def test_the_dearest_set_is_that_of_exhaustive_search(seed):
    random = np.random.default_rng(seed)
    classes = int(random.integers(1, 5))
    weight = random.integers(0, 9, classes)
    count = random.integers(1, 6, classes)
    price = random.integers(0, 9, classes).astype(np.float64)
    best = max(
        float(price @ np.array(chosen))
        for chosen in product(*(range(c + 1) for c in count.tolist()))
        if weight @ np.array(chosen) <= 20 and not (np.array(chosen)[weight > 20]).any()
    )
    value, chosen = dearest(weight, count, price, 20)
    assert value == best == price @ chosen
    assert (chosen <= count).all()
    assert weight @ chosen <= 20
