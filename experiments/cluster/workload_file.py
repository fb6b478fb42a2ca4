"""The file of a workload's parameters: YAML in the form of an option of `conf/workload`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from envs.cluster.workload.synthetic.parameters import WorkloadParameters
from envs.errors import InputError
from experiments.run.artifacts import write_text
from experiments.run.object_file import object_in_file
from experiments.run.provenance import Provenance, stamp

TARGET = "envs.cluster.workload.synthetic.parameters.workload_parameters"
SHORT = 6  # entries of a list that stands in one line with its key
COMMENTS = {
    "name": "of the traces, with their seed",
    "jobs": "of the trace that was measured",
    "daily": "arrivals by hour of the day, relative to their mean",
    "weekly": "arrivals by day of the week from Monday, relative to their mean",
    "burst_gap_s": "arrivals at most this many seconds apart are of one burst",
    "burst_share": "share of the gaps between arrivals that are within a burst",
    "burst_gap": "gaps within a burst, seconds",
    "pause": "gaps between bursts, seconds at the mean arrival rate",
    "probability": "of a value up to the quantile",
    "quantile": "rises evenly in its logarithm to the next",
    "gap_memory": "how alike the gaps of neighbours are",
    "strength": "rank correlation of two jobs of one episode",
    "persistence": "chance that an episode goes on with the next job",
    "gang_sizes": "GPUs of a job",
    "gang_shares": "share of the jobs, by gang size",
    "sessions": "runs of jobs of one gang size; by gang size",
    "length": "mean jobs of a session",
    "gap_within": "normal score of the gaps between its jobs: 0 as all gaps, 1 long",
    "gap_before": "normal score of the gap before it",
    "duration_memory": "how alike the durations of neighbours in a session are",
    "durations": "by gang size, seconds",
    "num_gpus": "the gang sizes of this table",
}


def write_workload(
    path: Path, parameters: WorkloadParameters, about: str, provenance: Provenance
) -> None:
    """Write `parameters` with a comment on every key; the first line says what they are `about`."""
    write_text(path, workload_text(parameters, about, provenance))


def workload_text(parameters: WorkloadParameters, about: str, provenance: Provenance) -> str:
    """The content of the file."""
    header = json.dumps(stamp({}, provenance, kind="workload"))
    return "\n".join([f"# {about}", f"# {header}", *workload_lines(parameters)]) + "\n"


def workload_lines(parameters: WorkloadParameters) -> list[str]:
    """The keys of the file, each with its comment."""
    return [f"_target_: {TARGET}", *_lines(parameters.document(), "")]


def read_workload(path: str) -> WorkloadParameters:
    """The parameters in a file.

    Raises:
        InputError: the file holds something else, or what it holds is wrong.
    """
    found = object_in_file(path, "workload")
    if not isinstance(found, WorkloadParameters):
        raise InputError("holds no parameters of a workload", file=path)
    return found


def _lines(document: Mapping[str, object], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in document.items():
        comment = f"# {COMMENTS[key]}"
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:  {comment}", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines.append(f"{indent}{key}:  {comment}")
            for entry in value:
                inner = _lines(entry, indent + "    ")
                lines += [f"{indent}  - {inner[0].lstrip()}", *inner[1:]]
        elif isinstance(value, list) and len(value) > SHORT:
            lines += [f"{indent}{key}:  {comment}", *_wrapped(value, indent + "  ")]
        elif isinstance(value, list):
            row = ", ".join(_number(one) for one in value)
            lines.append(f"{indent}{key}: [{row}]  {comment}")
        else:
            lines.append(f"{indent}{key}: {_number(value)}  {comment}")
    return lines


def _wrapped(values: list[object], indent: str) -> list[str]:
    """A list in lines of up to 96 characters."""
    lines, line = [], f"{indent}["
    for number, value in enumerate(values):
        word = _number(value) + ("]" if number == len(values) - 1 else ", ")
        if len(line) + len(word) > 96:
            lines.append(line.rstrip())
            line = f"{indent} "
        line += word
    return [*lines, line]


def _number(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole and isinstance(value, float) else json.dumps(value)
