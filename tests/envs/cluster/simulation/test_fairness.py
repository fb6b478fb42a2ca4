from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import random_schedule

from envs.cluster.simulation.cluster_metrics import finish_time_fairness, jain_index
from envs.cluster.simulation.cluster_state import Schedule
from tests.strength import examples


def schedule(jobs: list[tuple[float, float, float, float, float]]) -> Schedule:
    """Of (submit, start, finish, work, gpus)."""
    columns = np.array(jobs).T
    return Schedule(*columns, held=columns[3], preemptions=np.zeros(len(jobs), np.int32))


def test_a_job_alone_has_rho_1() -> None:
    assert finish_time_fairness(schedule([(3, 3, 13, 10, 4)]), 4).tolist() == [1.0]


def test_two_jobs_by_hand() -> None:
    # both ask for the whole cluster of 2 GPUs; the second waits for the first
    found = finish_time_fairness(schedule([(0, 0, 10, 10, 2), (0, 10, 20, 10, 2)]), 2)
    # first: two jobs beside each other for 10 s: alone 10·2 = 20; second: 1.5 on average
    np.testing.assert_allclose(found, [10 / 20, 20 / 15])
    # with 4 GPUs each of them has as much as it asks for in half of the cluster
    found = finish_time_fairness(schedule([(0, 0, 10, 10, 2), (0, 10, 20, 10, 2)]), 4)
    np.testing.assert_allclose(found, [1, 2])


@examples(30)
@given(st.integers(0, 2**32), st.booleans())
def test_rho_is_that_of_a_loop_over_seconds(seed: int, preempt: bool) -> None:
    result, num_gpus = random_schedule(seed, preempt=preempt)
    for job, rho in enumerate(finish_time_fairness(result, num_gpus)):
        stay = np.arange(result.submit[job], result.finish[job])
        present = [
            np.count_nonzero((result.submit <= second) & (second < result.finish))
            for second in stay
        ]
        gpus_of_share = num_gpus / np.mean(present)
        part = min(1.0, gpus_of_share / result.gpus[job])
        alone = result.work[job] / part
        assert rho == pytest.approx(len(stay) / alone)


def test_jain_index_by_hand() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain_index(np.array([1.0, 2.0])) == pytest.approx(9 / 10)
    assert np.isnan(jain_index(np.zeros(0)))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.1, 50))
def test_jain_index_does_not_know_the_unit(values: list[float], factor: float) -> None:
    found = jain_index(np.array(values))
    assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
    assert jain_index(np.array(values) * factor) == pytest.approx(found)
