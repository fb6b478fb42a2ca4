"""OmniReduce: the sum is right, and what is sent is what is counted, for every kind of sparsity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.sparsity import Pattern, blocks_of, drawn_blocks
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.papers.in_network_sums.omnireduce import (
    NEXT,
    Streaming,
    Traffic,
    stream,
    traffic,
)
from experiments.papers.in_network_sums.planners import OmniReduce
from experiments.papers.in_network_sums.switchml import HEADERS
from tests.envs.synchronisation.made_networks import star
from tests.strength import SEEDS, examples


def executed(streaming: Streaming, values: np.ndarray, aggregators: int, seed: int) -> Traffic:
    """What was sent, which is what is counted; and the sums are right."""
    result, sent = stream(streaming, values, aggregators, seed)
    assert_allclose(result, np.tile(values.sum(0), (len(values), 1)), atol=1e-12)
    bitmap = blocks_of(values, streaming.block)
    counted = traffic(streaming, bitmap, aggregators, 4.0 * streaming.block)
    for field in ("blocks", "packets", "sums", "answers", "sent", "received"):
        assert_array_equal(getattr(sent, field), getattr(counted, field), field)
    return sent


@given(
    st.sampled_from(Pattern), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3),
    st.integers(1, 2), st.integers(1, 60), st.floats(0.0, 1.0), SEEDS,
)  # fmt: skip
@example(Pattern.DISJOINT, 2, 1, 1, 1, 3, 1.0, 0)  # half of three blocks each
@examples(300)
def test_bytes_sent_are_those_counted_and_sums_are_right(
    pattern, workers, aggregators, columns, streams, blocks, density, seed
) -> None:  # type: ignore[no-untyped-def]
    density = density / workers if pattern is Pattern.DISJOINT else density
    bitmap = drawn_blocks(pattern, workers, blocks, density, seed)
    values = np.repeat(bitmap, 3, axis=1).astype(float)  # whole numbers: sums are exact
    values *= np.random.default_rng(seed).integers(1, 9, values.shape)
    values = values[:, : max(1, values.shape[1] - seed % 3)]  # the last block need not be full
    executed(Streaming(3, columns, streams), values, aggregators, seed)


def test_a_sum_by_hand() -> None:
    # Two workers, one column of four blocks: A has blocks 1 and 3, B has 3. Both send block 0, A
    # sends 1, both send 3; the aggregator answers 0, 1 and 3.
    values = np.array([[0.0, 2.0, 0.0, 5.0], [0.0, 0.0, 0.0, 7.0]])
    sent = executed(Streaming(1, 1, 1), values, 1, 0)
    assert sent.blocks.tolist() == sent.packets.tolist() == [[3], [2]]
    assert sent.sums.tolist() == sent.answers.tolist() == [3]
    assert sent.sent.tolist() == [[3 * (4 + NEXT + HEADERS)], [2 * (4 + NEXT + HEADERS)]]


MACHINES = 8


def test_times_of_the_paper_within_three_tenths_of_a_millisecond() -> None:
    for percent, ms in SHIPPED_CONFIGS.node("aggregation")["sparse"]:
        blocks = drawn_blocks(Pattern.RANDOM, MACHINES, 102_400, 1.0 - percent / 100.0, seed=0)
        problem = SynchronisationProblem(star(MACHINES, 8, 12.5e9), 104.8576e6, blocks=blocks)
        found = OmniReduce(dedicated=True).solve(problem)
        assert found.solution is not None
        assert found.solution.violations(problem) == []
        assert found.solution.own_seconds(problem) == pytest.approx(ms * 1e-3, abs=0.3e-3)
        union = blocks.any(axis=0).mean() * problem.size
        assert found.solution.busiest_seconds(problem) == pytest.approx(union / 12.5e9, rel=1e-12)
        assert found.figures["received_bytes"] >= MACHINES * union


def test_colocated_aggregators_send_sums_over_the_links_of_workers() -> None:
    blocks = drawn_blocks(Pattern.OVERLAPPING, MACHINES, 4096, 0.5, seed=0)
    problem = SynchronisationProblem(star(MACHINES), 1e6, blocks=blocks)
    plan = OmniReduce(dedicated=False).solve(problem).solution
    assert plan is not None
    union = blocks.any(axis=0).mean() * 1e6
    assert_allclose(plan.link_bytes(problem), 7 / 8 * (union + 0.5e6))
    vectors = np.random.default_rng(0).integers(-9, 9, (MACHINES, 999)).astype(float)
    assert_allclose(plan.perform(problem, vectors)[3], vectors.sum(0))
    found = OmniReduce(dedicated=True).solve(problem)
    assert found.solution is None
    assert "neither takes part nor forwards" in found.reason
