"""Plans of synchronisation executed over gloo: exact sums, and predicted times on real links."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran

from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from experiments.execution import synchronising
from experiments.execution.namespaces import fewest_links, real_links, why_not
from experiments.execution.processes import TASK
from experiments.execution.synchronising import (
    gloo_ring,
)
from experiments.execution.tree_worker import work
from experiments.network.plan_file import write_plan
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance
from tests.refusal import refusal

TRIES = 4
RATES = {"ab": 2e6, "ac": 8e6, "bc": 8e6}  # bytes/s each way


def in_threads(folder: Path, task: Mapping[str, Any], worker: str) -> list[dict[str, Any]]:
    """As `run_processes`: a thread for a process, in a namespace of its own where it has one."""
    assert worker == "tree_worker"
    write_json(folder / TASK, task)
    with ThreadPoolExecutor(task["processes"]) as pool:
        return list(pool.map(lambda process: work(folder, process), range(task["processes"])))


def app(
    folder: Path, problem: SynchronisationProblem, plan: SynchronisationPlan, *words: str
) -> Any:
    """The result of the app."""
    folder.mkdir()
    write_plan(folder / "plan.json", problem, plan, Provenance(0, []))
    given = [f"synchronisation={folder / 'plan.json'}", "limit_s=60", *words]
    return ran("execute_synchronisation", *given, run=folder / "run")


def random_plan(
    primitive: Primitive, seed: int
) -> tuple[SynchronisationProblem, SynchronisationPlan]:
    """Four participants and a vertex that only adds, all joined; trees of any shape."""
    random = np.random.default_rng(seed)
    names = [*"abcd", "s"]
    vertices = [VertexSpec(name, name != "s", True, True) for name in names]
    links = [(a, b, 1e9, 0.0) for a in names for b in names if a != b]
    problem = SynchronisationProblem(graph_of("five", vertices, links), 4e4, primitive)

    def ways(root: int) -> tuple[Way, ...]:
        others = [v for v in random.permutation(5).tolist() if v not in {root, 4}]
        if root != 4 and random.random() < 0.5:
            others.insert(0, 4)  # it passes sums on
        near = [root]
        found = []
        for vertex in others:
            found.append((vertex, int(random.choice(near))))
            near.append(vertex)
        return tuple(found)

    roots = range(5 if primitive is Primitive.ALL_REDUCE else 4)
    parts = {root: random.integers(1, 5, size=1 + root % 2).tolist() for root in roots}
    every = sum(map(sum, parts.values()))
    trees = []
    for root, weights in parts.items():
        for weight in weights:
            share = Fraction(weight, every if len(roots) == 5 else 4 * sum(weights))
            out = tuple((b, a) for a, b in ways(root)) if primitive.broadcasts else ()
            trees.append(Tree(root, share, ways(root) if primitive.reduces else (), out))
    chunk = float(random.choice([100, 997, 5000]))
    return problem, SynchronisationPlan("random", tuple(trees), chunk)


@pytest.mark.slow  # connections of five processes
@pytest.mark.parametrize(
    "primitive",
    [
        Primitive.ALL_REDUCE,
        pytest.param(Primitive.ALL_GATHER, marks=pytest.mark.proof),
        pytest.param(Primitive.REDUCE_SCATTER, marks=pytest.mark.proof),
    ],
)
def test_trees_of_any_shape_sum_exactly(
    primitive: Primitive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronising, "run_processes", in_threads)
    problem, plan = random_plan(primitive, 1)
    result = app(tmp_path / "app", problem, plan, "repetitions=2", "warm_up=0")
    assert result["equal"]
    assert (result["gloo"] is not None) == (primitive is Primitive.ALL_REDUCE)
    assert result["predicted_s"] is None


def test_gloos_ring_goes_over_the_fewest_links() -> None:
    names = "abcde"
    vertices = [VertexSpec(x, x in "abc", x in "abc", x not in "ab") for x in names]
    ends = [("a", "d", 4.0), ("d", "b", 4.0), ("a", "e", 9.0), ("e", "b", 9.0), ("b", "c", 1.0)]
    links = [(x, y, rate, 0.0) for a, b, rate in ends for x, y in ((a, b), (b, a))]
    network = graph_of("bent", vertices, links)
    found = fewest_links(network)
    assert found[0, 1] == (0, 4, 1)  # as short as over d, and faster
    assert (0, 2) not in found  # b does not forward
    assert gloo_ring(SynchronisationProblem(network, 1e3)) is None
    for way in found.values():  # as hop-by-hop routes need it
        assert len(way) == 2 or found[way[1], way[-1]] == way[1:]
    mesh = SynchronisationProblem(triangle(), 999.0)
    ring = gloo_ring(mesh)
    assert ring is not None
    assert ring.violations(mesh) == []
    assert {way for tree in ring.trees for way in tree.reduce} == {(0, 2), (2, 1), (1, 0)}


def triangle() -> LinkGraph:
    vertices = [VertexSpec(name, True, True, True) for name in "abc"]
    ends = [
        (x, y, rate, 1e-4) for a, b in RATES for x, y in ((a, b), (b, a)) for rate in [RATES[a + b]]
    ]
    return graph_of("triangle", vertices, ends)


def test_namespaces_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    problem, plan = random_plan(Primitive.ALL_REDUCE, 0)
    refused = refusal("'links': needs root")
    with refused, real_links(problem.network, plan.ways):
        pass


@pytest.fixture
def links() -> Iterator[None]:
    """For one process of this machine at a time."""
    if reason := why_not():
        pytest.skip(reason)
    with Path(tempfile.gettempdir(), "meshwright-links.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.slow  # a second of real traffic
@pytest.mark.usefixtures("links")
def test_real_links_take_the_predicted_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain over the two fast cables, and gloo's ring, which the slow one holds up."""
    monkeypatch.setattr(synchronising, "run_processes", in_threads)
    order = [0, 2, 1]
    trees = [
        Tree(ends[-1], Fraction(1, 2), tuple(pairwise(ends)), tuple(pairwise(ends[::-1])))
        for ends in (order, order[::-1])
    ]
    problem = SynchronisationProblem(triangle(), 1.2e6)
    plan = SynchronisationPlan("chains", tuple(trees), 5e4)
    for attempt in range(1, TRIES + 1):  # again on a machine too busy for that
        words = ("links=namespaces", "repetitions=1", "warm_up=0")
        result = app(tmp_path / str(attempt), problem, plan, *words)
        assert result["equal"]
        ratios = [result["ratio"], result["gloo"]["ratio"]]
        if all(0.9 < ratio < 1.1 for ratio in ratios):
            break
        print(f"try {attempt}: {ratios}")
    else:
        pytest.fail(f"predicted over measured: {ratios}")
    assert result["speedup_over_gloo"] > 2.0
