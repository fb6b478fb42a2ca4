"""The choice of options: brute force on random graphs, and OneFlow's three operators."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.hybrid import choice
from agents.hybrid.choice import ChoiceProgram, choose
from envs.files import read_json
from envs.hybrid.signatures import BROADCAST, FEATURES, PARTIAL, ROWS, boxing_bytes

SBP = {str(form): form for form in (ROWS, FEATURES, BROADCAST, PARTIAL)}


def draw(seed: int) -> ChoiceProgram:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, size=rng.integers(1, 7))
    n = len(sizes)
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.6]
    pairs += pairs[:1]
    tables = [rng.integers(0, 20, size=(sizes[u], sizes[v])).astype(float) for u, v in pairs]
    for table in tables:
        table[rng.random(table.shape) < 0.1] = np.inf
    seconds = tuple(rng.integers(0, 20, size=s).astype(float) for s in sizes)
    return ChoiceProgram(seconds, tuple(pairs), tuple(tables))


def brute_force(program: ChoiceProgram) -> float:
    every = product(*(range(len(table)) for table in program.seconds))
    return min(program.value(np.array(options)) for options in every)


@pytest.mark.parametrize(("table", "seeds"), [(choice._TABLE, 60), (0, 20)])
def test_the_choice_is_the_optimum(table: int, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the dynamic program, and by the MILP where its tables may hold nothing."""
    monkeypatch.setattr(choice, "_TABLE", table)
    for program in map(draw, range(seeds)):
        found, best = choose(program, 20.0), brute_force(program)
        assert (np.inf if found is None else program.value(found)) == best


MATMUL = [("S0", "B", "S0"), ("B", "S1", "S1"), ("S1", "S0", "P"), ("P", "B", "P"),
          ("B", "P", "P"), ("B", "B", "B")]  # fmt: skip
RELU = [("S0", "S0"), ("S1", "S1"), ("B", "B")]


def test_three_operators_of_oneflow(data: Path) -> None:
    oracle = read_json(data / "oracles/parallel/sbp_boxing.json")["mini_planner"]
    for case in oracle["cases"]:
        program = _three_operators(case)
        found = choose(program, 1.0)
        assert found is not None
        assert program.value(found) == pytest.approx(case["total"], rel=1e-12)


def _three_operators(case: dict[str, Any]) -> ChoiceProgram:
    """X, W1, W2 as they are stored; product, ReLU, product; the result wanted as B."""
    b, d, h, p = (case[name] for name in "bdhp")
    stored = ["S0", "S1"]
    forms = [[case["x"]], stored, stored, MATMUL, RELU, MATMUL, ["B"]]
    work = [
        case["lam"] * 2 * b * d * h * np.array([1 / p if _split(s) else 1.0 for s in MATMUL]),
        case["lam"] * b * h * np.array([1 / p if _split(s) else 1.0 for s in RELU]),
    ]
    free = [np.zeros(len(options)) for options in forms]
    seconds = (*free[:3], work[0], work[1], work[0], free[6])
    edges = [(0, 3, 0, b * d), (1, 3, 1, d * h), (3, 4, 0, b * h), (4, 5, 0, b * h),
             (2, 5, 1, h * d), (5, 6, 0, b * d)]  # fmt: skip
    tables = []
    for u, v, slot, elements in edges:
        given = [s if isinstance(s, str) else s[-1] for s in forms[u]]
        wanted = [s if isinstance(s, str) else s[slot] for s in forms[v]]
        every = [[boxing_bytes(SBP[a], SBP[c], 4.0 * elements, p) for c in wanted] for a in given]
        tables.append(np.array(every))
    return ChoiceProgram(seconds, tuple((u, v) for u, v, *_ in edges), tuple(tables))


def _split(signature: tuple[str, ...]) -> bool:
    return any(form.startswith("S") for form in signature[:-1])
