"""Alpa's inter-operator program: known optima, brute force, plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from agents.hybrid.alpa import Alpa, inter_operator
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.hybrid.plan import Sharding
from tests.agents.hybrid.profiles import needs_oracles, oracle
from tests.envs.hybrid.rows_of_layers import random_row, row, servers

CASES: list[dict[str, Any]] = oracle("alpa_interop_dp").get("cases", [])


@needs_oracles
@pytest.mark.parametrize("number", range(len(CASES)))
def test_known_optima(number: int) -> None:
    case = CASES[number]
    total = np.concatenate([[0.0], np.cumsum(case["layer_times"])])
    spans = (total - total[:-1, None])[..., None] / np.array(case["speedup_of_submesh"])
    spans[spans <= 0] = np.inf
    found = inter_operator(
        spans, case["submesh_devices"], case["devices"], case["microbatches"],
        np.full(spans.shape, 2**31),
    )  # fmt: skip
    assert found.objective == pytest.approx(case["objective"], rel=1e-9)
    assert sum(case["submesh_devices"][q] for _, _, q in found.stages) == case["devices"]


def all_slices(layers: int, sizes: list[int], devices: int) -> Iterator[list[tuple[int, int, int]]]:
    for stages in range(1, layers + 1):
        for inner in combinations(range(1, layers), stages - 1):
            ends = [0, *inner, layers]
            for chosen in product(range(len(sizes)), repeat=stages):
                if sum(sizes[q] for q in chosen) == devices:
                    yield list(zip(ends, ends[1:], chosen, strict=False))


@pytest.mark.parametrize("seed", range(30))
def test_no_slices_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, devices, sizes = int(rng.integers(1, 6)), int(rng.integers(1, 7)), [1, 2, 4]
    micro_batches = int(rng.integers(1, 9))
    seconds: FloatArray = rng.integers(1, 50, (layers, layers + 1, 3)).astype(np.float64)
    seconds[rng.random(seconds.shape) < 0.1] = np.inf
    after = rng.integers(-1, 4, seconds.shape)
    for successors in (np.full(seconds.shape, 2**31), after):
        best = np.inf
        for stages in all_slices(layers, sizes, devices):
            fits = all(
                len(stages) - 1 - place <= successors[stage] for place, stage in enumerate(stages)
            )
            times = [float(seconds[stage]) for stage in stages]
            if fits:
                best = min(best, sum(times) + (micro_batches - 1) * max(times))
        found = inter_operator(seconds, sizes, devices, micro_batches, successors)
        assert found.objective == best
        if found.stages:
            times = [float(seconds[stage]) for stage in found.stages]
            assert sum(times) + (micro_batches - 1) * max(times) == best


def shared(layers: int) -> Sharding:
    """Two shards halve a layer's work and memory, and send ten bytes in each pass."""
    one, half = np.ones(layers), np.full(layers, 0.5)
    part, sent = np.stack([one, half]), np.stack([0 * one, 10 * one])
    messages = np.stack([0 * one, one])
    return Sharding((1, 2), part, part, part, sent, sent, messages, messages)


@pytest.mark.parametrize("counts", [(2, 2), (4, 2), (4,), (1, 1, 1), (3, 3)])
def test_plans_use_all_devices_and_fit(counts: tuple[int, ...]) -> None:
    topology = servers(counts, inside=10.0, between=1.0)
    problem = random_row(np.random.default_rng(2), topology, 6, 4)
    found = Alpa().solve(problem, Budget(5.0))
    assert found.solution is not None
    assert found.solution.violations(problem) == []
    assert sum(len(stage.devices) for stage in found.solution.stages) == sum(counts)


def test_shards_where_memory_or_gradients_ask_for_them() -> None:
    topology = servers([2], inside=1000.0, between=1.0)
    problem = replace(
        row(topology, [1.0], [1.0], [1.0], gradients=[6e4], micro_batches=2), sharding=shared(1)
    )
    found = Alpa().solve(problem, Budget(5.0)).solution
    assert found is not None
    assert [stage.shards for stage in found.stages] == [2]  # no gradients to sum
    cheap = replace(problem, gradient_bytes=np.zeros(1))
    found = Alpa().solve(cheap, Budget(5.0)).solution
    assert found is not None
    assert [stage.shards for stage in found.stages] == [1]  # nothing to send
    tight = replace(cheap, capacity=np.full(2, 4e4))
    found = Alpa().solve(tight, Budget(5.0)).solution
    assert found is not None
    assert [stage.shards for stage in found.stages] == [2]  # half the state each
    none = replace(cheap, capacity=np.full(2, 2e4))
    assert Alpa().solve(none, Budget(5.0)).solution is None


def test_a_stage_recomputes_where_its_activations_do_not_fit() -> None:
    topology = servers([2], inside=10.0, between=1.0)
    problem = row(
        topology, [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0], [4.0, 4.0], [8.0, 8.0], 4
    )  # fmt: skip
    free = Alpa().solve(problem, Budget(5.0)).solution
    assert free is not None
    assert not any(stage.recompute for stage in free.stages)
    tight = replace(problem, capacity=np.full(2, 12.0))
    plan = Alpa().solve(tight, Budget(5.0)).solution
    assert plan is not None
    assert [stage.recompute for stage in plan.stages] == [True, False]
    assert plan.violations(tight) == []
