"""Reader of what Slurm (21.08 to 25) says of its jobs; slurm.schedmd.com, `sacct` and `squeue`.

`sacct -D` has every attempt at a job that was requeued, `sacct` and `sacct --json` the last alone.
Tested on what Slurm 22.05 wrote, and on newer forms written by hand after its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.workload.readers.own_columns import moments
from envs.cluster.workload.readers.read_trace import MOST_GPUS, Column, ReadTrace, canonical_trace
from envs.errors import InputError
from envs.files import parse_json, read_content
from envs.text_table import Columns, RowChecks, Table, decoded, read_table
from envs.units import EXACT

SACCT = {  # columns as `sacct -P` calls them, and the path to each in the JSON of sacct and squeue
    "JobID": ("job_id", "job_id"),
    "ArrayJobID": ("array.job_id", "array_job_id"),
    "ArrayTaskID": ("array.task_id", "array_task_id"),
    "User": ("user", "user_name"),
    "Partition": ("partition", "partition"),
    "State": ("state.current", "job_state"),
    "Submit": ("time.submission", "submit_time"),
    "Start": ("time.start", "start_time"),
    "End": ("time.end", "end_time"),
    "ElapsedRaw": ("time.elapsed", ""),
    "AllocTRES": ("tres.allocated", "tres_alloc_str"),
    "ReqTRES": ("tres.requested", "tres_req_str"),
}
JOBCOMP = {  # what a line of jobcomp/filetxt calls them
    "JobID": "JobId", "ArrayJobID": "ArrayJobId", "ArrayTaskID": "ArrayTaskId", "User": "UserId",
    "Partition": "Partition", "State": "JobState", "Submit": "SubmitTime", "Start": "StartTime",
    "End": "EndTime", "ReqTRES": "Tres",
}  # fmt: skip
HINT = "; sacct -D -P -o JobID,User,Partition,State,Submit,Start,End,ElapsedRaw,AllocTRES,ReqTRES"
UNKNOWN = ("", "0", "Unknown", "unknown", "None", "N/A")  # instead of a time
ENDED = (
    r"\b(BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED"
    r"|TIMEOUT)\b"
)
JOB = ("id", "user")
SCALES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}  # of MiB


class SlurmReader:
    """The JSON of `sacct` or `squeue`, the table of `sacct -P` with its header, commas or "|"
    between the columns, or the lines of `jobcomp/filetxt`; the content tells which.

    GPUs, cores and memory are those allocated, or else asked for; permitted types of GPU those
    asked for, or those allocated where the file does not have what was asked. The partition is the
    queue. A duration is the time with GPUs: what Slurm calls elapsed (without suspensions), or end
    - start. The rows of one id and user are the attempts at a job: their durations add up, all else
    is that of the first row. Elements of an array and components of a heterogeneous job are jobs.

    Excluded are steps, further attempts, jobs of which the last row does not say that they ended,
    or that ended without having run, and those without `gres/gpu`. Dates without an offset from UTC
    are taken as they stand.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty row raises InputError."""
        table, called = _table(path)
        checks, columns = RowChecks(table), table.columns
        rows = np.arange(len(table))
        ids, task = columns[called["JobID"]], table.get(called.get("ArrayTaskID", ""))
        checks.exclude(_has(ids, r"\."), called["JobID"], "is a step of a job")
        if task is not None:
            array = columns[called["ArrayJobID"]]
            ids = (array + "_" + task).zip_with((task != "") & ~array.is_in(["", "0"]), ids)
        user = table.get(called["User"])
        if user is not None:
            user = user.str.replace(r"\(\d+\)$", "")
        submit_s = moments(checks, called["Submit"])
        checks.reject(submit_s == 0, called["Submit"], "is zero")
        frame = pl.DataFrame(
            {"row": rows, "id": ids, "user": user if user is not None else "", "submit": submit_s}
        )

        starts, ends = columns[called["Start"]], columns[called["End"]]
        state = table.get(called["State"])
        ended = ~ends.is_in(UNKNOWN).to_numpy()
        if state is not None:
            ended = _has(state, ENDED) & ~_has(state, "REQUEUE")
        by_time = frame.with_columns(ended=pl.Series(ended)).filter(checks.kept)
        by_time = by_time.sort("submit", maintain_order=True)
        open_ = by_time.filter(~pl.col("ended").last().over(JOB))["row"]
        field = called["End" if state is None else "State"]
        checks.exclude(np.isin(rows, open_), field, "is of a job that had not ended")
        checks.exclude(starts.is_in(UNKNOWN).to_numpy(), called["Start"], "is none: it never ran")
        checks.exclude(ends.is_in(UNKNOWN).to_numpy(), called["End"], "is not recorded")
        began, over = moments(checks, called["Start"]), moments(checks, called["End"])
        ran_s, of = over - began, called["End"]
        elapsed = table.get(called.get("ElapsedRaw", ""))
        timed = np.zeros(len(table), bool) if elapsed is None else (elapsed != "").to_numpy()
        if elapsed is not None:
            of = called["ElapsedRaw"]
            ran_s = np.where(timed, checks.numbers(of, blank="0"), ran_s)
        checks.reject(~timed & (over < began), called["End"], f"is before {called['Start']}")
        checks.exclude(ran_s == 0, of, "leaves no time: the job never ran")
        checks.reject(ran_s > EXACT, of, "is too large")

        asked = self._asked(checks, called)
        frame = frame.with_columns(ran=pl.Series(ran_s)).filter(checks.kept)
        frame = frame.with_columns(
            pl.col("submit").min().over(JOB),
            pl.col("ran").sum().over(JOB),
            again=pl.col("row") > pl.col("row").min().over(JOB),
        )
        again = np.isin(rows, frame.filter("again")["row"])
        checks.exclude(again, called["JobID"], "is a further attempt, added to the first")
        times = np.ones((2, len(table)), np.int64)
        times[:, frame["row"]] = np.rint(frame.select("submit", "ran").to_numpy().T)
        return canonical_trace(
            checks,
            {
                "job_id": ids,
                "submit_s": times[0],
                "duration_s": np.maximum(times[1], 1),
                **asked,
                "user": user,
                "queue": table.get(called["Partition"]),
            },
            called["JobID"],
            strict=strict,
        )

    def _asked(self, checks: RowChecks, called: Mapping[str, str]) -> dict[str, Column]:
        table, names = checks.table, [called[x] for x in ("AllocTRES", "ReqTRES") if x in called]
        found = [name for name in names if name in table.columns.header]
        texts = {name: table.columns[name] for name in found or names[:1]}

        def amounts(name: str, resource: str) -> FloatArray:
            """(R,) of a resource, NaN where the column does not say; memory in MiB."""
            text = texts[name].str.extract(rf"(?:^|,){resource}=([^,]*)")
            number = text.str.extract(r"^(\d+(?:\.\d+)?)[KMGTP]?$").cast(pl.Float64)
            checks.reject((number.is_null() & text.is_not_null()).to_numpy(), name, "is unclear")
            scale = text.str.extract("([KMGTP])$").replace_strict(SCALES, default=1.0)
            values = (number * scale).fill_null(np.nan).to_numpy()
            checks.reject(values > EXACT, name, "is too large")
            return values

        def first(*columns: FloatArray) -> IntArray:
            """(R,) the first that says it, or else 0."""
            values = np.zeros(len(table))
            for column in reversed(columns):
                values = np.where(np.isnan(column), values, column)
            return np.where(checks.kept, np.rint(values), 0).astype(np.int64)

        gpus, types = [], pl.Series([""] * len(table), dtype=pl.String)
        for name, text in texts.items():
            typed = text.str.extract_all(r"gres/gpu:[^=,]+=\d+")
            count = typed.list.eval(pl.element().str.extract(r"=(\d+)$").cast(pl.Float64))
            total = count.list.sum().to_numpy()
            gpus += [amounts(name, "gres/gpu"), np.where(total > 0, total, np.nan)]
            types = typed.list.eval(pl.element().str.extract(r":([^=,]+)=")).list.join("|")
        num_gpus = first(*gpus)
        checks.exclude(num_gpus == 0, found[0], "names no gres/gpu: a job without GPU")
        checks.reject(num_gpus > MOST_GPUS, found[0], "is too large")
        return {
            "num_gpus": np.where(checks.kept, num_gpus, 0),
            "cpu_milli": 1000 * first(*(amounts(name, "cpu") for name in texts)),
            "memory_mib": first(*(amounts(name, "mem") for name in texts)),
            "gpu_type": types,
        }


def _has(texts: pl.Series, pattern: str) -> BoolArray:
    return np.asarray(texts.str.contains(pattern).to_numpy(), bool)


def _table(path: str | Path) -> tuple[Table, Mapping[str, str]]:
    """The rows of a file, and what it calls the columns of `SACCT`."""
    content = read_content(path)
    start = content[:4096].decode("utf-8-sig", "replace").lstrip()
    if start.startswith(("{", "[")):
        document = parse_json(content, path)
        jobs = document.get("jobs") if isinstance(document, Mapping) else None
        if not isinstance(jobs, list):
            raise InputError("has no list 'jobs'", file=path)
        squeue = not any(isinstance(job, Mapping) and "time" in job for job in jobs)
        called = {name: paths[squeue] for name, paths in SACCT.items() if paths[squeue]}
        ways = [where.split(".") for where in called.values()]
        cells: list[Any] = [[_text(job, *way) for job in jobs] for way in ways]
        lines, kind = np.arange(len(jobs)), "entry"
    elif start.startswith("JobId="):
        text = pl.Series(decoded(path, content).split("\n"))
        lines, kind = np.flatnonzero((text.str.strip_chars() != "").to_numpy()), "line"
        text = text.gather(lines).str.replace(" Name=.* JobState=", " JobState=")
        called = JOBCOMP
        cells = [text.str.extract(rf"(?:^| ){name}=(\S*)") for name in JOBCOMP.values()]
    else:
        separator = "|" if "|" in start.partition("\n")[0] else ","
        return read_table(path, (), HINT, content, separator), {name: name for name in SACCT}
    header = list(called.values())
    series = [pl.Series(column, dtype=pl.String) for column in cells]
    width = np.full(len(lines), len(header))
    texts = Columns(path, header, series)
    table = Table(path, texts, lambda row: f"{kind} {lines[row] + 1}", width, len(header))
    return table, called


def _text(value: object, *path: str) -> str:
    """What stands at a path, as `sacct -P` would print it; "" for nothing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        return ",".join(filter(None, map(_text, value)))
    if isinstance(value, Mapping) and "type" in value:  # a trackable resource
        name = "/".join(filter(None, (_text(value, "type"), _text(value, "name"))))
        count = _text(value, "count")
        return f"{name}={count}" if count and not count.startswith("-") else ""
    if isinstance(value, Mapping):  # a number that may be none
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return "" if value is None else str(value)
