"""The bound is never above what an exhaustive search or any policy reaches, and hand cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import TYPES, clusters, traces
from small_clusters import LowestNodes, Speeds

from agents.cluster.lower_bound import completion_bound
from agents.cluster.prediction import Gittins
from agents.cluster.queue import LAS2D, SRSF, SRTF
from agents.cluster.replay import replay
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace
from tests.envs.cluster.environment.brute_force import least_preemptive_sum_jct
from tests.refusal import refusal


@given(st.data(), st.integers(1, 3))
def test_never_above_the_best_schedule(data: st.DataObject, gpus: int) -> None:
    jobs = data.draw(st.integers(1, 5))

    def drawn(least: int, most: int) -> list[int]:
        numbers = st.integers(least, most)
        return data.draw(st.lists(numbers, min_size=jobs, max_size=jobs))

    submit, seconds, gangs = sorted(drawn(0, 4)), drawn(1, 4), drawn(1, gpus)
    bound = completion_bound(Trace.of("few", submit, seconds, gangs), Cluster.uniform(1, gpus))
    best = least_preemptive_sum_jct(list(zip(submit, seconds, gangs, strict=True)), [gpus])
    assert sum(seconds) * (1 - 1e-8) <= bound.sum_jct_s <= best


@given(st.data())
def test_never_above_any_policy_on_mixed_gpus(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster, longest=40))
    trace = replace(trace, cpu_milli=np.zeros(len(trace), np.int64))
    speed = st.sampled_from([0.125, 0.25, 0.5, 1.0, 1.5])
    speeds = st.lists(speed, min_size=len(trace), max_size=len(trace))
    rates = Speeds(np.array([data.draw(speeds) for _ in TYPES]).T.copy())
    restart = data.draw(st.sampled_from([0.0, 3.0]))
    bound = completion_bound(trace, cluster, rates)
    place = LowestNodes()
    for policy in (
        SRTF(place, 0), SRSF(place, 0), LAS2D(place, [20, 90], 0),
        Gittins(place, [20.0, 90.0], [20.0, 90.0, None], None, 0),
    ):  # fmt: skip
        schedule = replay(policy, cluster, trace, rates=rates, overheads=Overheads(restart, 0.0))
        assert bound.sum_jct_s <= float(schedule.jct.sum())


def test_a_slow_type_adds_only_its_speed() -> None:
    """100 jobs of one GPU, 100 s, on a GPU of speed 1 and three of speed 1/4.

    A fluid machine of speed 1.75, every job complete at least 50 s after its mean busy time.
    """
    jobs = 100
    trace = Trace.of("alike", [0] * jobs, [100] * jobs, [1] * jobs)
    cluster = Cluster.uniform(4, 1, gpu_types=("V100", "K80"))
    cluster = replace(cluster, gpu_type=np.array([0, 1, 1, 1], np.int32))
    rates = Speeds(np.tile([1.0, 0.25], (jobs, 1)))
    bound = completion_bound(trace, cluster, rates)
    fluid = sum(100.0 / 1.75 * (k + 0.5) + 50.0 for k in range(jobs))
    assert bound.sum_jct_s == pytest.approx(fluid, rel=1e-2)
    assert bound.sum_jct_s <= fluid * (1 + 1e-9)
    pooled = completion_bound(trace, cluster)
    assert pooled.sum_jct_s < 0.6 * bound.sum_jct_s


FOUR = Trace.of("four", [0] * 4, [10] * 4, [1] * 4)
PARTS = Trace.of("parts", [0, 0, 0], [10, 10, 7], [1, 1, 0])
HALVES = replace(PARTS, gpu_milli=np.array([500, 500, WHOLE_GPU], np.int32))
ONE_GPU, MIXED = Cluster.uniform(1, 1), Cluster.uniform(4, 1, gpu_types=("V100", "K80"))


@pytest.mark.parametrize(
    ("trace", "cluster", "jct_s"),
    [
        (Trace.of("in turns", [0, 0], [10, 10], [1, 1]), ONE_GPU, [10, 20]),
        (FOUR, MIXED, [10, 10, 10, 10]),
        (replace(FOUR, gpu_type=Labels.of(["V100"] * 4)), MIXED, [10, 10, 20, 20]),
        (HALVES, ONE_GPU, [10, 10, 7]),
        (HALVES.take(slice(2, 3)), ONE_GPU, [7]),
        (FOUR.take(slice(0)), ONE_GPU, []),
    ],
)
def test_small_cases_are_met_exactly(trace: Trace, cluster: Cluster, jct_s: list[int]) -> None:
    bound = completion_bound(trace, cluster)
    assert bound.sum_jct_s == pytest.approx(sum(jct_s))
    mean = np.mean(jct_s) if jct_s else np.nan
    assert bound.mean_jct_s == pytest.approx(mean, nan_ok=True)
    assert bound.alone_s == trace.duration_s.sum()


def test_a_job_that_runs_nowhere_is_named() -> None:
    trace = Trace.of("lost", [0, 0], [5, 5], [1, 1])
    with refusal(r"lost.*1.*runs on no GPU"):
        completion_bound(trace, ONE_GPU, Speeds(np.array([[1.0], [0.0]])))
