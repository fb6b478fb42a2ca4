"""Traces at random, for properties; traces and tables by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from envs.cluster.workload.readers.read_trace import ReadTrace, TraceReader
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace
from tests.refusal import refusal

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=6)
PLAIN_NAMES = NAMES.filter(lambda name: name == name.strip())


@st.composite
def traces(draw: st.DrawFn, names: st.SearchStrategy[str] = PLAIN_NAMES, least: int = 0) -> Trace:
    """Traces of a few jobs with everything a trace can hold; `least`: jobs and GPUs of each."""
    jobs = draw(st.integers(least, 12))

    def integers(low: int, high: int, kind: type[np.integer] = np.int64) -> np.ndarray:
        drawn = draw(st.lists(st.integers(low, high), min_size=jobs, max_size=jobs))
        return np.array(drawn, kind)

    def labels() -> Labels:
        known = draw(st.lists(names, unique=True, max_size=4))
        return Labels(integers(-1, len(known) - 1, np.int32), tuple(known))

    ids = draw(st.lists(names, unique=True, min_size=jobs, max_size=jobs))
    return Trace(
        draw(names),
        np.array(ids, dtype=np.str_),
        np.sort(integers(0, 50)),
        integers(1, 10**9),
        integers(least, 9, np.int32),
        integers(1, WHOLE_GPU, np.int32),
        integers(0, 10**6),
        integers(0, 10**6),
        *(labels() for _ in range(4)),
    )


def jobs_of(trace: Trace, fields: str) -> list[str]:
    """A row of text for each job of a trace: its values of these fields, with blanks between."""
    return [" ".join(str(getattr(job, field)) for field in fields.split()) for job in trace]


def holds(trace: Trace, expected: str) -> None:
    """The jobs of a trace are those of a table as text: the names of fields, then a row per job."""
    fields, *rows = (" ".join(line.split()) for line in expected.strip().splitlines())
    assert jobs_of(trace, fields) == rows, fields


def left_out(found: ReadTrace) -> list[str]:
    """A sentence for each reason for which rows are not in the trace."""
    return [
        f"{'no job' if r.excluded else 'fault'}: {r.rows} from {r.first}: {r.field} {r.reason}"
        for r in found.rejected
    ]


def refuses_the_second(reader: TraceReader, path: Path, message: str) -> None:
    """Of the two jobs of a file; where faults are allowed it is left out."""
    with refusal(message):
        reader.read(path)
    found = reader.read(path, strict=False)
    assert (len(found.trace), found.num_rejected, found.rejected[0].excluded) == (1, 1, False)


def table(path: Path, *lines: str) -> Path:
    """A file of some lines."""
    path.write_text("\n".join(lines))
    return path
