"""Traces at random, for properties."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=6)
PLAIN_NAMES = NAMES.filter(lambda name: name == name.strip())


@st.composite
def traces(draw: st.DrawFn, names: st.SearchStrategy[str] = PLAIN_NAMES, least: int = 0) -> Trace:
    """Traces of a few jobs with everything a trace can hold; `least`: jobs and GPUs of each."""
    jobs = draw(st.integers(least, 12))

    def integers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=jobs, max_size=jobs))

    def labels() -> Labels:
        known = draw(st.lists(names, unique=True, max_size=4))
        codes = integers(-1, len(known) - 1)
        return Labels(np.array(codes, dtype=np.int32), tuple(known))

    ids = draw(st.lists(names, unique=True, min_size=jobs, max_size=jobs))
    return Trace(
        name=draw(names),
        job_id=np.array(ids, dtype=np.str_),
        submit_s=np.sort(np.array(integers(0, 50), dtype=np.int64)),
        duration_s=np.array(integers(1, 10**9), dtype=np.int64),
        num_gpus=np.array(integers(least, 9), dtype=np.int32),
        gpu_milli=np.array(integers(1, WHOLE_GPU), dtype=np.int32),
        cpu_milli=np.array(integers(0, 10**6), dtype=np.int64),
        memory_mib=np.array(integers(0, 10**6), dtype=np.int64),
        user=labels(),
        queue=labels(),
        gpu_type=labels(),
        model=labels(),
    )
