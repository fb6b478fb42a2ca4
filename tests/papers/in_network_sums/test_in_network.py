"""Trees of switches that add: as fast as the closed form, in a rack, over racks, in planes."""

from __future__ import annotations

import numpy as np
import pytest

from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of
from envs.synchronisation.plan import Primitive, SynchronisationProblem
from envs.synchronisation.playing import play
from experiments.papers.in_network_sums.planners import SwitchMl

RATE, LATENCY, SIZE = 1.25e9, 1e-6, 1e8


def racks(workers: list[int], planes: int, aggregation: bool = True) -> LinkGraph:
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
    problem = SynchronisationProblem(racks(workers, planes), SIZE)
    planner = SwitchMl()
    found = planner.solve(problem)
    assert found.solution is not None
    assert found.solution.violations(problem) == []
    vectors = np.random.default_rng(0).integers(-9, 9, (sum(workers), 1001)).astype(float)
    result = found.solution.perform(problem, vectors)
    np.testing.assert_allclose(result, np.tile(vectors.sum(0), (sum(workers), 1)))
    # Every link carries the vector at most once each way, and each plane its part.
    assert found.solution.link_bytes(problem).max() == pytest.approx(SIZE / planes, rel=0.01)
    levels = 1 if len(workers) == 1 else 2
    wire = found.figures["wire_bytes_per_byte"]
    expected = planner.pool.seconds(SIZE / planes, RATE * wire, LATENCY, levels)
    assert play(problem, found.solution).seconds == pytest.approx(float(expected), rel=0.01)


def test_without_switches_that_add_there_is_no_plan() -> None:
    found = SwitchMl().solve(SynchronisationProblem(racks([3], 1, False), SIZE))
    assert (found.solution, found.status) == (None, "infeasible")
    assert "aggregation=true" in found.reason
    problem = SynchronisationProblem(racks([3], 1), SIZE, Primitive.ALL_GATHER)
    assert "all_gather" in SwitchMl().solve(problem).reason
