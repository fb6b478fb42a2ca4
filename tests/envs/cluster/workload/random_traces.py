"""Traces at random, for properties; traces and tables by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace

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


def holds(trace: Trace, **columns: Sequence[object]) -> None:
    """The jobs of a trace have these values, by the fields of a job."""
    for field, values in columns.items():
        assert [getattr(job, field) for job in trace] == list(values), field


def table(path: Path, *lines: str) -> Path:
    """A file of some lines."""
    path.write_text("\n".join(lines))
    return path
