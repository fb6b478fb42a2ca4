"""From JSON objects, one for each job, to a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.cluster.workload.readers.read_trace import MOST_GPUS, ReadTrace, canonical_trace
from envs.cluster.workload.trace import NUMBERS
from envs.errors import InputError
from envs.text_table import Columns, RowChecks, Table
from envs.units import EXACT

EXCLUDED = True


class EntryError(Exception):
    """Field and reason; and `EXCLUDED` where the entry is sound, but no job on GPUs."""


def entry_trace(
    path: str | Path,
    entries: Sequence[object],
    read: Callable[[Any], Mapping[str, Any]],
    fields: Mapping[str, str],
    places: Sequence[int] | None = None,
    *,
    strict: bool,
) -> ReadTrace:
    """The trace of JSON objects.

    Args:
        path: of their file.
        entries: (R,) in its order, at `places` from 0 where it has others, too.
        read: the `fields` of one of them, whole numbers and labels; raises `EntryError`.
        fields: fields of a trace, `job_id` among them, and what the source calls them.
        strict: whether the first faulty entry raises InputError.
    """
    if not entries:
        raise InputError("holds no job", file=path)
    found: list[Mapping[str, Any]] = []
    faults: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, entry in enumerate(entries):
        try:
            found.append(read(entry))
        except EntryError as fault:
            found.append({})
            faults[fault.args].append(row)
    labels = [field for field in fields if field not in NUMBERS]
    texts = [[job.get(field) for job in found] for field in labels]
    series = [pl.Series([x if isinstance(x, str) else "" for x in column]) for column in texts]
    names, no_cells = [fields[field] for field in labels], np.zeros(len(entries), np.int64)
    text = Columns(path, names, series)
    places = range(len(entries)) if places is None else places
    checks = RowChecks(Table(path, text, lambda row: f"entry {places[row] + 1}", no_cells, 0))
    for (name, reason, *excluded), rows in faults.items():
        wrong = np.isin(np.arange(len(entries)), rows)
        checks.reject(wrong, name, reason, excluded=bool(excluded))
    columns: dict[str, Any] = {field: text[fields[field]] for field in labels}
    for field in set(fields) - set(labels):
        most = MOST_GPUS if field == "num_gpus" else EXACT
        numbers = [job.get(field, 0) for job in found]
        checks.reject(np.array([x > most for x in numbers]), fields[field], "is too large")
        columns[field] = np.array([min(x, most) for x in numbers], np.int64)
    return canonical_trace(checks, columns, fields["job_id"], strict=strict)
