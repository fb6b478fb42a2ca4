"""The numbers of a trace, counted by hand and by plain loops."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from random_traces import traces

from envs.cluster.workload.summary import QUANTILES, summarise
from envs.cluster.workload.trace import Trace
from tests.strength import examples


def test_by_hand() -> None:
    trace = Trace.of(
        "hand", [0, 3600, 7200, 7200], [3600, 7200, 1800, 1800], [1, 2, 8, 8],
        queue=["a", "b", "b", None],
    )  # fmt: skip
    found = summarise(trace, origin_s=23 * 3600)
    assert (found.name, found.jobs, found.span_s, found.max_gpus) == ("hand", 4, 7200, 8)
    assert (found.mean_duration_s, found.mean_interarrival_s) == (3600, 2400)
    assert found.gpu_hours == pytest.approx(1 + 4 + 4 + 4)
    assert found.offered_load(10) == pytest.approx(13 / 20) == trace.offered_load(10)
    assert found.arrivals_by_hour.tolist() == [1, 2, *[0] * 21, 1]
    assert [(gang.num_gpus, gang.jobs) for gang in found.gangs] == [(1, 1), (2, 1), (8, 2)]
    last = found.gangs[2]
    shares = (last.job_share, last.mean_duration_s, last.gpu_hour_share)
    assert shares == pytest.approx((0.5, 1800, 8 / 13))
    assert found.duration_s[QUANTILES.index(0.5)] == 2700
    assert found.gangs[1].duration_s.tolist() == [7200] * len(QUANTILES)
    by_queue = found.jobs_by_queue
    assert (next(iter(by_queue)), by_queue) == ("b", {"b": 2, "": 1, "a": 1})
    assert found.gpu_hours_by_queue["b"] == pytest.approx(8)
    assert found.jobs_by_user == {"": 4}


@examples(50)
@given(trace=traces())
def test_the_parts_make_the_whole(trace: Trace) -> None:
    found = summarise(trace)
    assert sum(gang.jobs for gang in found.gangs) == found.jobs == len(trace)
    hours = sum(job.num_gpus * job.gpu_milli / 1000 * job.duration_s for job in trace) / 3600
    parts = (gang.gpu_hours for gang in found.gangs), found.gpu_hours_by_user.values()
    assert [found.gpu_hours, *map(sum, parts)] == pytest.approx([hours] * 3)
    assert found.jobs_by_user == Counter(job.user or "" for job in trace)
    assert found.jobs_by_queue == Counter(job.queue or "" for job in trace)
    assert found.arrivals_by_hour.sum() == len(trace)
    counts = list(found.jobs_by_queue.values())
    assert counts == sorted(counts, reverse=True)


def test_no_job_and_one_job() -> None:
    none = summarise(Trace.of("none", [], [], []))
    assert (none.jobs, none.gpu_hours, none.gangs) == (0, 0.0, ())
    assert np.isnan([none.mean_duration_s, none.offered_load(8), *none.duration_s]).all()
    one = summarise(Trace.of("one", [0], [5], [1]))
    assert one.gangs[0].job_share == 1.0
    assert math.isnan(one.mean_interarrival_s)
