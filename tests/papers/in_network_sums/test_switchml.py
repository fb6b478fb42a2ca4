"""Sums in the slots of switches: right whatever is lost, as long as the closed form, never over."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from envs.synchronisation.layerwise import JITTER, read_layered_models, training_seconds
from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of
from envs.synchronisation.plan import Primitive
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.papers.in_network_sums.planners import SwitchMl
from experiments.papers.in_network_sums.switchml import (
    HEADERS,
    Faults,
    SlotPool,
    SwitchTree,
    error_bound,
    largest_integer,
    sum_vectors,
    time_sum,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples

RACKS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
RATE, LATENCY, SIZE = 1.25e9, 1e-6, 1e8


@given(RACKS, st.sampled_from([0.0, 0.02, 0.3]), st.integers(1, 9), st.integers(1, 40), SEEDS)
@examples(200)
def test_integers_are_summed_bit_for_bit_whatever_is_lost(
    racks: list[int], loss: float, slots: int, length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pool, tree = SlotPool(slots, HEADERS + 8.0), SwitchTree(racks, 1e9, 1e-6)
    values = rng.integers(-(2**31), 2**31, (tree.workers, length))
    # Timers from far too short, so that answers and packets sent again cross, to long.
    timeout = float(10.0 ** rng.uniform(-7, -4))
    run = sum_vectors(pool, tree, values, Faults(loss, timeout, seed))
    expected = values.sum(axis=0).astype(np.int32)  # modulo 2^32
    assert_array_equal(run.result, np.tile(expected, (tree.workers, 1)))
    packets = pool.packets(4.0 * length)
    assert run.sent[: tree.workers].sum() == packets * tree.workers + run.again
    if loss == 0.0:
        assert_array_equal(run.sent[:-1], packets)
        assert_array_equal(run.answered[:-1], packets)
        assert run.again == run.lost == 0


@given(st.integers(1, 3), st.integers(1, 60), st.integers(1, 300), st.floats(-7, -4), st.booleans())
@examples(100)
def test_the_closed_form_is_the_simulation(
    workers: int, slots: int, packets: int, exponent: float, ahead: bool
) -> None:
    pool = SlotPool(slots, exponents=ahead)
    latency, size = 10.0**exponent, pool.payload * packets
    for levels, racks in enumerate(([workers], [workers] * 2), 1):
        tree = SwitchTree(racks, RATE, latency)
        seconds = time_sum(pool, tree, size).seconds
        assert seconds == pytest.approx(float(pool.seconds(size, RATE, latency, levels)), 1e-9)


@given(RACKS, st.sampled_from([8, 16, 32]), st.sampled_from([0.0, 0.1]), SEEDS)
@examples(100)
def test_block_floating_point_never_overflows_and_errs_within_its_bound(
    racks: list[int], bits: int, loss: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tree = SwitchTree(racks, 1e9, 1e-6)
    shape = tree.workers, int(rng.integers(1, 200))
    spread = 10.0 ** rng.integers(-200, 200, shape[1]) * rng.choice([0.0, 1.0], shape[1])
    everyone = np.broadcast_to(rng.normal(size=shape[1]), shape)  # all at their largest at once
    values = (everyone if rng.random() < 0.5 else rng.standard_t(1, shape)) * spread
    pool = SlotPool(3, HEADERS + 32.0, bits, True)
    run = sum_vectors(pool, tree, values, Faults(loss, 1e-5, seed))
    slack = 1e-12 * np.abs(values).sum(axis=0)  # of doubles
    bound = error_bound(values, pool.elements, bits)
    assert (np.abs(run.result - values.sum(axis=0)) <= bound + slack).all()
    assert (run.result == run.result[0]).all()
    assert run.largest <= tree.workers * largest_integer(tree.workers, bits) < 2 ** (bits - 1)


def test_what_cannot_be_summed_is_refused() -> None:
    tree = SwitchTree([2], 1e9, 0.0)
    with refusal("worker 1: holds a value that is not finite"):
        sum_vectors(SlotPool(exponents=True), tree, np.array([[1.0], [np.inf]]))
    with refusal("sums of fractions need packets with exponents"):
        sum_vectors(SlotPool(), tree, np.array([[1.0], [0.5]]))
    with refusal("8 bits cannot hold the sum of 128 workers"):
        largest_integer(128, 8)


def test_dedicated_jobs_take_what_the_published_simulator_says(data: Path) -> None:
    models = read_layered_models(data / "network/switchml/layers.csv", "a100_match_v100_bs")
    published = SHIPPED_CONFIGS.node("aggregation")["published"]
    assert set(published) == set(models)
    cases = [(name, 1.25e9, count, known) for name in models
             for count, known in zip((1, 10), published[name], strict=True)]  # fmt: skip
    # At 100 Gb/s a comment in the simulator's configuration knows BERT.
    for name, rate, count, known in [*cases, ("bert", 1.25e10, 1, 0.143306406924)]:
        took = partial(SlotPool().seconds, rate=rate, latency=1e-6)
        found = training_seconds(models[name], took, count, 2, JITTER, range(20))
        assert found.mean() == pytest.approx(known, rel=0.02), name


def network(workers: list[int], planes: int, aggregation: bool = True) -> LinkGraph:
    """In every plane a switch for each rack and, above several, one more."""
    names = [f"w{r}.{i}" for r, count in enumerate(workers) for i in range(count)]
    vertices = [VertexSpec(name, True, True, False) for name in names]
    pairs = []
    for plane in range(planes):
        for rack in range(len(workers)):
            tor = f"tor{plane}.{rack}"
            vertices.append(VertexSpec(tor, False, aggregation, True))
            pairs += [(name, tor) for name in names if name.startswith(f"w{rack}.")]
            pairs += [(tor, f"spine{plane}")] if len(workers) > 1 else []
        if len(workers) > 1:
            vertices.append(VertexSpec(f"spine{plane}", False, aggregation, True))
    links = [(a, b, RATE, LATENCY) for x, y in pairs for a, b in ((x, y), (y, x))]
    return graph_of("racks", vertices, links)


@pytest.mark.parametrize(("workers", "planes"), [([3], 1), ([3, 2], 1), ([2, 2], 2)])
def test_a_plan_takes_what_the_closed_form_says(workers: list[int], planes: int) -> None:
    problem = SynchronisationProblem(network(workers, planes), SIZE)
    planner = SwitchMl()
    found = planner.solve(problem)
    assert found.solution is not None
    assert found.solution.violations(problem) == []
    vectors = np.random.default_rng(0).integers(-9, 9, (sum(workers), 1001)).astype(float)
    result = found.solution.perform(problem, vectors)
    assert_allclose(result, np.tile(vectors.sum(0), (sum(workers), 1)))
    # Every link carries the vector at most once each way, and each plane its part.
    assert found.solution.link_bytes(problem).max() == pytest.approx(SIZE / planes, rel=0.01)
    wire = found.figures["wire_bytes_per_byte"]
    expected = planner.pool.seconds(SIZE / planes, RATE * wire, LATENCY, min(2, len(workers)))
    assert play(problem, found.solution).seconds == pytest.approx(float(expected), rel=0.01)


def test_without_switches_that_add_there_is_no_plan() -> None:
    found = SwitchMl().solve(SynchronisationProblem(network([3], 1, False), SIZE))
    assert (found.solution, found.status) == (None, "infeasible")
    assert "aggregation=true" in found.reason
    problem = SynchronisationProblem(network([3], 1), SIZE, Primitive.ALL_GATHER)
    assert "all_gather" in SwitchMl().solve(problem).reason
