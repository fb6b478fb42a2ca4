"""The compiled fragmentation measure against its definition, and against an example by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from fractional_cases import KINDS, Row, cluster_of, requests_of, rows
from hypothesis import given
from hypothesis import strategies as st
from slow_fragmentation import Job, Node, expected_fragments, popularity

from agents.cluster.rules.fragmentation import fragments, typical_jobs
from envs.cluster.nodes import ResourceRequests
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal

CLUSTER = cluster_of([(8000, 8192, 4, kind) for kind in KINDS])
lefts = st.lists(st.sampled_from([0, 1, 190, 250, 500, 670, 1000]), min_size=1, max_size=4)


def reference_job(row: Row) -> Job:
    """Both types are no constraint here, and an empty label neither."""
    cpu, _, gpus, milli, kinds = row
    names = tuple(kinds.split("|")) if kinds in KINDS else ()
    return Job(cpu, milli if gpus else 0, gpus, names)


@given(rows, lefts, st.integers(0, 12), st.integers(0, 1), st.integers(1, 100))
def test_the_compiled_measure_is_the_definition(
    workload: list[Row], left: list[int], cores: int, kind: int, percent: int
) -> None:
    cpu = cores * 250  # often exactly what a job asks for
    jobs = [reference_job(row) for row in workload]
    share = Fraction(percent, 100)
    counts = sorted((jobs.count(job) for job in set(jobs)), reverse=True)
    typical = typical_jobs(requests_of(workload), CLUSTER, percent / 100)
    expected = popularity(jobs, share)
    if len(set(counts)) < len(counts):  # equally frequent: which are typical is a convention
        typical = typical_jobs(requests_of(workload), CLUSTER, 1.0)
        expected = popularity(jobs, Fraction(1))
    found = fragments(cpu, np.array(left, np.int32), 1 << kind, typical)
    exact = expected_fragments(Node(cpu, tuple(left), KINDS[kind]), expected)
    assert Fraction(found, typical.jobs) == exact


def test_an_example_by_hand() -> None:
    """A node with 2 cores and GPUs with 300, 600, 1000 left, 1900 in all; four typical jobs:

    half a GPU: the 300 are lost; two whole GPUs: all is lost; one whole GPU but 3 cores: all is
    lost; no GPU: all is lost.
    """
    workload = requests_of(
        [(1000, 0, 1, 500, ""), (0, 0, 2, 1000, ""), (3000, 0, 1, 1000, ""), (0, 0, 0, 1000, "")]
    )
    typical = typical_jobs(workload, CLUSTER, 1.0)
    found = fragments(2000, np.array([300, 600, 1000], np.int32), 1, typical)
    assert found == 300 + 3 * 1900
    assert typical.jobs == 4


def test_the_rarest_jobs_are_not_typical() -> None:
    rows = [(1000, 0, 1, 500, "")] * 6 + [(1000, 0, 1, 250, "")] * 3 + [(1000, 0, 1, 100, "")]
    typical = typical_jobs(requests_of(rows), CLUSTER, 0.9)
    assert sorted(typical.milli.tolist()) == [250, 500]
    assert typical.jobs == 9
    assert typical_jobs(requests_of(rows), CLUSTER, 0.91).jobs == 10


def test_nothing_is_typical_of_nothing() -> None:
    none = ResourceRequests.of(Trace.of("one", [0], [1], [1]).take(slice(0)))
    with refusal("empty workload"):
        typical_jobs(none, CLUSTER, 0.95)
