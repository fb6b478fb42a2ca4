"""Which profile a job has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.cluster.interference.cases import assign
from envs.cluster.workload.trace import Labels, Trace
from tests.refusal import refusal

NAMES = ("small", "any", "large")


def suits(gangs: np.ndarray) -> np.ndarray:
    return np.stack([gangs <= 2, gangs <= 64, (gangs >= 2) & (gangs <= 64)], axis=1)


def trace(gangs: list[int], models: list[str | None] | None = None) -> Trace:
    jobs = Trace.of("t", list(range(len(gangs))), [1] * len(gangs), gangs)
    return jobs if models is None else replace(jobs, model=Labels.of(models))


def drawn(jobs: Trace, seed: int = 0) -> np.ndarray:
    return assign(jobs, NAMES, suits, seed)


def test_a_label_decides() -> None:
    chosen = drawn(trace([1, 8, 1], ["large", "small", "any"]))
    assert chosen.tolist() == [2, 0, 1]


def test_draws_suit_the_gang_and_have_equal_chances() -> None:
    gangs = [1] * 4000 + [2] * 4000 + [8] * 4000 + [0]
    chosen = drawn(trace(gangs), 3)
    assert chosen[-1] == 0
    for first, allowed in ((0, {0, 1}), (4000, {0, 1, 2}), (8000, {1, 2})):
        values, counts = np.unique(chosen[first : first + 4000], return_counts=True)
        assert set(values.tolist()) == allowed
        expected = 4000 / len(allowed)
        assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()


def test_a_draw_depends_on_seed_and_id_alone() -> None:
    jobs = trace([2] * 500)
    whole = drawn(jobs, 7)
    part = np.arange(100, 500, 3)
    assert (drawn(jobs.take(part), 7) == whole[part]).all()
    assert (drawn(jobs, 7) == whole).all()
    other = drawn(jobs, 8)
    assert 0.2 < (other == whole).mean() < 0.5
    wider = replace(jobs, job_id=jobs.job_id.astype("<U40"))
    assert (drawn(wider, 7) == whole).all()


def test_what_no_profile_knows_is_refused() -> None:
    with refusal(r"record 1: field 'model': 'huge' is none of small"):
        drawn(trace([1, 1], ["any", "huge"]))
    with refusal(r"no profile suits a job of 128 GPUs"):
        drawn(trace([1, 128]))
    unused = replace(trace([1]), model=Labels(np.zeros(1, np.int32), ("any", "huge")))
    assert drawn(unused).tolist() == [1]


def test_an_empty_trace() -> None:
    assert len(drawn(trace([]))) == 0
