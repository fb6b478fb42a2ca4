"""None"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from shipped_workloads import document, shipped

from envs.cluster.workload.synthetic.fit import kolmogorov_smirnov
from envs.cluster.workload.synthetic.parameters import (
    LEAST_JOBS,
    QuantileTable,
    workload_parameters,
)
from envs.forms import read_form
from tests.refusal import refusal


@pytest.mark.parametrize("name", ["itp", "philly"])
def test_a_document_is_itself_again(name: str) -> None:
    parameters = shipped(name)
    assert workload_parameters(**parameters.document()).document() == parameters.document()
    assert parameters.name == name


LEFT_OUT = object()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("pause", LEFT_OUT, "pause"),
        ("colour", 1, "colour"),
        ("pause.quantile", LEFT_OUT, "quantile"),
        ("pause", [1, 2], "pause"),
        ("gap_memory.strength", 1.5, "strength"),
        ("gang_shares.0", 0.2, "gang_shares"),
        ("gang_shares", [1.0], "gang_shares"),
        ("gang_sizes.1", 1, "gang_sizes"),
        ("durations.0.num_gpus", [3], "durations"),
        ("durations.2.num_gpus", LEFT_OUT, r"durations\[2\]"),
        ("sessions.length.0", 0.5, "length"),
        ("sessions.gap_before", [0.5], "gap_before"),
        ("sessions.gap_within.2", float("nan"), "gap_within"),
        ("sessions.gap_within", LEFT_OUT, "gap_within"),
        ("sessions", 3, "sessions"),
        ("burst_share", 2, "burst_share"),
        ("jobs", "many", "many"),
        ("daily.3", "noon", "noon"),
    ],
)
def test_a_wrong_entry_is_named(path: str, value: object, named: str) -> None:
    found = node = document()
    *above, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in above:
        node = node[key]
    if value is LEFT_OUT:
        del node[last]
    else:
        node[last] = value
    with refusal(named):
        workload_parameters(**found)


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=300),
    st.integers(1, 500),
    st.integers(0, 2**31),
)
def test_a_sample_is_as_near_as_the_entries_allow(values: list[int], count: int, seed: int) -> None:
    table = QuantileTable.fit(np.array(values))
    sample = table.sample(count, default_rng(seed))
    assert (np.diff(sample) >= 0).all()
    assert min(values) <= sample[0]
    assert sample[-1] <= max(values) * (1 + 1e-12)
    # each entry is met to one value of the sample and to one of the data between two ranks
    p, q, slack = table.probability, table.quantile, 1 / count + 1e-9
    assert ((sample[:, None] < q * (1 - 1e-12)).mean(axis=0) <= p + slack).all()
    assert ((sample[:, None] > q * (1 + 1e-12)).mean(axis=0) <= 1 - p + slack).all()


def test_a_table_of_many_values_has_their_distribution_and_mean() -> None:
    values = default_rng(1).lognormal(8, 1.8, 20_000)
    table = QuantileTable.fit(values)
    assert len(table.probability) < 70
    sample = table.sample(5_000, default_rng(2))
    assert kolmogorov_smirnov(values, sample) < 0.012
    assert sample.mean() == pytest.approx(values.mean(), rel=0.05)


def test_entries_are_not_nearer_than_a_few_values() -> None:
    table = QuantileTable.fit(np.arange(40))
    assert (np.diff(table.probability) * 40 >= LEAST_JOBS - 1e-9).all()


def of_entries(probability: list[float], quantile: list[float]) -> QuantileTable:
    return read_form(QuantileTable, {"probability": probability, "quantile": quantile})


def test_between_entries_the_logarithm_rises_evenly() -> None:
    sample = of_entries([0.0, 1.0], [1.0, 10_000.0]).sample(10_001, default_rng(0))
    np.testing.assert_allclose(np.log10(sample), np.linspace(0, 4, 10_001), atol=0.02)
    linear = of_entries([0.0, 1.0], [0.0, 8.0]).sample(1000, default_rng(0))
    assert linear.mean() == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    ("probability", "quantile"),
    [
        ([0.0], [1.0]),
        ([0.0, 1.0], [1.0]),
        ([0.0, 0.9], [1.0, 2.0]),
        ([0.0, 0.5, 0.5, 1.0], [1.0, 2.0, 3.0, 4.0]),
        ([0.0, 1.0], [2.0, 1.0]),
        ([0.0, 1.0], [-1.0, 1.0]),
        ([0.0, 1.0], [1.0, float("inf")]),
    ],
)
def test_what_is_no_table_is_refused(probability: list[float], quantile: list[float]) -> None:
    with refusal():
        of_entries(probability, quantile)
