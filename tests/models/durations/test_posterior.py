from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.durations.posterior import BINS, GittinsIndex, bins_of, edges_s
from tests.strength import examples

logits_of_bins = st.lists(st.floats(-8.0, 8.0), min_size=BINS, max_size=BINS)


def brute_force(probability: NDArray[np.float64], steps: int = 400) -> float:
    """The index by numerical integration of the survival function, bin by bin."""
    edges = np.concatenate([[0.0], np.exp(np.linspace(math.log(30.0), math.log(5_184_000.0), 25))])
    best, spent, done = 0.0, 0.0, 0.0
    for bin_, (low, high) in enumerate(itertools.pairwise(edges)):
        middles = (np.arange(steps) + 0.5) / steps  # survival falls evenly within the bin
        survival = 1.0 - done - probability[bin_] * middles
        spent += float(survival.mean()) * (high - low)
        done += float(probability[bin_])
        best = max(best, done / spent)
    return best


@examples(100)
@given(logits_of_bins)
def test_the_index_is_that_of_brute_force(drawn: list[float]) -> None:
    logits = torch.tensor(drawn, dtype=torch.float32)
    probability = torch.softmax(logits.double(), -1).numpy()
    expected = math.log(brute_force(probability))
    assert float(GittinsIndex()(logits)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("sure", range(BINS - 1))
def test_a_job_sure_to_end_within_a_bin_has_the_index_of_its_middle(sure: int) -> None:
    logits = torch.full((BINS,), -200.0)
    logits[sure] = 200.0
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), edges_s()])
    middle = float(edges[sure : sure + 2].mean())
    assert float(GittinsIndex()(logits)) == pytest.approx(-math.log(middle), abs=1e-4)


def test_a_shorter_job_has_a_higher_index() -> None:
    logits = torch.eye(BINS) * 20.0
    index = GittinsIndex()(logits)
    assert (index[:-1] > index[1:]).all()


def test_an_endless_job_has_a_finite_index_and_a_gradient() -> None:
    logits = torch.full((3, BINS), -300.0)
    logits[:, -1] = 300.0
    logits.requires_grad_()
    index = GittinsIndex()(logits)
    index.sum().backward()
    assert torch.isfinite(index).all()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@examples(20)
@given(logits_of_bins, st.integers(0, BINS - 1))
def test_the_gradient_is_the_slope(drawn: list[float], bin_: int) -> None:
    index = GittinsIndex().double()
    logits = torch.tensor(drawn, dtype=torch.float64, requires_grad=True)
    index(logits).backward()
    assert logits.grad is not None
    step = torch.zeros(BINS, dtype=torch.float64)
    step[bin_] = 1e-6
    with torch.no_grad():
        here = float(index(logits))
        up, down = float(index(logits + step)), float(index(logits - step))
    slope = (up - down) / 2e-6
    one_sided = ((up - here) / 1e-6, (here - down) / 1e-6)
    if one_sided[0] == pytest.approx(one_sided[1], abs=1e-4):  # no other edge takes over here
        assert float(logits.grad[bin_]) == pytest.approx(slope, abs=1e-4)


def test_bins_hold_what_their_edges_say() -> None:
    edges = edges_s()
    assert len(edges) == BINS - 1
    assert float(edges[0]) == pytest.approx(30.0)
    assert float(edges[-1]) == pytest.approx(60 * 86_400)
    between = torch.tensor([0.0, 29.0, 31.0, 3600.0, 86_400.0, 5_183_000.0, 6e6, math.inf])
    bins = bins_of(between)
    for seconds, bin_ in zip(between.tolist(), bins.tolist(), strict=True):
        assert bin_ == 0 or edges[bin_ - 1] < seconds
        assert bin_ == BINS - 1 or seconds <= edges[bin_]
    assert bins_of(edges).tolist() == list(range(BINS - 1))
