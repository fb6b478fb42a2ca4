"""The published traces, read without the project's readers."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from pathlib import Path

from envs.cluster.workload.trace import Trace

PHILLY = "philly"
ITP = {  # clusters and their jobs
    "cluster01": 1595, "cluster02": 5778, "cluster04": 15802, "cluster06": 2396, "cluster08": 13047,
    "cluster10": 260,
}  # fmt: skip


def file_of(data: Path, name: str) -> Path:
    return data / "traces" / (PHILLY if name == PHILLY else "itp") / f"{name}.csv.gz"


def published(data: Path, name: str) -> Trace:
    """A trace by its name, in the order of submissions; Philly's ids are the numbers of rows."""
    philly = name == PHILLY
    with gzip.open(file_of(data, name), "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def submitted(row: dict[str, str]) -> int:
        if philly:
            return int(datetime.fromisoformat(f"{row['timestamp']}Z").timestamp())
        return int(row["submission_time"])

    for number, row in enumerate(rows):
        row.setdefault("job_id", str(number))
    rows.sort(key=submitted)
    return Trace.of(
        name,
        list(map(submitted, rows)),
        [int(float(row["duration"])) for row in rows],
        [int(row["num_gpus" if philly else "num_gpu"]) for row in rows],
        job_id=[row["job_id"] for row in rows],
        queue=[row.get("cluster") for row in rows],
    )
