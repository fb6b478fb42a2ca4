"""The readers on the real files, against a reading by the csv module."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from pathlib import Path

import pytest

from envs.cluster.workload.readers.job_logs import ItpReader, PhillyReader

pytestmark = pytest.mark.slow

ITP_JOBS = {"01": 1595, "02": 5778, "04": 15802, "06": 2396, "08": 13047, "10": 260}


def rows_of(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("cluster", ITP_JOBS)
def test_itp(cluster: str, data: Path) -> None:
    path = data / "traces" / "itp" / f"cluster{cluster}.csv.gz"
    found = ItpReader().read(path)
    rows = sorted((int(r["submission_time"]), r["job_id"], r) for r in rows_of(path))
    first = rows[0][0]
    assert len(found.trace) == found.rows == ITP_JOBS[cluster]
    assert (found.num_rejected, found.origin_s) == (0, first)
    assert found.trace.name == f"cluster{cluster}"
    assert [(j.job_id, j.submit_s, j.duration_s, j.num_gpus, j.queue) for j in found.trace] == [
        (job, submit - first, int(row["duration"]), int(row["num_gpu"]), None)
        for submit, job, row in rows
    ]


def test_philly(data: Path) -> None:
    path = data / "traces" / "philly" / "philly.csv.gz"
    found = PhillyReader().read(path)
    rows = sorted(
        ((datetime.fromisoformat(r["timestamp"]) - datetime(1970, 1, 1)).total_seconds(), i, r)
        for i, r in enumerate(rows_of(path))
    )
    first = rows[0][0]
    assert len(found.trace) == found.rows == 57578
    assert len(found.trace.queue.names) == 8
    assert (found.trace.num_gpus.max(), found.origin_s) == (128, first)
    assert [(j.job_id, j.submit_s, j.duration_s, j.num_gpus, j.queue) for j in found.trace] == [
        (str(i), submit - first, float(r["duration"]), int(r["num_gpus"]), r["cluster"])
        for submit, i, r in rows
    ]
    assert found.trace.gpu_seconds.sum() == sum(float(r["gpu_time"]) for _, _, r in rows)
