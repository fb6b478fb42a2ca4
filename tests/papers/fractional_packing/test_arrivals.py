"""Arrivals that are drawn, and what is counted of them as they are packed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from agents.cluster.rules.fractional import BestFit
from envs.cluster.nodes import Cluster, ResourceRequests
from experiments.papers.fractional_packing.packing import draw_arrivals, pack
from tests.agents.cluster.rules.fractional_cases import Row, cluster_of, clusters, requests_of, rows
from tests.refusal import refusal
from tests.strength import SEEDS, examples


@examples(40)
@given(clusters, rows)
def test_what_fits_is_counted_and_never_leaves(cluster: Cluster, workload: list[Row]) -> None:
    numbers = np.arange(len(workload))
    result = pack(BestFit(), cluster, requests_of(workload), numbers, default_rng(0))
    asked = np.array([row[2] * row[3] for row in workload])
    assert (result.arrived_milli == np.cumsum(asked)).all()
    assert (result.allocated_milli == np.cumsum(np.where(result.node < 0, 0, asked))).all()
    assert result.allocated_milli[-1] <= 1000 * cluster.num_gpus
    assert result.failed == (result.node < 0).sum()


@given(SEEDS, st.sampled_from([0.01, 0.9, 1.3]))
def test_arrivals_ask_for_the_load_and_not_for_a_job_more(seed: int, load: float) -> None:
    cluster = cluster_of([(8000, 8192, 4, "A")] * 3)
    workload = requests_of([(0, 0, 0, 1000, ""), (0, 0, 1, 330, ""), (0, 0, 4, 1000, "")])
    arrivals = draw_arrivals(workload, cluster, load, default_rng(seed))
    asked = workload.demand_milli[arrivals].sum()
    assert load * 12_000 <= asked < load * 12_000 + 4000


@pytest.mark.parametrize("load", [0.0, -1.0, float("inf"), float("nan")])
def test_a_load_is_positive_and_finite(load: float) -> None:
    with refusal("load"):
        draw_arrivals(
            requests_of([(0, 0, 1, 500, "")]),
            cluster_of([(0, 0, 1, "A")]),
            load,
            default_rng(0),
        )


def test_jobs_without_gpus_never_ask_for_a_load() -> None:
    workload: ResourceRequests = requests_of([(1000, 0, 0, 1000, "")])
    with refusal("no GPUs"):
        draw_arrivals(workload, cluster_of([(0, 0, 1, "A")]), 1.3, default_rng(0))
