"""Reader of Philly's own log, `cluster_job_log`: JSON, one object per job with its attempts.

github.com/msr-fiddle/philly-traces; Jeon et al., *Analysis of Large-Scale Multi-Tenant GPU Clusters
for DNN Training Workloads*, USENIX ATC 2019. Written from the published description of the keys and
tested on entries made by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envs.cluster.workload.readers.entries import EXCLUDED, EntryError, entry_trace
from envs.cluster.workload.readers.read_trace import ReadTrace
from envs.errors import InputError
from envs.files import read_json

ABSENT = (None, "", "None")
CLOCK_LENGTH = len("YYYY-MM-DD HH:MM:SS")
FIELDS = {  # of a trace, and what the log calls them
    "job_id": "jobid", "submit_s": "submitted_time", "duration_s": "attempts", "num_gpus": "gpus",
    "queue": "vc", "user": "user",
}  # fmt: skip


class PhillyJsonReader:
    """JSON: a list of `{status, vc, jobid, user, submitted_time, attempts}`.

    A job's duration is the sum of the run times of its attempts: that is how long it held its GPUs.
    (The published analysis takes the time from the first start to the last end, which counts the
    waits between attempts as work.) Its gang is the GPUs of the first attempt, as published. The
    virtual cluster is the queue. Excluded are jobs that were never submitted or attempted, those
    with an attempt of which start or end is not recorded, and those that ran for no second or on
    no GPU.

    Times are read as the clock showed them: the log has no time zone, so that an attempt across the
    end of daylight saving time (5 November 2017) may be an hour short.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty entry raises InputError."""
        entries = read_json(path)
        if not isinstance(entries, list):
            raise InputError("is no list of jobs", file=path)
        return entry_trace(path, entries, _job, FIELDS, strict=strict)


def _job(entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise EntryError(None, "is no object")
    submit_s = _seconds(entry, "submitted_time", "is not recorded")
    attempts = _items(entry, "attempts")
    if not attempts:
        raise EntryError("attempts", "is empty: the job never ran", EXCLUDED)
    duration_s = 0
    for attempt in attempts:
        start = _seconds(attempt, "start_time", "of an attempt is not recorded")
        end = _seconds(attempt, "end_time", "of an attempt is not recorded")
        if end < start:
            raise EntryError("end_time", "of an attempt is before its start_time")
        duration_s += end - start
    num_gpus = sum(len(_items(server, "gpus")) for server in _items(attempts[0], "detail"))
    if num_gpus == 0:
        raise EntryError("gpus", "is empty: a job without GPU", EXCLUDED)
    if duration_s == 0:
        raise EntryError("attempts", "took no second: the job never ran", EXCLUDED)
    labels = {field: entry.get(FIELDS[field]) for field in ("job_id", "queue", "user")}
    return {"submit_s": submit_s, "duration_s": duration_s, "num_gpus": num_gpus, **labels}


def _get(node: object, field: str) -> Any:
    return node.get(field) if isinstance(node, Mapping) else None


def _items(node: object, field: str) -> list[object]:
    items = _get(node, field)
    if not isinstance(items, list):
        raise EntryError(field, "is no list")
    return items


def _seconds(node: object, field: str, absent: str) -> int:
    value = _get(node, field)
    if value in ABSENT:
        raise EntryError(field, absent, EXCLUDED)
    try:
        if not isinstance(value, str) or len(value) != CLOCK_LENGTH:
            raise ValueError
        return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise EntryError(field, "is no time of the form YYYY-MM-DD HH:MM:SS") from None
