"""Tables of any function."""

from __future__ import annotations

import numpy as np
import pytest
from crowds import ONE_TYPE, crowd, holdings, random_trace, rates
from made_up import named_trace, profiles, step_model
from numpy.random import default_rng

from envs.cluster.interference.analytic import SharedBottleneck
from envs.cluster.interference.kernel import NOBODY, multisets
from envs.cluster.interference.rates import ON_GPU, ON_NODE, NoInterference
from envs.cluster.interference.tabulated import TabulatedRates, number_of, tabulate
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal

WEIGHT = np.array([0.1, 0.5, 0.8, 0.0])  # of each profile; the last is of nobody


def gentle(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + WEIGHT[own] * WEIGHT[neighbours].sum(axis=1))


def modulo(trace: Trace, seed: int) -> np.ndarray:
    return (np.arange(len(trace)) + seed) % 3


def test_every_multiset_has_its_rate() -> None:
    sets = tabulate(gentle, 3, 3)
    for members in multisets(3, 3):
        expected = 1 / (1 + WEIGHT[:3] * sum(WEIGHT[m] for m in members))
        assert sets[:, number_of(members, 3)] == pytest.approx(expected)


def test_predictors_see_ascending_neighbours() -> None:
    def check(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        assert neighbours.shape == (len(own), 2)
        assert (np.diff(neighbours, axis=1) >= 0).all()
        assert (neighbours.max(axis=1) > NOBODY).all()
        return np.ones(len(own))

    tabulate(check, 4, 2)


def test_a_predictor_that_is_not_monotone_is_made_so() -> None:
    """Alone beside 0: 0.5, beside 1: 1.5; beside both: 0.9."""

    def odd(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        zero, one = (neighbours == 0).any(axis=1), (neighbours == 1).any(axis=1)
        return np.where(zero & one, 0.9, np.where(zero, 0.5, 1.5))

    sets = tabulate(odd, 2, 2)
    at = {members: sets[0, number_of(members, 2)] for members in multisets(2, 2)}
    assert at == {(): 1.0, (0,): 0.5, (1,): 1.0, (0, 0): 0.5, (0, 1): 0.5, (1, 1): 1.0}


def test_beyond_the_tables_the_least_subset_counts() -> None:
    rng = default_rng(2)
    model = TabulatedRates("gentle", gentle, 3, modulo, NoInterference(), 2, ON_NODE, 1)
    simulator = crowd(model, ONE_TYPE, random_trace(rng, 40), rng)
    held, most = holdings(simulator), 0
    for job, rate in rates(simulator).items():
        left = 1.0
        for node in held[job]:
            beside = sorted(WEIGHT[(o + 1) % 3] for o in held if o != job and node in held[o])
            most = max(most, len(beside))
            left = min(left, 1 / (1 + WEIGHT[(job + 1) % 3] * sum(beside[-2:])))
        assert rate == pytest.approx(left, rel=1e-12)
    assert most > 2


def test_a_function_of_its_own_gives_the_rates_of_the_analytic_model() -> None:
    """Partial GPUs with at most four jobs, whose PCIe and ports nobody needs."""
    table = profiles()
    busy = np.array([*(p.busy for p in table.all), 0.0])

    def shares(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        return 1.0 / np.maximum(1.0, busy[own] + busy[neighbours].sum(axis=1))

    analytic = SharedBottleneck(table, step_model(), 0)
    model = TabulatedRates("shares", shares, 3, table.assign, analytic, 3, ON_GPU, 0)
    for seed in range(5):
        models = default_rng(seed).choice(["mute", "chatty"], 30).tolist()
        trace = named_trace(models, [1] * 30, [250] * 30)
        a, b = (rates(crowd(m, ONE_TYPE, trace, default_rng(seed))) for m in (analytic, model))
        assert a == pytest.approx(b, rel=1e-12)
        assert min(a.values()) < 1.0


def test_bad_input() -> None:
    with refusal("'largest': 4 is not between 1 and 3"):
        TabulatedRates("t", gentle, 3, modulo, NoInterference(), 4, ON_NODE, 0)
    for wrong in (np.zeros(9), np.ones(2)):
        with refusal("'predict': is not 9 finite numbers above 0"):
            tabulate(lambda *_, wrong=wrong: wrong, 3, 1)
