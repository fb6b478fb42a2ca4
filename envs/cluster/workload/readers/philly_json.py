"""Reader of Philly's own log, `cluster_job_log`: JSON, one object per job with its attempts.

github.com/msr-fiddle/philly-traces; Jeon et al., *Analysis of Large-Scale Multi-Tenant GPU Clusters
for DNN Training Workloads*, USENIX ATC 2019. Written from the published description of the keys and
tested on entries made by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.cluster.workload.readers.read_trace import (
    ReadTrace,
    canonical_trace,
)
from envs.errors import InputError
from envs.files import read_json
from envs.text_table import RowChecks, Table

ABSENT = frozenset({None, "", "None"})
CLOCK_LENGTH = len("YYYY-MM-DD HH:MM:SS")
TEXTS = ("jobid", "vc", "user")


@dataclass(frozen=True)
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
        entries = _entries(path)
        texts = {field: [_text(entry, field) for entry in entries] for field in TEXTS}
        table = Table(
            path=path,
            columns={field: pl.Series(values, dtype=pl.String) for field, values in texts.items()},
            place=lambda row: f"entry {row + 1}",
            cells=np.zeros(len(entries), dtype=np.int64),
            width=0,
        )
        checks = RowChecks(table)
        numbers = np.zeros((len(entries), 3), np.int64)
        flaws: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for row, entry in enumerate(entries):
            try:
                numbers[row] = _read_entry(entry)
            except _FlawError as flaw:
                flaws[flaw.args].append(row)
        for (field, reason, *excluded), rows in flaws.items():
            mark = checks.exclude if excluded else checks.reject
            mark(np.isin(np.arange(len(entries)), rows), field, reason)
        return canonical_trace(
            checks,
            id_field="jobid",
            strict=strict,
            job_id=table.columns["jobid"],
            submit_s=numbers[:, 0],
            duration_s=numbers[:, 1],
            num_gpus=numbers[:, 2],
            user=table.columns["user"],
            queue=table.columns["vc"],
        )


EXCLUDED = True


class _FlawError(Exception):
    """Field and reason; and `EXCLUDED` where the entry is sound, but no job on GPUs."""


def _entries(path: str | Path) -> list[object]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError("is no list of jobs", file=path)
    if not entries:
        raise InputError("holds no job", file=path)
    return entries


def _text(entry: object, field: str) -> str:
    value = entry.get(field) if isinstance(entry, Mapping) else None
    return value.strip() if isinstance(value, str) else ""


def _read_entry(entry: object) -> tuple[int, int, int]:
    """Second of submission, seconds, GPUs."""
    if not isinstance(entry, Mapping):
        raise _FlawError(None, "is no object")
    submit_s = _seconds(entry, "submitted_time", "is not recorded")
    attempts = _items(entry, "attempts")
    if not attempts:
        raise _FlawError("attempts", "is empty: the job never ran", EXCLUDED)
    duration_s = 0
    for attempt in attempts:
        start = _seconds(attempt, "start_time", "of an attempt is not recorded")
        end = _seconds(attempt, "end_time", "of an attempt is not recorded")
        if end < start:
            raise _FlawError("end_time", "of an attempt is before its start_time")
        duration_s += end - start
    num_gpus = sum(len(_items(server, "gpus")) for server in _items(attempts[0], "detail"))
    if num_gpus == 0:
        raise _FlawError("gpus", "is empty: a job without GPU", EXCLUDED)
    if duration_s == 0:
        raise _FlawError("attempts", "took no second: the job never ran", EXCLUDED)
    return submit_s, duration_s, num_gpus


def _items(node: object, field: str) -> list[object]:
    items = node.get(field) if isinstance(node, Mapping) else None
    if not isinstance(items, list):
        raise _FlawError(field, "is no list")
    return items


def _seconds(node: object, field: str, absent: str) -> int:
    value = node.get(field) if isinstance(node, Mapping) else None
    if isinstance(value, str | None) and value in ABSENT:
        raise _FlawError(field, absent, EXCLUDED)
    try:
        if not isinstance(value, str) or len(value) != CLOCK_LENGTH:
            raise ValueError
        return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise _FlawError(field, "is no time of the form YYYY-MM-DD HH:MM:SS") from None
