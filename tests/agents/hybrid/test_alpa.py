"""Alpa's inter-operator program: known optima, brute force; shards and recomputation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from agents.hybrid.alpa import Alpa, inter_operator
from envs.arrays import FloatArray
from tests.agents.hybrid.planning import divisions, needs_oracles, oracle, stages_by
from tests.envs.hybrid.rows_of_layers import row, servers, shared

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


@pytest.mark.parametrize("seed", range(30))
def test_no_slices_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, devices, sizes = int(rng.integers(1, 6)), int(rng.integers(1, 7)), [1, 2, 4]
    micro_batches = int(rng.integers(1, 9))
    seconds: FloatArray = rng.integers(1, 50, (layers, layers + 1, 3)).astype(np.float64)
    seconds[rng.random(seconds.shape) < 0.1] = np.inf

    def objective(stages: list[tuple[int, int, int]]) -> float:
        times = [float(seconds[stage]) for stage in stages]
        return sum(times) + (micro_batches - 1) * max(times)

    every = [
        [(*span, q) for span, q in zip(spans, chosen, strict=True)]
        for count in range(1, layers + 1)
        for spans in divisions(layers, count)
        for chosen in product(range(3), repeat=count)
        if sum(sizes[q] for q in chosen) == devices
    ]
    for after in (np.full(seconds.shape, 2**31), rng.integers(-1, 4, seconds.shape)):
        best = min(
            (
                objective(stages)
                for stages in every
                if all(len(stages) - 1 - k <= after[stage] for k, stage in enumerate(stages))
            ),
            default=np.inf,
        )
        found = inter_operator(seconds, sizes, devices, micro_batches, after)
        assert found.objective == best
        assert not found.stages or objective(list(found.stages)) == best


def test_shards_where_memory_or_gradients_ask_for_them() -> None:
    one = row(servers([2], 1000.0, 1.0), [1], [1], [1], gradients=[6e4], micro_batches=2)
    problem = shared(one, {2: 10.0}, messages=1.0)
    cheap = replace(problem, gradient_bytes=np.zeros(1))
    tight, none = (replace(cheap, capacity=np.full(2, room)) for room in (4e4, 2e4))
    # no gradients to sum; nothing to send; half the state each
    for given, shards in ((problem, [2]), (cheap, [1]), (tight, [2]), (none, [])):
        assert [stage.shards for stage in stages_by(Alpa(), given)] == shards


def test_a_stage_recomputes_where_its_activations_do_not_fit() -> None:
    problem = row(servers([2], 10.0, 1.0), [1, 1], [1, 1], [1, 1], [1], [4, 4], [8, 8], 4)
    tight = replace(problem, capacity=np.full(2, 12.0))
    assert not any(stage.recompute for stage in stages_by(Alpa(), problem))
    assert [stage.recompute for stage in stages_by(Alpa(), tight)] == [True, False]
