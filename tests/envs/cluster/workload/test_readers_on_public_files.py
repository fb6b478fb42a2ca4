"""The readers on the real files, against a reading by the csv module."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import polars as pl
import pytest

from envs.cluster.workload.readers.job_logs import ItpReader, PhillyReader
from tests.envs.cluster.workload.synthetic.published_traces import ITP, PHILLY, file_of, published

pytestmark = pytest.mark.slow

JOBS = ITP | {PHILLY: 57578}


@pytest.mark.parametrize("name", JOBS)
def test_the_jobs_are_those_of_the_rows(name: str, data: Path) -> None:
    path, expected = file_of(data, name), published(data, name)
    found = (PhillyReader() if name == PHILLY else ItpReader()).read(path)
    trace, first = found.trace, expected.submit_s[0]
    assert (found.rows, found.num_rejected, found.origin_s) == (JOBS[name], 0, first)
    assert trace.name == name
    by = attrgetter("submit_s") if name == PHILLY else attrgetter("submit_s", "job_id")
    assert list(trace) == sorted(expected.canonical(), key=by)
    if name == PHILLY:
        assert (len(trace.queue.names), trace.num_gpus.max()) == (8, 128)
        assert trace.gpu_seconds.sum() == pl.read_csv(path)["gpu_time"].sum()
