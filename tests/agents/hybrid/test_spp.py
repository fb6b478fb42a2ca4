"""SPP: its list order against proved values, its row of devices, and brute force on tiny rows."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from agents.hybrid import spp
from agents.hybrid.machines import PREDICTED
from agents.hybrid.spp import SPP, Chain, chain_of, device_order, list_order
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.files import read_json
from envs.hardware.builders import nvlink_islands
from envs.hybrid.plan import HybridProblem, Stage
from envs.step.pipeline import Pipeline, play
from tests.envs.hybrid.rows_of_layers import random_row, servers
from tests.strength import trials


def random_chain(rng: np.random.Generator) -> tuple[Chain, int]:
    stages, m = int(rng.integers(1, 7)), int(rng.integers(1, 25))
    lengths = (stages, stages, stages - 1, stages - 1)
    return Chain(*(rng.integers(1, 40, n).astype(float) for n in lengths)), m


def list_scheduled(chain: Chain, m: int) -> FloatArray:
    """(S,) ends of the last backward passes: resources serve lists, blocks start when they can."""
    stages = len(chain.forward)
    forward = [("stage", s, 1) if k == 0 else ("link", s, 1) for s in range(stages) for k in (0, 1)]
    blocks = [*forward[:-1], *[(kind, s, -1) for kind, s, _ in reversed(forward[:-2])]]
    lists: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for at, (kind, s, _) in enumerate(blocks):
        lists.setdefault((kind, s), []).extend((batch, at) for batch in range(m))
    for served in lists.values():
        served.sort(key=lambda block: (sum(block), -block[1]))
    end: dict[tuple[int, int], float] = {}
    free = dict.fromkeys(lists, 0.0)
    while any(lists.values()):
        for resource, served in lists.items():
            while served and (served[0][1] == 0 or (served[0][0], served[0][1] - 1) in end):
                batch, at = served.pop(0)
                kind, s, way = blocks[at]
                f, b = (chain.forward, chain.backward) if kind == "stage" else chain[2:]
                seconds = f[s] + b[s] if (kind, s) == ("stage", stages - 1) else (f, b)[way < 0][s]
                start = max(free[resource], end.get((batch, at - 1), 0.0))
                free[resource] = end[batch, at] = start + seconds
    return np.array([end[m - 1, len(blocks) - 1 - 2 * s] for s in range(stages)])


def test_values_of_the_list_order(data: Path) -> None:
    for case in read_json(data / "oracles/parallel/spp_order.json")["cases"]:
        columns = [np.array(case[name], dtype=float) for name in ("f", "b", "comm_f", "comm_b")]
        chain, m = Chain(*columns), case["M"]
        assert chain.slowest == case["C"]
        assert chain.ends(m).max() == case["T"]
        assert chain.bound(m) == case["bound"]


def test_the_bound_holds() -> None:
    rng = default_rng(0)
    for _ in range(trials(20_000, 4_000)):
        chain, m = random_chain(rng)
        assert chain.ends(m).max() <= chain.bound(m)


@pytest.mark.parametrize("seed", range(30))
def test_the_compiled_order_is_list_scheduling(seed: int) -> None:
    chain, m = random_chain(default_rng(seed))
    assert chain.ends(m).tolist() == list_scheduled(chain, m).tolist()


@pytest.mark.parametrize(("stages", "m"), [(1, 3), (2, 1), (3, 5), (4, 20)])
def test_lists_of_ranks_run_as_the_chain_does(stages: int, m: int) -> None:
    """Where messages take no time, the lists give the chain's times."""
    rng = default_rng(stages)
    f, b = rng.integers(1, 9, (2, stages)).astype(float)
    ones, chain = (0.0,) * (stages - 1), Chain(f, b, np.zeros(stages - 1), np.zeros(stages - 1))
    ranks = tuple(range(stages))
    pipeline = Pipeline(ranks, m, tuple(f), tuple(b), (0.0,) * stages, ones, (ranks,))
    played = play(pipeline, list_order(stages, m, 1))
    assert [row[-1].finish for row in played.bars] == chain.ends(m).tolist()


def test_servers_and_islands_stay_together() -> None:
    mixed = servers([3, 2, 3], inside=100.0, between=10.0)
    order = mixed.server[device_order(mixed)].tolist()
    assert sum(a != b for a, b in pairwise(order)) == 2
    link = {"medium": "nvlink", "bandwidth": "300GB/s", "latency": "2us"}
    islands = nvlink_islands("islands", "V100-16GB", 8, 4, link, {**link, "bandwidth": "10GB/s"})
    assert {frozenset(device_order(islands)[k : k + 4]) for k in (0, 4)} == {
        frozenset(range(4)), frozenset(range(4, 8))
    }  # fmt: skip


def divisions(problem: HybridProblem, count: int) -> Iterator[list[Stage]]:
    """All divisions into so many stages on devices next to each other, from the first one on."""
    layers, row = problem.num_layers, device_order(problem.topology)
    for ends in combinations(range(1, layers), count - 1):
        for places in combinations(range(1, problem.num_devices + 1), count):
            spans = zip([0, *ends], [*ends, layers], [0, *places[:-1]], places, strict=True)
            yield [Stage(i, j, tuple(row[a:b])) for i, j, a, b in spans]


@pytest.mark.parametrize("seed", range(8))
def test_the_least_c_of_every_number_of_stages(seed: int) -> None:
    rng = default_rng(seed)
    topology = servers([2, 3] if seed % 2 else [1, 1, 2], inside=50.0, between=5.0)
    problem = random_row(rng, topology, 5, int(rng.integers(1, 6)))
    if seed % 3 == 0:  # two speeds
        speed = np.where(np.arange(problem.num_devices) % 2, 2.0, 1.0)
        problem = replace(problem, forward=problem.forward * speed)
    row = spp._Row(problem, device_order(topology), np.arange(1, problem.num_devices + 1))
    found = list(row.divisions(None))
    assert len(found) == min(5, problem.num_devices)
    for stages in found:
        best = min(chain_of(problem, other).slowest for other in divisions(problem, len(stages)))
        assert chain_of(problem, stages).slowest == pytest.approx(best, rel=1e-9)


def test_a_plan_is_feasible_and_as_predicted() -> None:
    problem = random_row(default_rng(1), servers([2, 2], 50.0, 5.0), 6, 8)
    found = SPP(sizes=32).solve(problem, Budget(10.0))
    assert found.solution is not None
    assert found.solution.violations(problem) == []
    assert found.figures[PREDICTED] <= found.figures["bound"] + 1e-9
    assert found.figures["C"] * problem.micro_batches <= found.figures["bound"]


def test_short_memory_is_met_by_recomputation_and_stages() -> None:
    problem = random_row(default_rng(2), servers([2, 2], 50.0, 5.0), 6, 8)
    for share in (0.5, 0.35, 0.25):
        most = problem.state_bytes.sum() + 8 * problem.saved_bytes.sum()
        short = replace(problem, capacity=np.full(4, share * most))
        found = SPP(sizes=32).solve(short, Budget(10.0))
        if found.solution is not None:
            assert found.solution.violations(short) == []
    none = SPP(sizes=32).solve(replace(problem, capacity=np.ones(4)), Budget(10.0))
    assert (none.solution, none.status) == (None, "limit")


def test_large_clusters_take_fewer_sizes() -> None:
    problem = random_row(default_rng(3), servers([3, 3], 50.0, 5.0), 4, 4)
    assert SPP(sizes=4)._group_sizes(6).tolist() == [1, 2, 3, 4, 6]
    coarse, fine = (SPP(sizes=n).solve(problem, Budget(10.0)).figures[PREDICTED] for n in (4, 32))
    assert fine <= coarse * 1.5
