"""PipeDream's optimizer: its predicted times, its own formula, brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from agents.hybrid.pipedream import Cuts, Level, optimize
from envs.arrays import FloatArray
from tests.agents.hybrid.planning import divisions, needs_oracles, oracle, profile

Stages = list[tuple[tuple[int, int], int]]  # (first, end), replicas
CASES: list[dict[str, Any]] = oracle("pipedream_planner").get("cases", [])


def slowest_stage(cuts: Cuts, stages: Stages, bandwidth: float) -> float:
    """The formula of one level, written out."""
    times = []
    last = len(cuts.seconds) - 1
    for (first, end), r in stages:
        compute = cuts.seconds[end] - cuts.seconds[first]
        synced = 4 * (r - 1) * (cuts.parameters[end] - cuts.parameters[first]) / (bandwidth * r)
        times.append((compute + synced) / r)
        if first > 0:
            times += [2 * cuts.sent[k] / (bandwidth * r) for k in (first, end) if k < last]
    return float(max(times))


@needs_oracles
@pytest.mark.parametrize("number", range(len(CASES)))
def test_predicted_times_are_those_of_the_program(number: int) -> None:
    case = CASES[number]
    cuts = profile(f"image_classification-{case['model']}.txt")
    ratio = case["activation_compression_ratio"]
    cuts = cuts._replace(sent=cuts.sent / (ratio or np.inf))  # None: activations take no time
    levels = list(map(Level, case["num_machines"], case["bandwidths_Bps"]))
    straight, fewer = case["straight_pipeline"], case["use_fewer_machines"]
    found = optimize(cuts, levels, straight=straight, fewer=fewer)
    assert len(cuts.seconds) - 1 == case["antichain_states"]
    assert found.seconds == pytest.approx(case["pipeline_time_per_stage_s"], rel=1e-9)
    assert found.data_parallel == pytest.approx(case["data_parallel_s"], rel=1e-9)
    devices = [device for stage in found.stages for device in stage.devices]
    assert len(set(devices)) == len(devices) <= np.prod(case["num_machines"])
    if len(levels) == 1:
        stages = [((s.first, s.end), len(s.devices)) for s in found.stages]
        own = slowest_stage(cuts, stages, levels[0].bandwidth)
        assert own == pytest.approx(found.seconds, rel=1e-12)


def best_of_all(cuts: Cuts, machines: int) -> float:
    """The fastest of all pipelines on exactly so many machines."""
    count = len(cuts.seconds) - 1
    return min(
        slowest_stage(cuts, list(zip(spans, (b - a for a, b in places), strict=True)), 2.0)
        for stages in range(1, min(count, machines) + 1)
        for spans, places in product(divisions(count, stages), divisions(machines, stages))
    )


def random_cuts(rng: np.random.Generator, count: int) -> Cuts:
    def before(high: int) -> FloatArray:
        return np.concatenate([[0.0], np.cumsum(rng.integers(1, high, count))]).astype(np.float64)

    sent = rng.integers(1, 30, count + 1).astype(np.float64)
    return Cuts(before(30), before(9), sent, ~np.tri(count + 1, dtype=np.bool_))


@pytest.mark.parametrize("seed", range(20))
def test_no_pipeline_of_one_level_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, machines = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    cuts = random_cuts(rng, count)
    best = [best_of_all(cuts, used) for used in range(1, machines + 1)]
    for fewer, expected in ((False, best[-1]), (True, min(best))):
        found = optimize(cuts, [Level(machines, 2.0)], straight=False, fewer=fewer)
        assert found.seconds == pytest.approx(expected, rel=1e-12)


def test_replicas_of_a_machine_lie_in_every_machine() -> None:
    """Two machines, cheap links inside: pipelines of two inside each, replicated over both."""
    cuts = Cuts(
        np.array([0.0, 1.0, 2.0]),
        np.zeros(3),
        np.array([0.0, 1.0, 0.0]),
        ~np.tri(3, dtype=np.bool_),
    )
    levels = [Level(2, 1e9), Level(2, 0.1)]
    found = optimize(cuts, levels, straight=False, fewer=False)
    assert found.seconds == pytest.approx(0.5)
    placed = {stage.devices for stage in found.stages}
    assert placed in ({(0, 2), (1, 3)}, {(0, 1, 2, 3)})
