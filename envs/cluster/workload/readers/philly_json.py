"""Reader of Philly's own log, `cluster_job_log`: JSON, one object per job with its attempts.

github.com/msr-fiddle/philly-traces; Jeon et al., *Analysis of Large-Scale Multi-Tenant GPU Clusters
for DNN Training Workloads*, USENIX ATC 2019. Written from the published description of the keys and
tested on entries made by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.cluster.workload.readers.read_trace import ReadTrace, canonical_trace
from envs.errors import InputError
from envs.files import read_json
from envs.text_table import Columns, RowChecks, Table

ABSENT = (None, "", "None")
CLOCK_LENGTH = len("YYYY-MM-DD HH:MM:SS")
TEXTS = ("jobid", "vc", "user")


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
        if not entries:
            raise InputError("holds no job", file=path)
        jobs, no_cells = len(entries), np.zeros(len(entries), np.int64)
        found = [[_get(entry, field) for entry in entries] for field in TEXTS]
        texts = [
            pl.Series([text if isinstance(text, str) else "" for text in column], dtype=pl.String)
            for column in found
        ]
        text = Columns(path, TEXTS, texts)
        checks = RowChecks(Table(path, text, lambda row: f"entry {row + 1}", no_cells, 0))
        numbers = np.zeros((jobs, 3), np.int64)
        faults: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for row, entry in enumerate(entries):
            try:
                numbers[row] = _numbers(entry)
            except _FaultError as fault:
                faults[fault.args].append(row)
        for (field, reason, *excluded), rows in faults.items():
            wrong = np.isin(np.arange(jobs), rows)
            checks.reject(wrong, field, reason, excluded=bool(excluded))
        submit_s, duration_s, num_gpus = numbers.T
        return canonical_trace(
            checks,
            {
                "job_id": text["jobid"],
                "submit_s": submit_s,
                "duration_s": duration_s,
                "num_gpus": num_gpus,
                "user": text["user"],
                "queue": text["vc"],
            },
            "jobid",
            strict=strict,
        )


EXCLUDED = True


class _FaultError(Exception):
    """Field and reason; and `EXCLUDED` where the entry is sound, but no job on GPUs."""


def _numbers(entry: object) -> tuple[int, int, int]:
    """Second of submission, seconds, GPUs."""
    if not isinstance(entry, Mapping):
        raise _FaultError(None, "is no object")
    submit_s = _seconds(entry, "submitted_time", "is not recorded")
    attempts = _items(entry, "attempts")
    if not attempts:
        raise _FaultError("attempts", "is empty: the job never ran", EXCLUDED)
    duration_s = 0
    for attempt in attempts:
        start = _seconds(attempt, "start_time", "of an attempt is not recorded")
        end = _seconds(attempt, "end_time", "of an attempt is not recorded")
        if end < start:
            raise _FaultError("end_time", "of an attempt is before its start_time")
        duration_s += end - start
    num_gpus = sum(len(_items(server, "gpus")) for server in _items(attempts[0], "detail"))
    if num_gpus == 0:
        raise _FaultError("gpus", "is empty: a job without GPU", EXCLUDED)
    if duration_s == 0:
        raise _FaultError("attempts", "took no second: the job never ran", EXCLUDED)
    return submit_s, duration_s, num_gpus


def _get(node: object, field: str) -> Any:
    return node.get(field) if isinstance(node, Mapping) else None


def _items(node: object, field: str) -> list[object]:
    items = _get(node, field)
    if not isinstance(items, list):
        raise _FaultError(field, "is no list")
    return items


def _seconds(node: object, field: str, absent: str) -> int:
    value = _get(node, field)
    if value in ABSENT:
        raise _FaultError(field, absent, EXCLUDED)
    try:
        if not isinstance(value, str) or len(value) != CLOCK_LENGTH:
            raise ValueError
        return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise _FaultError(field, "is no time of the form YYYY-MM-DD HH:MM:SS") from None
