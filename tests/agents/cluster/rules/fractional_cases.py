"""Small clusters and workloads for the tests of fractional rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.trace import Labels

KINDS = ("A", "B")

Row = tuple[int, int, int, int, str]  # cores in thousandths, MiB, GPUs, thousandths, types


def cluster_of(rows: Sequence[tuple[int, int, int, str]]) -> Cluster:
    """Nodes of (cores in thousandths, MiB, GPUs, type)."""
    cpu, memory, gpus, kinds = zip(*rows, strict=True)
    return Cluster(
        name="test",
        gpus=np.array(gpus, np.int32),
        rack=np.zeros(len(rows), np.int32),
        gpu_type=np.array([KINDS.index(kind) for kind in kinds], np.int32),
        gpu_types=KINDS,
        cpu_milli=np.array(cpu, np.int64),
        memory_mib=np.array(memory, np.int64),
    )


def requests_of(rows: Sequence[Row]) -> ResourceRequests:
    """One request per row."""
    cpu, memory, gpus, milli, types = zip(*rows, strict=True)
    return ResourceRequests(
        name="test",
        job_id=np.arange(len(rows)).astype(np.str_),
        num_gpus=np.array(gpus, np.int32),
        gpu_milli=np.array(milli, np.int32),
        cpu_milli=np.array(cpu, np.int64),
        memory_mib=np.array(memory, np.int64),
        gpu_type=Labels.of(types),
    )


nodes = st.tuples(
    st.integers(0, 8).map(lambda cores: cores * 1000),
    st.integers(0, 8).map(lambda gib: gib * 1024),
    st.integers(0, 4),
    st.sampled_from(KINDS),
)
clusters = st.lists(nodes, min_size=1, max_size=5).map(cluster_of)

types = st.sampled_from(["", "", "A", "B", "A|B"])
cores = st.integers(0, 4).map(lambda cores: cores * 500)
memories = st.integers(0, 4).map(lambda gib: gib * 512)
whole = st.tuples(cores, memories, st.integers(0, 4), st.just(1000), types)
part = st.tuples(cores, memories, st.just(1), st.sampled_from([1, 250, 330, 500, 810]), types)
rows = st.lists(st.one_of(whole, part), min_size=1, max_size=25)
