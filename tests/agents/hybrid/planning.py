"""What the tests of planners share: plans that fit, all divisions of a row, published profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from agents.hybrid.pipedream import Cuts
from agents.solver import Budget
from agents.step.problems import HybridPlanner
from envs.graphs.readers.pipedream import PipeDreamReader
from envs.hybrid.plan import Stage
from envs.hybrid.problem import HybridProblem
from envs.hybrid.states import LayerGraph, antichain_states

DATA = Path(os.environ.get("MESHWRIGHT_DATA", ""))
ORACLES = DATA / "oracles" / "parallel"
needs_oracles = pytest.mark.skipif(
    not ORACLES.is_dir(), reason="needs the oracles of MESHWRIGHT_DATA"
)


def stages_by(planner: HybridPlanner, problem: HybridProblem) -> tuple[Stage, ...]:
    """What a planner plans, which fits; none where it plans nothing."""
    plan = planner.solve(problem, Budget(10.0, 100)).solution
    assert plan is None or plan.violations(problem) == []
    return () if plan is None else plan.stages


def divisions(count: int, parts: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to divide 0..count - 1 into so many ranges, as (first, end)."""
    for inner in combinations(range(1, count), parts - 1):
        yield list(pairwise([0, *inner, count]))


def oracle(name: str) -> dict[str, Any]:
    """A file of oracles; nothing without them."""
    path = ORACLES / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


@cache
def profile(name: str, times: float = 1.0) -> Cuts:
    """The antichain states of a profile, `times` its batch."""
    folder = "dapple" if "pbs" in name else "pipedream"
    graph = PipeDreamReader(training=True).read(DATA / "graphs" / folder / name).graph
    cuts = Cuts.of(antichain_states(LayerGraph.of(graph)))
    return cuts._replace(seconds=cuts.seconds * times, sent=cuts.sent * times)
