"""Reader of DeepShare's measurements: throughput alone, and ratios under network contention.

The files are `isolated_thp.csv` and `shared_thp_ratio.csv` of Ryu and Eo, Network contention-aware
cluster scheduling with reinforcement learning, 2023 (arXiv:2310.20209).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.cluster.interference.measured import FloatArray
from envs.errors import InputError

Placed = tuple[str, int, int]  # model, GPUs, nodes
ISOLATED, SHARED = "isolated_thp.csv", "shared_thp_ratio.csv"


@dataclass(frozen=True)
class DeepShareTable:
    """Q placed jobs; ratios are relative to the same job alone.

    Attributes:
        placed: model, GPUs and nodes of every row.
        throughput: (Q,) samples per second alone.
        ratio: (Q, Q) throughput of the row's job beside the column's, relative to alone.
    """

    placed: tuple[Placed, ...]
    throughput: FloatArray
    ratio: FloatArray


def read_deepshare(folder: Path) -> DeepShareTable:
    """The two files in `folder`.

    Raises:
        InputError: naming file, row and column, where a placed job is malformed, stands twice or is
            missing in one of the files, or a value is not above 0.
    """
    rows = _rows(folder / ISOLATED)
    throughput = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2:
            raise InputError(f"{len(row)} columns, not 2", file=folder / ISOLATED, record=number)
        placed = _placed(folder / ISOLATED, number, row[0])
        if placed in throughput:
            raise InputError(f"{row[0]} stands twice", file=folder / ISOLATED, record=number)
        throughput[placed] = _positive(folder / ISOLATED, number, rows[0][-1], row[1])
    path = folder / SHARED
    rows = _rows(path)
    columns = [_placed(path, 1, text) for text in rows[0][1:]]
    ratio = np.zeros((len(columns), len(columns)))
    if len(rows) != len(columns) + 1:
        raise InputError(f"{len(rows) - 1} rows for {len(columns)} columns", file=path)
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(columns) + 1:
            raise InputError(f"{len(row)} columns", file=path, record=number)
        if _placed(path, number, row[0]) != columns[number - 2]:
            raise InputError(f"{row[0]} is not the column's job", file=path, record=number)
        ratio[number - 2] = [
            _positive(path, number, rows[0][column], row[column]) for column in range(1, len(row))
        ]
    missing = [placed for placed in columns if placed not in throughput]
    if missing or len(set(columns)) != len(columns):
        wrong = missing or columns
        raise InputError(f"{wrong[0]} is missing, or stands twice in {SHARED}", file=folder)
    return DeepShareTable(tuple(columns), np.array([throughput[p] for p in columns]), ratio)


def _rows(path: Path) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=path) from error
    if len(rows) < 2:
        raise InputError("has no rows", file=path)
    return rows


def _placed(path: Path, row: int, text: str) -> Placed:
    parts = text.split(",")
    if len(parts) == 3 and parts[0] and parts[1].isdigit() and parts[2].isdigit():
        gpus, nodes = int(parts[1]), int(parts[2])
        if 1 <= nodes <= gpus:
            return parts[0], gpus, nodes
    raise InputError(f"{text!r} is no 'model,GPUs,nodes'", file=path, record=row)


def _positive(path: Path, row: int, field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise InputError(f"{text!r} is not above 0", file=path, record=row, field=field)
    return value
