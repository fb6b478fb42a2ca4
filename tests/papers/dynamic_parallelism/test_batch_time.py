"""The time of a batch: the closed form beside a linear program, stages beside all that exist."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy.optimize import linprog

from experiments.papers.dynamic_parallelism.batch_time import (
    BatchTime,
    Groups,
    Layers,
    divided,
    transformer,
)
from tests.strength import trials

FloatArray = NDArray[np.float64]
Rng = np.random.Generator


def random_batch(rng: Rng, workers: int, layers: int, samples: float = 40.0) -> BatchTime:
    """Compute, ports and gradients of one order of magnitude, so that each decides sometimes."""
    cut = np.concatenate([[0.0], rng.uniform(0.0, 1.0, layers - 1), [0.0]])
    chain = Layers(rng.uniform(0.2, 2.0, layers), cut, rng.uniform(0.0, 60.0, layers))
    return BatchTime(chain, samples, rng.uniform(0.3, 3.0, (workers, 3)))


def terms(batch: BatchTime, groups: Groups, ends: Sequence[tuple[int, ...]]) -> FloatArray:
    """(G, 2) a and e of each group, written down once more."""
    found = []
    for group, own in zip(groups, ends, strict=True):
        bounds, sample, trip, sync = [0, *own], [], [], []
        for k, worker in enumerate(group):
            mine = slice(bounds[k], bounds[k + 1])
            port = batch.bandwidth[worker]
            compute = batch.layers.seconds[mine].sum() / batch.speed[worker]
            sample.append(max(compute, batch.layers.cut_bytes[bounds[k : k + 2]].sum() / port))
            slower = min(port, batch.bandwidth[group[max(0, k - 1)]])
            trip += [compute, 2 * batch.layers.cut_bytes[bounds[k]] / slower]  # no bytes before 0
            ring = 2 * (len(groups) - 1) / len(groups)
            sync.append(ring * batch.layers.gradient_bytes[mine].sum() / port)
        found.append((max(sample), sum(trip) - max(sample) + max(sync)))
    return np.array(found)


def equal_end(a: FloatArray, e: FloatArray, samples: float) -> float:
    """Of groups that have one cut each."""
    return divided(np.column_stack([a, a + e, 0.0 * a]), np.arange(len(a) + 1), 0.0, samples)[0]


def fastest(batch: BatchTime, groups: Groups) -> tuple[float, FloatArray]:
    """Least tau over all stages of all groups, and the terms that it was found with."""
    layers = len(batch.layers.seconds)
    cuts = [itertools.combinations(range(1, layers), len(group) - 1) for group in groups]
    every = (terms(batch, groups, [(*c, layers) for c in one]) for one in itertools.product(*cuts))
    return min(((equal_end(*own.T, batch.samples), own) for own in every), key=lambda x: x[0])


def by_program(a: FloatArray, e: FloatArray, samples: float) -> float:
    """Least tau with tau >= e + a x for the groups of some set, which have all samples."""
    best = np.inf
    for size in range(1, len(a) + 1):
        for kept in map(list, itertools.combinations(range(len(a)), size)):
            rows = np.column_stack([np.diag(a[kept]), -np.ones(size)])
            cost, share = np.append(np.zeros(size), 1.0), np.append(np.ones(size), 0.0)
            found = linprog(cost, rows, -e[kept], share[None], [samples], method="highs")
            best = min(best, found.fun if found.status == 0 else np.inf)
    return float(best)


def test_the_closed_form_is_the_optimum_of_the_linear_program() -> None:
    rng = default_rng(0)
    left_out = 0
    for _ in range(trials(300, 40)):
        count = int(rng.integers(1, 5))
        a, e = rng.uniform(0.1, 2.0, count), rng.exponential(10.0, count)
        tau = equal_end(a, e, 20.0)
        assert tau == pytest.approx(by_program(a, e, 20.0), rel=1e-9)
        assert np.maximum(0.0, (tau - e) / a).sum() == pytest.approx(20.0)
        left_out += bool((e >= tau).any())
    assert left_out


def test_stages_and_shares_are_the_best_there_are() -> None:
    rng = default_rng(1)
    left_out = 0
    for _ in range(trials(200, 40)):
        batch = random_batch(rng, 5, 5)
        order = rng.permutation(5).tolist()
        split = int(rng.integers(1, 5))
        groups: Groups = (tuple(order[:split]), tuple(order[split:4]) or (order[4],))
        found = batch.best(groups)
        least, at = fastest(batch, groups)
        assert found.groups == tuple(itertools.compress(groups, at[:, 1] < least))
        assert found.seconds == pytest.approx(fastest(batch, found.groups)[0], rel=1e-9)
        left_out += len(found.groups) < 2
        again = batch.of(found.plan)
        assert again.seconds == pytest.approx(found.seconds, rel=1e-9)
        np.testing.assert_allclose(again.cost, found.cost)
        _, ends, shares = zip(*found.plan, strict=True)
        assert sum(shares) == pytest.approx(40.0)
        own = terms(batch, found.groups, ends)
        np.testing.assert_allclose(own[:, 1] + own[:, 0] * shares, found.seconds)
    assert left_out


def test_a_group_that_is_too_slow_is_left_out_and_synchronises_with_no_other() -> None:
    layers = Layers(np.ones(2), np.zeros(3), np.ones(2))
    batch = BatchTime(layers, 10.0, np.array([[1.0, 1.0, 1.0], [1.0, 1e-3, 5.0]]))
    found = batch.best(((0,), (1,)))
    assert found.groups == batch.best(((1,), (0,))).groups == ((0,),)
    assert (found.seconds, *found.cost) == (20.0, 1.0, 0.0)


def test_without_transfers_a_group_is_a_flow_shop() -> None:
    """Sample i leaves stage k no earlier than stage k - 1 has had it and stage k sample i - 1."""
    batch = random_batch(default_rng(2), 4, 6)
    batch.layers.cut_bytes[:] = 0.0
    ((group, ends, _),) = plan = batch.best(((2, 0, 3),)).plan
    left = np.zeros(3)
    for _ in range(40):
        before, first = 0.0, 0
        for k, end in enumerate(ends):
            seconds = batch.layers.seconds[first:end].sum() / batch.speed[group[k]]
            left[k] = before = max(before, left[k]) + seconds
            first = end
    assert batch.of(plan).seconds == pytest.approx(left[-1])


def test_costs_by_hand() -> None:
    layers = Layers(np.ones(3), np.array([0.0, 4.0, 6.0, 0.0]), np.array([1.0, 2.0, 3.0]))
    batch = BatchTime(layers, 8.0, np.full((3, 3), [1.0, 1e9, 2.0]))
    found = batch.best(((0, 1), (2,)))
    (_, ends, first), (_, _, second) = found.plan
    assert first + second == pytest.approx(8.0)
    assert found.cost == pytest.approx([6.0, 2 * first * layers.cut_bytes[ends[0]] + 2 * 6.0])
    alone, gradient = batch.best(((2,),)).plan, layers.gradient_bytes
    more = max(gradient[: ends[0]].sum(), gradient[ends[0] :].sum())
    assert batch.moving(alone, found.plan) == pytest.approx(more / 1e9)
    assert batch.moving(found.plan, alone) == 0.0


def test_a_transformer_by_its_published_counts() -> None:
    layers = transformer(12, 2, 1024, 512, 5e13, 2)
    assert layers.gradient_bytes.sum() == 24 * 12 * 1024**2 * 2
    forward = 24 * 512 * 1024**2 * 24 * (1 + 512 / (6 * 1024))  # 24 s h^2 (1 + s / 6 h) a block
    assert layers.seconds.sum() == pytest.approx(3 * forward / 5e13)
    assert layers.cut_bytes[[0, 1, 12]].tolist() == [0.0, 512 * 1024 * 2, 0.0]
