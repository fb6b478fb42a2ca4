"""The readers on the real files, against a reading by the csv module."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from pathlib import Path

import pytest

from envs.cluster.workload.readers.job_logs import ItpReader, PhillyReader

pytestmark = pytest.mark.slow

JOBS = {
    "itp/cluster01": 1595, "itp/cluster02": 5778, "itp/cluster04": 15802, "itp/cluster06": 2396,
    "itp/cluster08": 13047, "itp/cluster10": 260, "philly/philly": 57578,
}  # fmt: skip


def seconds(text: str) -> float:
    return int(text) if text.isdigit() else datetime.fromisoformat(f"{text}Z").timestamp()


@pytest.mark.parametrize("name", JOBS)
def test_the_jobs_are_those_of_the_rows(name: str, data: Path) -> None:
    path, philly = data / "traces" / f"{name}.csv.gz", name == "philly/philly"
    reader, submit, gpus = (
        (PhillyReader(), "timestamp", "num_gpus") if philly
        else (ItpReader(), "submission_time", "num_gpu")
    )  # fmt: skip
    found = reader.read(path)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    jobs = sorted(
        (
            seconds(r[submit]),
            r.get("job_id", i),
            float(r["duration"]),
            int(r[gpus]),
            r.get("cluster"),
        )
        for i, r in enumerate(rows)
    )  # fmt: skip
    first, trace = jobs[0][0], found.trace
    assert (found.rows, found.num_rejected, found.origin_s) == (JOBS[name], 0, first)
    assert trace.name == name.split("/")[1]
    assert [(j.submit_s, j.job_id, j.duration_s, j.num_gpus, j.queue) for j in trace] == [
        (second - first, str(job), *others) for second, job, *others in jobs
    ]
    if philly:
        assert (len(trace.queue.names), trace.num_gpus.max()) == (8, 128)
        assert trace.gpu_seconds.sum() == sum(float(row["gpu_time"]) for row in rows)
