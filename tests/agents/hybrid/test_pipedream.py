"""PipeDream's optimizer: its predicted times, its own formula, brute force."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from agents.hybrid.machines import PREDICTED
from agents.hybrid.pipedream import Cuts, Level, PipeDream, Throughput, optimize
from agents.solver import Budget
from envs.arrays import FloatArray
from tests.agents.hybrid.profiles import needs_oracles, oracle, profile
from tests.envs.hybrid.rows_of_layers import random_row, servers

CASES: list[dict[str, Any]] = oracle("pipedream_planner").get("cases", [])


def planned(cuts: Cuts, case: dict[str, Any]) -> Throughput:
    levels = zip(case["num_machines"], case["bandwidths_Bps"], strict=True)
    return optimize(
        cuts,
        [Level(machines, bandwidth) for machines, bandwidth in levels],
        compression=case["activation_compression_ratio"],
        straight=case["straight_pipeline"],
        fewer=case["use_fewer_machines"],
    )


def slowest_stage(
    cuts: Cuts, stages: list[tuple[int, int, int]], bandwidth: float, compression: float | None
) -> float:
    """The formula of one level, written out: (first, end, replicas)."""
    times = []
    last = len(cuts.seconds) - 1
    for first, end, r in stages:
        compute = cuts.seconds[end] - cuts.seconds[first]
        synced = 4 * (r - 1) * (cuts.parameters[end] - cuts.parameters[first]) / (bandwidth * r)
        times.append((compute + synced) / r)
        if compression is not None and first > 0:
            times.append(2 * cuts.sent[first] / (bandwidth * r) / compression)
            if end < last:
                times.append(2 * cuts.sent[end] / (bandwidth * r) / compression)
    return float(max(times))


@needs_oracles
@pytest.mark.parametrize("number", range(len(CASES)))
def test_predicted_times_are_those_of_the_program(number: int) -> None:
    case = CASES[number]
    cuts = profile(f"image_classification-{case['model']}.txt")
    found = planned(cuts, case)
    assert len(cuts.seconds) - 1 == case["antichain_states"]
    assert found.seconds == pytest.approx(case["pipeline_time_per_stage_s"], rel=1e-9)
    assert found.data_parallel == pytest.approx(case["data_parallel_s"], rel=1e-9)
    devices = [device for stage in found.stages for device in stage.devices]
    assert len(set(devices)) == len(devices) <= np.prod(case["num_machines"])
    if len(case["num_machines"]) == 1:
        stages = [(s.first, s.end, len(s.devices)) for s in found.stages]
        ratio = case["activation_compression_ratio"]
        own = slowest_stage(cuts, stages, case["bandwidths_Bps"][0], ratio)
        assert own == pytest.approx(found.seconds, rel=1e-12)


def all_pipelines(count: int, machines: int) -> Iterator[list[tuple[int, int, int]]]:
    """All contiguous stages of `count` layers on exactly so many machines."""
    for stages in range(1, min(count, machines) + 1):
        for inner in combinations(range(1, count), stages - 1):
            ends = [0, *inner, count]
            for borders in combinations(range(1, machines), stages - 1):
                counts = np.diff([0, *borders, machines]).tolist()
                yield list(zip(ends, ends[1:], counts, strict=False))


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
    best = min(slowest_stage(cuts, p, 2.0, 1.0) for p in all_pipelines(count, machines))
    found = optimize(cuts, [Level(machines, 2.0)], compression=1.0, straight=False, fewer=False)
    assert found.seconds == pytest.approx(best, rel=1e-12)
    used = min(
        slowest_stage(cuts, p, 2.0, 1.0)
        for fewer in range(1, machines + 1)
        for p in all_pipelines(count, fewer)
    )
    found = optimize(cuts, [Level(machines, 2.0)], compression=1.0, straight=False, fewer=True)
    assert found.seconds == pytest.approx(used, rel=1e-12)


def test_replicas_of_a_machine_lie_in_every_machine() -> None:
    """Two machines, cheap links inside: pipelines of two inside each, replicated over both."""
    cuts = Cuts(
        np.array([0.0, 1.0, 2.0]),
        np.zeros(3),
        np.array([0.0, 1.0, 0.0]),
        ~np.tri(3, dtype=np.bool_),
    )
    levels = [Level(2, 1e9), Level(2, 0.1)]
    found = optimize(cuts, levels, compression=1.0, straight=False, fewer=False)
    assert found.seconds == pytest.approx(0.5)
    placed = {stage.devices for stage in found.stages}
    assert placed in ({(0, 2), (1, 3)}, {(0, 1, 2, 3)})


@pytest.mark.parametrize("counts", [(2, 2), (3, 1), (4,), (1, 1, 1)])
def test_plans_fit_their_problem(counts: tuple[int, ...]) -> None:
    topology = servers(counts, inside=10.0, between=1.0)
    problem = random_row(np.random.default_rng(1), topology, 6, 4)
    found = PipeDream().solve(problem, Budget(1.0))
    assert found.solution is not None
    assert found.solution.violations(problem) == []
    assert found.figures[PREDICTED] > 0
