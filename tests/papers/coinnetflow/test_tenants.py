"""Tenants: closed forms, nothing faster than alone, bytes conserved, and what priorities do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from envs.synchronisation.layerwise import LayeredModel, training_seconds
from experiments.papers.coinnetflow.orders import BASELINES, WEIGHTINGS, coinnetflow, fair
from experiments.papers.coinnetflow.tenants import Racks, Sending, Tenant, play_tenants
from tests.strength import examples

RATE = 1e6  # bytes/s


def model(layers: list[tuple[int, int, int]]) -> LayeredModel:
    """Layers of (elements, forward, backward); times in tenths of a second."""
    elements, forward, backward = np.array(layers).T
    return LayeredModel("made", elements, forward / 10, backward / 10, np.full(len(layers), 1e-3))


@st.composite
def tenants(draw: st.DrawFn) -> list[Tenant]:
    layer = st.tuples(st.integers(1, 500_000), st.integers(1, 5), st.integers(1, 5))
    models = [model(draw(st.lists(layer, min_size=1, max_size=4))) for _ in range(2)]
    job = st.builds(
        Tenant, st.sampled_from(models), st.integers(1, 4), st.integers(1, 3),
        st.integers(0, 3).map(float),
    )  # fmt: skip
    return draw(st.lists(job, min_size=1, max_size=5))


def front(name: str, *small: float) -> Sending:
    """Front tensors in chunks, with the priorities of a weighting, or max-min fair."""
    ranks = coinnetflow(WEIGHTINGS[name]) if name in WEIGHTINGS else fair
    return Sending(ranks, True, 1e5, *small)


SENDINGS = [Sending(ranks, front, 2e5) for ranks in BASELINES.values() for front in (False, True)]
SENDINGS += map(front, WEIGHTINGS)


@examples(60)
@given(tenants(), st.sampled_from(SENDINGS))
def test_nothing_ends_sooner_than_its_computing_and_its_bytes_allow(
    jobs: list[Tenant], sending: Sending
) -> None:
    begin, end = play_tenants(jobs, Racks(2, 4, RATE, RATE), sending, default_rng(0))
    for job, start, stop in zip(jobs, begin, end, strict=True):
        assert start >= job.arrival
        own = job.model
        computed = job.iterations * float((own.forward + own.backward).sum())
        moved = job.iterations * float(own.sizes.sum()) / RATE
        assert stop - start >= max(computed, moved) - 1e-6
    # With ports wide enough for all, it is as in training with one collective at a time.
    wide = Racks(2, 4, RATE, 1e9)
    begin, end = play_tenants(jobs, wide, Sending(fair, False, 2e5), default_rng(0))
    for job, took in zip(jobs, end - begin, strict=True):
        alone = training_seconds(job.model, lambda size: size / RATE, job.iterations)
        assert took == pytest.approx(float(alone[0]), rel=1e-9)


def ends(jobs: list[Tenant], sending: Sending, slots: int = 12) -> Any:
    """Of jobs of 8 workers, which have some in each of two racks; to be compared with seconds."""
    found = play_tenants(jobs, Racks(2, slots, RATE, RATE), sending, default_rng(0))[1]
    return pytest.approx(found, abs=2e-3)


def test_a_front_tensor_goes_first_at_the_next_chunk() -> None:
    """Layer 1 (2 MB) is ready at 0.2 s, layer 0 (0.4 MB) at 0.5 s, when 0.3 MB have been sent."""
    jobs = [Tenant(model([(100_000, 1, 3), (500_000, 0, 1)]), 1, 2, 0.0)]
    # In order: both sums are there at 0.2 + 2.4 s, and the second iteration takes 0.1 + 2.5 s more.
    assert ends(jobs, Sending(fair, False, 2e5)) == [2.6 + 0.1 + 0.1 + 2.4 + 2e-3]
    # In front: layer 0 is sent from 0.6 s to 1.0 s, so that its forward pass is over by then.
    assert ends(jobs, Sending(fair, True, 2e5)) == [2.6 + 0.1 + 2.4 + 2e-3]


def test_the_smaller_job_passes_through_a_shared_port_and_compression_shrinks_the_other() -> None:
    small, large = model([(25_000, 1, 1)]), model([(250_000, 1, 1)])
    jobs = [Tenant(large, 8, 1, 0.0), Tenant(small, 8, 1, 0.0)]
    assert ends(jobs, front("fair"), 8) == [0.2 + 1.1, 0.2 + 0.2]
    for name in ("none", "clairvoyant"):
        assert ends(jobs, front(name), 8) == [0.2 + 1.1, 0.2 + 0.1]
    assert ends(jobs, front("none", 2.0, 0.5), 8) == [0.2 + 0.6, 0.2 + 0.1]


def test_the_authors_weighting_finishes_what_was_begun_however_long_a_job_trains() -> None:
    """A tensor of 1 MB is sent from 0.2 s on, one of 0.2 MB is ready at 0.8 s."""
    begun, later = model([(250_000, 1, 1)]), Tenant(model([(50_000, 1, 1)]), 8, 1, 0.6)
    assert ends([Tenant(begun, 8, 1, 0.0), later], front("remaining")) == [1.2, 1.2 + 0.2]
    assert ends([Tenant(begun, 8, 1, 0.0), later], front("none")) == [1.2 + 0.2, 0.8 + 0.2]
    # Of the first job's iterations the rule sees nothing.
    many = Tenant(begun, 8, 3, 0.0)
    assert ends([many, later], front("remaining")).expected[1] == pytest.approx(1.4, abs=2e-3)
    looking = Tenant(model([(1, 5, 5)]), 8, 1, 0.5)  # whose arrival has ranks made anew
    pair = [Tenant(begun, 8, 1, 0.0), Tenant(begun, 8, 1, 0.0)]
    alike = ends([*pair, looking], front("remaining", 4.0, 0.5)).expected[:2]
    # The one that waits is compressed.
    assert sorted(alike) == pytest.approx([0.2 + 1.0, 0.2 + 1.25], abs=2e-3)
