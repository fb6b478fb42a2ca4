"""Reader of Gavel's measured throughputs: job types alone and in pairs on one GPU, by GPU type.

The file is `simulation_throughputs.json` of Narayanan et al., Heterogeneity-aware cluster
scheduling policies for deep learning workloads, OSDI 2020.
"""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import InputError

JobType = tuple[str, int]  # model, GPUs ("scale factor")
ALONE, UNCONSOLIDATED = "null", "_unconsolidated"


@dataclass(frozen=True)
class GavelTable:
    """Steps per second on one GPU type; 0 where a job or a pair ran out of memory.

    Attributes:
        alone: of a job type by itself.
        pairs: of both jobs of a pair that runs on the same GPUs, for every ordered pair.
    """

    alone: Mapping[JobType, float]
    pairs: Mapping[tuple[JobType, JobType], tuple[float, float]]

    @property
    def feasible_pairs(self) -> tuple[tuple[JobType, JobType], ...]:
        """The ordered pairs that fit into memory together."""
        return tuple(pair for pair, (a, b) in self.pairs.items() if a > 0.0 and b > 0.0)

    def ratio(self, job: JobType, neighbour: JobType) -> float:
        """Throughput of `job` beside `neighbour`, relative to alone; 0 where it does not fit.

        Raises:
            KeyError: the pair was not measured.
        """
        a, b = self.pairs[job, neighbour]
        return a / self.alone[job] if a > 0.0 and b > 0.0 else 0.0


def read_gavel(path: Path) -> dict[str, GavelTable]:
    """The tables of a file, by the file's names of GPU types.

    Raises:
        InputError: naming file, job types and value, where the file has another form, a throughput
            is negative or no number, a pair names a job type that was not measured alone, or its
            two directions differ.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=path) from error
    if not isinstance(content, dict) or not content:
        raise InputError("is no mapping of GPU types", file=path)
    return {str(name): _table(path, str(name), rows) for name, rows in content.items()}


def _table(path: Path, name: str, rows: Any) -> GavelTable:
    if not isinstance(rows, dict):
        raise InputError("is no mapping of job types", file=path, record=name)
    types = {text: _job_type(path, name, text) for text in rows}
    alone: dict[JobType, float] = {}
    pairs: dict[tuple[JobType, JobType], tuple[float, float]] = {}
    for text, row in rows.items():
        if not isinstance(row, dict) or ALONE not in row:
            raise InputError("has no entry null", file=path, record=f"{name} {text}", field=ALONE)
        for other, value in row.items():
            if other == ALONE:
                alone[types[text]] = _rate(path, f"{name} {text}", other, value)
                continue
            if other not in types:
                raise InputError(
                    "was not measured alone", file=path, record=f"{name} {text}", field=other
                )
            if not isinstance(value, list) or len(value) != 2:
                raise InputError(
                    f"{value!r} is no pair", file=path, record=f"{name} {text}", field=other
                )
            a, b = (_rate(path, f"{name} {text}", other, part) for part in value)
            pairs[types[text], types[other]] = a, b
    for (job, other_job), (a, b) in pairs.items():
        if pairs.get((other_job, job)) != (b, a):
            raise InputError(
                "differs from the same pair in the other order",
                file=path,
                record=f"{name} {job}",
                field=str(other_job),
            )
    return GavelTable(alone, pairs)


def _job_type(path: Path, name: str, text: str) -> JobType:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    match value:
        case (str(model), int(gpus)) if gpus > 0:
            return model, gpus
    raise InputError(f"{text!r} is no ('model', GPUs)", file=path, record=name)


def _rate(path: Path, record: str, field: str, value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0.0 <= float(str(value)) < float("inf"):
        raise InputError(f"{value!r} is no throughput", file=path, record=record, field=field)
    return float(str(value))
