"""What the network is compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_pairs import pairs

from envs.cluster.interference.rates import ON_GPU, SPANNING
from models.interference.baselines import (
    Baseline,
    Contention,
    MatrixCompletion,
    NearestNeighbour,
    SharedResource,
    baselines,
)
from models.interference.measurements import fold_without

ALL = (*baselines(replace(pairs(), scope=SPANNING), 0.3), NearestNeighbour("7 nearest", 7))


@pytest.mark.parametrize("count", [1, 4])
def test_nearest_pairs_one_by_one(count: int) -> None:
    measured = pairs(models=3, each=3, seed=4)
    made = fold_without(measured, measured.jobs_of("model0"), 2)
    found = NearestNeighbour("nearest", count).predict(measured, made)
    for table in range(2):
        x = made.inputs[table]
        for i in range(9):
            for j in range(9):
                pool = sorted(
                    (((x[i] - x[a]) ** 2).sum() + ((x[j] - x[b]) ** 2).sum(), (a, b))
                    for a, b in np.argwhere(made.known[table]).tolist()
                )
                if i == j:  # a pair and its mirror image are equally near
                    continue
                expected = np.mean([measured.rate[table][pair] for _, pair in pool[:count]])
                assert found[table, i, j] == pytest.approx(expected)


def errors(
    method: Baseline, rate: np.ndarray, unseen: str, probes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Absolute ones of all pairs, and of what a fold without a model asks for."""
    measured = replace(pairs(models=len(rate) // 3, each=3, tables=1), rate=rate[None])
    made = fold_without(measured, measured.jobs_of(unseen), probes)
    off = np.abs(method.predict(measured, made) - rate)
    return off, off[made.asked]


def test_a_shared_resource_is_found_again() -> None:
    """Demands on the grid; a fingerprint of two probes tells an unseen job's demand."""
    demand = np.array([0.2, 0.9, 0.6, 0.75, 0.8, 0.95, 0.5, 1.0, 0.7])
    rate = np.minimum(1.0, 1.0 / (demand[:, None] + demand))
    _, off = errors(SharedResource(), rate, "model2", 2)
    assert off.max() < 0.03


def test_contention_is_found_again() -> None:
    share = np.linspace(0.1, 0.9, 9)
    rate = np.repeat((1 / (1 - share + 2.3 * share))[:, None], 9, axis=1)
    everywhere, _ = errors(Contention(0.3), rate, "model1", 1)
    assert everywhere.max() < 1e-7


def test_without_a_fingerprint_an_unseen_job_is_like_the_median_job() -> None:
    measured = pairs(models=3, each=3, tables=1)
    made = fold_without(measured, measured.jobs_of("model1"), 0)
    rows = Contention(0.3).predict(measured, made)[0, :, 0]
    assert rows[3] == rows[4] == rows[5]
    assert rows[[0, 1, 2, 6, 7, 8]].min() <= rows[3] <= rows[[0, 1, 2, 6, 7, 8]].max()


def test_a_matrix_of_low_rank_is_completed() -> None:
    rng = np.random.default_rng(2)
    row, column, left, right = rng.uniform(-0.2, 0.2, (4, 18))
    rate = 0.5 + row[:, None] + column + 2.0 * left[:, None] * right
    completion = MatrixCompletion(rank=1, ridge=1e-4, sweeps=60)
    _, off = errors(completion, rate, "model3", 5)
    assert off.mean() < 0.01


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_no_method_looks_at_what_is_asked_for(method: Baseline) -> None:
    measured = pairs(seed=6)
    made = fold_without(measured, measured.jobs_of("model2"), 2)
    first = method.predict(measured, made)
    rate = np.where(made.asked, 1.0 - 0.9 * measured.rate, measured.rate)
    assert (method.predict(replace(measured, rate=rate), made) == first).all()
    assert first.shape == made.known.shape
    assert ((first > 0.0) & (first <= 1.0)).all()


def test_contention_stands_for_networks_alone() -> None:
    names = [m.name for m in baselines(replace(pairs(), scope=ON_GPU), 0.3)]
    assert "contention" not in names
    assert "contention" in [m.name for m in ALL]
