"""Parts, loads and windows of a trace."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import traces

from envs.cluster.workload.slicing import (
    at_most_gpus,
    labelled,
    split_by_time,
    stretch,
    submitted_between,
    to_offered_load,
)
from envs.cluster.workload.trace import Labels, Trace
from tests.refusal import refusal
from tests.strength import examples


@pytest.fixture
def trace() -> Trace:
    plain = Trace.of("hand", [2, 4, 4, 9, 12], [5, 5, 5, 5, 5], [1, 2, 8, 16, 2])
    queue = Labels.of(["a", "b", None, "a", "b"])
    return replace(plain, queue=queue, user=Labels.of(["x", "x", "y", "y", None]))


def ids(trace: Trace) -> list[str]:
    return [str(job) for job in trace.job_id]


def test_parts(trace: Trace) -> None:
    assert ids(submitted_between(trace, 4, 12)) == ["1", "2", "3"]
    assert ids(submitted_between(trace, 4, 4)) == []
    assert ids(labelled(trace, "queue", "b", "a")) == ["0", "1", "3", "4"]
    assert ids(labelled(trace, "user", "y")) == ["2", "3"]
    assert ids(at_most_gpus(trace, 2)) == ["0", "1", "4"]
    of_a = labelled(trace, "queue", "a")
    assert ids(of_a) == ["0", "3"]
    assert of_a[1].queue == "a"
    assert of_a.canonical().submit_s.tolist() == [0, 7]


def test_bad_parts_say_what_there_is(trace: Trace) -> None:
    with refusal(r"'c' is no queue .*known: a, b"):
        labelled(trace, "queue", "c")
    with refusal("'z' is no user"):
        labelled(trace, "user", "z")
    with refusal("no queue"):
        labelled(labelled(trace, "queue", "a"), "queue", "b")  # named there, but no job has it
    with refusal("before"):
        submitted_between(trace, 5, 4)


def test_stretching_rounds_from_the_first_job_on(trace: Trace) -> None:
    assert stretch(trace, 1.5).submit_s.tolist() == [2, 5, 5, 12, 17]
    assert stretch(trace, 0.1).submit_s.tolist() == [2, 2, 2, 3, 3]
    assert stretch(trace, 1).submit_s.tolist() == trace.submit_s.tolist()


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf, 1e16])
def test_a_factor_that_cannot_be(factor: float, trace: Trace) -> None:
    with refusal():
        stretch(trace, factor)


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
    assert abs(found.span_s - span) <= 0.5 + 1e-9 * span
    assert ids(found) == ids(trace)
    assert found.offered_load(gpus) == pytest.approx(load, rel=0.6 / found.span_s)


@pytest.mark.parametrize(("load", "gpus"), [(0.0, 8), (math.nan, 8), (1.0, 0), (1e9, 8)])
def test_a_load_that_cannot_be(load: float, gpus: int, trace: Trace) -> None:
    with refusal():
        to_offered_load(trace, load, gpus)


@examples(50)
@given(
    trace=traces(least=1),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_every_job_is_in_the_window_it_is_submitted_in(trace: Trace, weights: list[int]) -> None:
    shares = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    windows = split_by_time(trace, shares)
    assert [window.name for window in windows] == list(shares)
    assert [job for window in windows for job in ids(window.trace)] == ids(trace)
    assert windows[0].start_s == trace.submit_s[0]
    assert windows[-1].end_s == trace.submit_s[-1] + 1
    for before, after in pairwise(windows):
        assert before.end_s == after.start_s
    for window, share in zip(windows, shares.values(), strict=True):
        assert abs(window.end_s - window.start_s - share * (trace.span_s + 1)) <= 1
        inside = (window.trace.submit_s >= window.start_s) & (window.trace.submit_s < window.end_s)
        assert inside.all()


def test_windows_by_hand(trace: Trace) -> None:
    train, test = split_by_time(trace, {"train": 0.6, "test": 0.4})
    assert (train.start_s, train.end_s, test.start_s, test.end_s) == (2, 9, 9, 13)
    assert [len(train.trace), len(test.trace)] == [3, 2]
    for shares in ({"a": 0.5, "b": 0.4}, {"a": 1.0, "b": 0.0}, {"a": math.nan}, {}):
        with refusal():
            split_by_time(trace, shares)
    with refusal("no job"):
        split_by_time(trace.take(np.array([], dtype=int)), {"all": 1.0})
