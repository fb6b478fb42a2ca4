"""SPP: its list order against proved values, its row of devices, and brute force on tiny rows."""

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from agents.hybrid import spp
from agents.hybrid.machines import PREDICTED
from agents.hybrid.spp import SPP, chain_of, device_order, ends, list_order
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.files import read_json
from envs.hardware.builders import nvlink_islands
from envs.hybrid.plan import Stage
from envs.hybrid.problem import HybridProblem
from envs.step.pipeline import play
from tests.agents.hybrid.planning import divisions
from tests.envs.hybrid.rows_of_layers import random_row, servers
from tests.envs.step.pipelines import pipeline
from tests.strength import trials


def random_chain(rng: np.random.Generator) -> tuple[FloatArray, int]:
    stages, m = int(rng.integers(1, 7)), int(rng.integers(1, 25))
    return rng.integers(1, 40, (2, 2 * stages - 1)).astype(float), m


def bound(chain: FloatArray, m: int) -> float:
    """Theorem 1."""
    return float((m + 2 * chain.shape[1] - 2) * chain.sum(axis=0).max())


def list_scheduled(chain: FloatArray, m: int) -> FloatArray:
    """(S,) ends of the last backward passes: resources serve lists, blocks start when they can."""
    count = chain.shape[1]
    there, back = [(number, 0) for number in range(count)], [(k, 1) for k in range(count - 1)]
    blocks = [*there, *reversed(back)]  # resource and way; the last stage's passes are one block
    lists: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for at, (resource, _) in enumerate(blocks):
        lists[resource] += [(batch, at) for batch in range(m)]
    for served in lists:
        served.sort(key=lambda block: (sum(block), -block[1]))
    end: dict[tuple[int, int], float] = {}
    free = [0.0] * count
    while any(lists):
        for resource, served in enumerate(lists):
            while served and (served[0][1] == 0 or (served[0][0], served[0][1] - 1) in end):
                batch, at = served.pop(0)
                own = chain[:, resource]
                seconds = own.sum() if resource == count - 1 else own[blocks[at][1]]
                start = max(free[resource], end.get((batch, at - 1), 0.0))
                free[resource] = end[batch, at] = start + seconds
    return np.array([end[m - 1, len(blocks) - 1 - resource] for resource in range(0, count, 2)])


def test_values_of_the_list_order(data: Path) -> None:
    for case in read_json(data / "oracles/parallel/spp_order.json")["cases"]:
        chain, m = np.zeros((2, 2 * len(case["f"]) - 1)), case["M"]
        chain[:, ::2] = case["f"], case["b"]
        chain[:, 1::2] = case["comm_f"], case["comm_b"]
        assert chain.sum(axis=0).max() == case["C"]
        assert ends(chain, m).max() == case["T"]
        assert bound(chain, m) == case["bound"]


def test_the_list_order_is_list_scheduling_and_its_bound_holds() -> None:
    rng = default_rng(0)
    for _ in range(trials(20_000, 100)):
        chain, m = random_chain(rng)
        found = ends(chain, m)
        assert found.tolist() == list_scheduled(chain, m).tolist()
        assert found.max() <= bound(chain, m)


@pytest.mark.parametrize(("stages", "m"), [(1, 3), (2, 1), (3, 5), (4, 20)])
def test_lists_of_ranks_run_as_the_chain_does(stages: int, m: int) -> None:
    """Where messages take no time, the lists give the chain's times."""
    chain = np.zeros((2, 2 * stages - 1))
    chain[:, ::2] = default_rng(stages).integers(1, 9, (2, stages))
    f, b = chain[:, ::2].tolist()
    played = play(pipeline(range(stages), m, (f, b, 0.0)), list_order(stages, m, 1))
    assert [row[-1].finish for row in played.bars] == ends(chain, m).tolist()


def test_servers_and_islands_stay_together() -> None:
    mixed = servers([3, 2, 3], inside=100.0, between=10.0)
    order = mixed.server[device_order(mixed)].tolist()
    assert sum(a != b for a, b in pairwise(order)) == 2
    link = {"medium": "nvlink", "bandwidth": "300GB/s", "latency": "2us"}
    islands = nvlink_islands("islands", "V100-16GB", 8, 4, link, {**link, "bandwidth": "10GB/s"})
    first, second = (sorted(device_order(islands)[k : k + 4]) for k in (0, 4))
    assert sorted([first, second]) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def least_slowest(problem: HybridProblem, count: int) -> float:
    """C of all divisions into so many stages on devices next to each other, from the first one."""
    order = device_order(problem.topology)
    return min(
        chain_of(problem, [Stage(i, j, tuple(order[a:b])) for (i, j), (a, b) in both])
        .sum(axis=0)
        .max()
        for spans in divisions(problem.num_layers, count)
        for places in combinations(range(1, problem.num_devices + 1), count)
        for both in [list(zip(spans, pairwise([0, *places]), strict=True))]
    )


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
        slowest = chain_of(problem, stages).sum(axis=0).max()
        assert slowest == pytest.approx(least_slowest(problem, len(stages)), rel=1e-9)


def test_large_clusters_take_fewer_sizes() -> None:
    problem = random_row(default_rng(3), servers([3, 3], 50.0, 5.0), 4, 4)
    assert SPP(sizes=4)._group_sizes(6).tolist() == [1, 2, 3, 4, 6]
    coarse, fine = (SPP(sizes=n).solve(problem, Budget(10.0)).figures for n in (4, 32))
    assert fine[PREDICTED] <= coarse[PREDICTED] * 1.5
    assert fine[PREDICTED] <= fine["bound"] + 1e-9
