from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import preempted_schedule, random_schedule

from envs.cluster.simulation.cluster_metrics import Distribution, exact_sum, measure, queueing_s
from envs.cluster.simulation.cluster_state import Schedule
from envs.errors import InputError
from tests.strength import examples


def two_jobs() -> Schedule:
    """On 2 GPUs: the first job runs at once, the second, of 4 s, behind it."""
    return Schedule(
        submit=np.array([10.0, 12.0]),
        start=np.array([10.0, 30.0]),
        finish=np.array([30.0, 34.0]),
        work=np.array([20.0, 4.0]),
        gpus=np.array([2.0, 1.0]),
        held=np.array([20.0, 4.0]),
        preemptions=np.zeros(2, np.int32),
    )


def test_two_jobs_by_hand() -> None:
    found = measure(two_jobs(), 2)
    assert (found.jobs, found.finished, found.preemptions) == (2, 2, 0)
    assert found.sum_jct_s == 42
    assert isinstance(found.sum_jct_s, int)
    assert found.jct == Distribution(21.0, 21.0, 21.9, 21.98, 22.0)
    assert found.first_wait == found.queueing
    assert found.first_wait.max == 18
    assert found.slow_down.mean == pytest.approx((1 + 5.5) / 2)
    assert found.bounded_slow_down.mean == pytest.approx((1 + 2.2) / 2)
    assert found.makespan_s == 34
    assert found.utilisation == pytest.approx((20 * 2 + 4) / (2 * 24))


@examples(40)
@given(st.integers(0, 2**32), st.booleans())
def test_all_is_as_a_loop_over_seconds_finds_it(seed: int, preempt: bool) -> None:
    schedule, num_gpus = random_schedule(seed, preempt=preempt)
    found = measure(schedule, num_gpus)
    assert schedule.runs is not None
    seconds = range(int(schedule.submit.min()), int(schedule.finish.max()))
    waited = np.zeros(len(schedule.submit))
    held = 0
    for second in seconds:
        now = [run for run in schedule.runs if run["start"] <= second < run["end"]]
        held += sum(int(run["gpus"]) for run in now)
        for job in range(len(waited)):
            here = schedule.submit[job] <= second < schedule.finish[job]
            waited[job] += here and job not in {run["job"] for run in now}
    np.testing.assert_array_equal(queueing_s(schedule), waited)
    assert found.queueing.mean == pytest.approx(waited.mean())
    assert found.utilisation == pytest.approx(held / len(seconds) / num_gpus)
    assert found.sum_jct_s == sum(int(waited[j] + schedule.work[j]) for j in range(len(waited)))
    jct = sorted(schedule.finish - schedule.submit)
    place = 0.95 * (len(jct) - 1)  # linear between the ranks on both sides
    low = int(place)
    p95 = jct[low] + (place - low) * (jct[min(low + 1, len(jct) - 1)] - jct[low])
    assert found.jct.p95 == pytest.approx(p95)
    assert found.first_wait.max <= found.queueing.max
    assert found.slow_down.mean >= 1
    assert (found.preemptions > 0) == bool(schedule.preemptions.any())


def test_no_log_is_needed() -> None:
    schedule, num_gpus = preempted_schedule()
    assert measure(replace(schedule, runs=None), num_gpus) == measure(schedule, num_gpus)


def test_jobs_that_did_not_finish_count_as_jobs_alone() -> None:
    never = replace(
        two_jobs(),
        start=np.array([10.0, -1.0]),
        finish=np.array([30.0, -1.0]),
        held=np.array([20.0, 0.0]),
    )
    found = measure(never, 2)
    assert (found.jobs, found.finished, found.sum_jct_s) == (2, 1, 20)
    assert found.utilisation == 1
    none = replace(never, start=np.full(2, -1.0), finish=np.full(2, -1.0))
    found = measure(none, 2)
    assert found.sum_jct_s == 0
    assert np.isnan(found.jct.mean)
    assert np.isnan(found.jain)


def test_sums_are_exact() -> None:
    large = np.array([2.0**52, 1.0, 1.0, 2.0**52])
    assert exact_sum(large) == 2**53 + 2
    assert exact_sum(np.full(10, 0.1)) == 1.0
    assert exact_sum(np.array([1e16, 1.0, 1.0, -1e16])) == 2.0
    assert exact_sum(np.zeros(0)) == 0


def test_the_document_is_flat_and_names_units() -> None:
    document = measure(two_jobs(), 2).document()
    assert document["p99_jct_s"] == 21.98
    assert document["mean_queueing_s"] == 9
    assert document["max_finish_time_fairness"] == pytest.approx(22 / 4)
    assert not any(isinstance(value, dict) for value in document.values())


def test_a_cluster_without_gpus_is_refused() -> None:
    with pytest.raises(InputError, match="num_gpus"):
        measure(two_jobs(), 0)
