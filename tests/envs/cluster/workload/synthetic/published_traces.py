"""The published traces, read without the project's readers."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from envs.cluster.workload.trace import Trace

ITP = ("cluster01", "cluster02", "cluster04", "cluster06", "cluster08", "cluster10")


def itp(data: Path, name: str) -> Trace:
    table = pl.read_csv(data / "traces" / "itp" / f"{name}.csv.gz")
    whole = table.select(pl.all().exclude("job_id").cast(pl.Int64))
    return _trace(name, whole, "submission_time", "num_gpu")


def philly(data: Path) -> Trace:
    table = pl.read_csv(data / "traces" / "philly" / "philly.csv.gz")
    seconds = table.with_columns(
        pl.col("timestamp").str.to_datetime().dt.epoch("s"), pl.col("duration").cast(pl.Int64)
    )
    return _trace("philly", seconds, "timestamp", "num_gpus")


def _trace(name: str, table: pl.DataFrame, submit: str, gpus: str) -> Trace:
    table = table.sort(submit, maintain_order=True)
    columns = [table[key].to_numpy() for key in (submit, "duration", gpus)]
    return Trace.of(name, columns[0], columns[1], columns[2])
