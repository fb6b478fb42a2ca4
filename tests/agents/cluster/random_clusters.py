"""Small clusters of unequal nodes and jobs with constraints, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.workload.trace import Labels, Trace

TYPES = ("P100", "V100")


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    nodes = draw(st.integers(1, 5))
    each = {"min_size": nodes, "max_size": nodes}
    limited = draw(st.booleans())
    cpu = draw(st.lists(st.integers(4_000, 16_000), **each)) if limited else [UNLIMITED] * nodes
    return Cluster(
        name="drawn",
        gpus=np.array(draw(st.lists(st.integers(1, 8), **each)), np.int32),
        rack=np.zeros(nodes, np.int32),
        gpu_type=np.array(draw(st.lists(st.integers(0, 1), **each)), np.int32),
        gpu_types=TYPES,
        cpu_milli=np.array(cpu, np.int64),
        memory_mib=np.full(nodes, UNLIMITED, np.int64),
    )


@st.composite
def traces(draw: st.DrawFn, cluster: Cluster, *, most: int = 16, longest: int = 12) -> Trace:
    """Jobs that the empty cluster can hold on any of its GPU types, one GPU per node at worst."""
    jobs = draw(st.integers(1, most))
    each = {"min_size": jobs, "max_size": jobs}
    types = draw(st.lists(st.sampled_from([None, *TYPES, "|".join(TYPES)]), **each))
    of_type = np.bincount(cluster.gpu_type, cluster.gpus, 2).astype(int)
    for job, name in enumerate(types):
        if name in TYPES and of_type[TYPES.index(name)] == 0:
            types[job] = None
    room = [
        sum(int(of_type[i]) for i, t in enumerate(TYPES) if name is None or t in name)
        for name in types
    ]
    gpus = [draw(st.integers(1, there)) for there in room]
    trace = Trace.of(
        "drawn",
        sorted(draw(st.lists(st.integers(0, 30), **each))),
        draw(st.lists(st.integers(1, longest), **each)),
        gpus,
    )
    per_gpu = np.array(draw(st.lists(st.integers(0, 500), **each)), np.int64)
    return replace(trace, gpu_type=Labels.of(types), cpu_milli=per_gpu * trace.num_gpus)
