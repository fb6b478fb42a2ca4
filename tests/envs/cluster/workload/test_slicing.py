"""Parts, loads and windows of a trace."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from random_traces import traces

from envs.cluster.workload.slicing import (
    at_most_gpus,
    labelled,
    split_by_time,
    stretch,
    submitted_between,
    to_offered_load,
)
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import examples

TRACE = Trace.of(
    "hand", [2, 4, 4, 9, 12], [5, 5, 5, 5, 5], [1, 2, 8, 16, 2],
    queue=["a", "b", None, "a", "b"], user=["x", "x", "y", "y", None],
)  # fmt: skip


def test_parts() -> None:
    of_a = labelled(TRACE, "queue", "a")
    for part, jobs in (
        (submitted_between(TRACE, 4, 12), "1 2 3"),
        (submitted_between(TRACE, 4, 4), ""),
        (labelled(TRACE, "queue", "b", "a"), "0 1 3 4"),
        (labelled(TRACE, "user", "y"), "2 3"),
        (at_most_gpus(TRACE, 2), "0 1 4"),
        (of_a, "0 3"),
    ):
        assert " ".join(part.job_id) == jobs
    assert of_a[1].queue == "a"
    assert of_a.canonical().submit_s.tolist() == [0, 7]


def test_stretching_rounds_from_the_first_job_on() -> None:
    assert stretch(TRACE, 1.5).submit_s.tolist() == [2, 5, 5, 12, 17]
    assert stretch(TRACE, 0.1).submit_s.tolist() == [2, 2, 2, 3, 3]
    assert_array_equal(stretch(TRACE, 1).submit_s, TRACE.submit_s)


def test_what_cannot_be_is_refused() -> None:
    with refusal(r"'c' is no queue .*known: a, b"):
        labelled(TRACE, "queue", "c")
    with refusal("'z' is no user"):
        labelled(TRACE, "user", "z")
    with refusal("no queue"):
        labelled(labelled(TRACE, "queue", "a"), "queue", "b")  # named there, but no job has it
    with refusal("before"):
        submitted_between(TRACE, 5, 4)
    with refusal("no job"):
        split_by_time(TRACE.take(slice(0)), {"all": 1.0})
    for shares in ({"a": 0.5, "b": 0.4}, {"a": 1.0, "b": 0.0}, {"a": math.nan}, {}):
        with refusal():
            split_by_time(TRACE, shares)
    for factor in (0.0, -1.0, math.nan, math.inf, 1e16):
        with refusal():
            stretch(TRACE, factor)
    for load, gpus in ((0.0, 8), (math.nan, 8), (1.0, 0), (1e9, 8)):
        with refusal():
            to_offered_load(TRACE, load, gpus)


@examples(50)
@given(trace=traces(least=2), load=st.floats(0.01, 5.0), gpus=st.integers(1, 500))
def test_a_load_is_met_to_half_a_second(trace: Trace, load: float, gpus: int) -> None:
    if trace.span_s == 0:
        with refusal():
            to_offered_load(trace, load, gpus)
        return
    span = trace.gpu_seconds.sum() / (load * gpus)
    if span < 2:
        return
    found = to_offered_load(trace, load, gpus)
    assert found.span_s == pytest.approx(span, abs=0.5 + 1e-9 * span)
    assert found.job_id.tolist() == trace.job_id.tolist()
    assert found.offered_load(gpus) == pytest.approx(load, rel=0.6 / found.span_s)


@examples(50)
@given(
    trace=traces(least=1),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_every_job_is_in_the_window_it_is_submitted_in(trace: Trace, weights: list[int]) -> None:
    shares = np.array(weights) / sum(weights)
    windows = split_by_time(trace, {str(i): share for i, share in enumerate(shares)})
    ends = [one.end_s for one in windows]
    assert [one.name for one in windows] == [str(i) for i in range(len(shares))]
    assert [one.start_s for one in windows] == [trace.submit_s[0], *ends[:-1]]
    assert ends[-1] == trace.submit_s[-1] + 1
    for one, share in zip(windows, shares, strict=True):
        assert one.end_s - one.start_s == pytest.approx(share * (trace.span_s + 1), abs=1)
        assert list(one.trace) == [j for j in trace if one.start_s <= j.submit_s < one.end_s]


def test_windows_by_hand() -> None:
    train, test = split_by_time(TRACE, {"train": 0.6, "test": 0.4})
    assert (train.start_s, train.end_s, test.start_s, test.end_s) == (2, 9, 9, 13)
    assert (len(train.trace), len(test.trace)) == (3, 2)
