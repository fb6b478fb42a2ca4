"""Our own interchange: jobs as CSV or Parquet, read and written.

| column | meaning | needed |
|---|---|---|
| `job_id` | any text, different for every job | yes |
| `submit_s` | second of submission, a whole number of at least 0 | yes |
| `duration_s` | seconds alone on the GPUs asked for, a whole number of at least 1 | yes |
| `num_gpus` | GPUs, all of them at once; 0 for a job without GPUs | yes |
| `gpu_milli` | thousandths of each GPU, 1 to 1000 | no: 1000 |
| `cpu_milli` | thousandths of a processor core | no: 0 |
| `memory_mib` | MiB of main memory | no: 0 |
| `user`, `queue` | who submits, and to which virtual cluster | no: unknown |
| `gpu_type` | permitted types of GPU, separated by "|" | no: any |
| `model` | what the job trains: the name of a profile | no: unknown |
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from envs.cluster.workload.parquet import FORMAT, frame_of, read_frame, trace_of
from envs.cluster.workload.readers.own_columns import CANONICAL, asked, check_columns, own_table
from envs.cluster.workload.readers.read_trace import ReadTrace, canonical_order, canonical_trace
from envs.cluster.workload.trace import LABELS, Trace
from envs.errors import InputError
from envs.files import read_content, write_atomically
from envs.text_table import Columns, RowChecks, Table, read_table

ORIGIN = "origin_s"  # key of a Parquet file's provenance: second 0 on the source's own clock
NAMES = (  # what tells where one's own columns are
    "; name yours: trace.columns={submit: ..., duration: ..., gpus: ...}, separated by commas"
)
MAGIC = b"PAR1"  # the first bytes of a Parquet file


@dataclass(frozen=True)
class CanonicalReader:
    """CSV, plain or gzip, or Parquet; the content tells which.

    A Parquet file of `write_parquet` keeps the name of its trace.

    Args:
        columns: the columns of anybody's table, by the fields of `own_columns`; None: those above.
        units: of their times that are numbers other than seconds.
    """

    columns: Mapping[str, str] | None = None
    units: Mapping[str, str] | None = None

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty row raises InputError.

        Raises:
            InputError: an unknown field or unit, too.
        """
        columns, units = self.columns or {}, self.units or {}
        check_columns(columns, units)
        own = bool(columns or units)
        content = read_content(path)
        if not content.startswith(MAGIC):
            table = read_table(path, (), NAMES, content)
        else:
            header, frame = read_frame(path, content)
            if not own and header.get("format") == FORMAT:
                trace = trace_of(path, header, frame)
                if len(trace) and frame["job_id"].is_unique().all():
                    return _in_order(trace, frame["job_id"], header)
            cells = np.full(len(frame), frame.width)
            texts = Columns(path, frame.columns, frame.get_columns(), NAMES)
            table = Table(path, texts, lambda row: f"row {row + 1}", cells, frame.width)
        if own:
            return own_table(table, columns, units, strict=strict)
        checks = RowChecks(table)
        found = {
            "job_id": table.columns["job_id"],
            "submit_s": checks.whole("submit_s"),
            "duration_s": checks.whole("duration_s", 1),
            **asked(checks, CANONICAL),
        }
        return canonical_trace(checks, found, strict=strict)


def write_csv(trace: Trace, path: str | Path) -> None:
    """Write `trace` to `path`, `.csv` or `.csv.gz`, atomically; an unknown label is empty.

    Raises:
        InputError: an id or label would not be read back as it is: it is empty, or has blanks at
            an end.
    """
    frame = frame_of(trace).cast(pl.String)
    for field in ("job_id", *LABELS):
        texts = frame[field]
        wrong = (texts != texts.str.strip_chars()) | (texts == "")
        if wrong.any():
            row = int(wrong.fill_null(False).arg_max() or 0)
            message = f"{texts[row]!r} would not be read back from CSV"
            raise InputError(message, file=trace.name, record=row, field=field)
    content = frame.write_csv().encode()
    path = Path(path)
    write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _in_order(trace: Trace, ids: pl.Series, header: Mapping[str, object]) -> ReadTrace:
    provenance = header.get("provenance")
    known = provenance.get(ORIGIN, 0) if isinstance(provenance, dict) else 0
    origin = int(trace.submit_s[0]) + (known if isinstance(known, int) else 0)
    if (np.diff(trace.submit_s) == 0).any():
        trace = trace.take(canonical_order(trace.submit_s, ids))
    return ReadTrace(trace.canonical(), len(trace), (), origin)
