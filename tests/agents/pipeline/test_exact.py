"""The optimum of a pipeline: proved values, and brute force over all orders of tiny ones."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from agents.constraint_program.solver import CpSettings
from agents.pipeline.exact import optimum
from agents.pipeline.published import looped, v_shaped
from agents.pipeline.zero_bubble import Memory
from envs.errors import InputError
from envs.files import read_json
from envs.step.pipeline import Action, Pipeline, Work, play
from tests.envs.step.pipelines import pipeline
from tests.refusal import refusal
from tests.strength import at_full_strength

DEMANDING = 0.02  # seconds that a proof took when it was made: more only in `make proof`
pytestmark = pytest.mark.slow


def best(
    pipe: Pipeline, *, limit: float | None = None, split: bool = True, span: bool = False
) -> float:
    """The proved optimum."""
    ones = (-1.0,) * len(pipe.rank)
    memory = None if limit is None else Memory((2.0,) * len(ones), ones, ones, limit)
    settings = CpSettings(workers=1, seed=0)
    found = optimum(pipe, memory, split=split, span=span, seconds=120, settings=settings)
    assert found.status == "optimal"
    return found.objective


def test_brute_force_finds_nothing_better() -> None:
    p, m = 2, 2
    pipe = pipeline(range(p), m, (2, 3, 1), communication=1)
    works = (Work.FORWARD, Work.INPUT, Work.WEIGHT)
    rows = [list(permutations(Action(w, s, k) for w in works for k in range(m))) for s in range(p)]
    rows = [[row for row in own if _in_order(row)] for own in rows]
    values = []
    for orders in product(*rows):
        try:
            played = play(pipe, orders)
        except InputError:
            continue
        values.append((played.makespan, played.max_rank_span))
    assert (best(pipe), best(pipe, span=True)) == tuple(map(min, zip(*values, strict=True)))


def _in_order(row: tuple[Action, ...]) -> bool:
    at = {action: place for place, action in enumerate(row)}
    return all(
        at[Action(w, a.stage, a.micro_batch - 1)] < at[a] if a.micro_batch else True
        for a in row
        for w in [a.work]
    ) and all(at[a._replace(work=Work(a.work - 1))] < at[a] for a in row if a.work)


def test_the_optima_are_those_that_were_proved(data: Path) -> None:
    """In `make proof` all, one of which was only the best known; else a few."""
    document = read_json(data / "oracles/parallel/zero_bubble.json")
    shapes = {"linear": lambda p: looped(p, 1), "V": v_shaped, "loop": lambda p: looped(p, 2)}
    cases: list[dict[str, Any]] = document["exact_cp_sat"]
    if not at_full_strength():
        cases = [e for e in cases if (e["wall"] or 1.0) <= DEMANDING][::14]
    for e in cases:
        rank, times = shapes[e["tag"].split("-")[0]](e["p"]), (e["F"], e["B"], e["W"])
        pipe, span = pipeline(rank, e["m"], times, e["comm"]), e["objective"] == "span"
        assert best(pipe, limit=e["mem"], split=e["split"], span=span) == e["value"], e
    for e in document["ilp"] if at_full_strength() else document["ilp"][:1]:
        pipe = pipeline(range(e["p"]), e["m"], (e["f"], e["b"], e["w"]), e["c"])
        assert best(pipe, limit=e["mem"], span=True) == e["ilp_obj"], e


def test_two_pipelines_in_opposite_directions(data: Path) -> None:
    cases = read_json(data / "oracles/parallel/chimera.json")["cases"]
    for e in cases if at_full_strength() else cases[:1]:
        pipe = pipeline(v_shaped(e["D"]), e["N"], (e["F"], e["B"], 0), chains=2)
        assert best(pipe, split=False) == e["optimal_makespan"], e


def test_a_span_is_proved_by_a_second_search() -> None:
    assert best(pipeline(range(3), 6, (1, 1, 1)), limit=6.0, span=True) == 20
    assert best(pipeline(v_shaped(2), 2, (2, 3, 0), chains=2), split=False, span=True) == 10


def test_what_it_cannot_do_is_refused() -> None:
    with refusal("whole numbers"):
        best(pipeline(range(2), 1, (1, 1, 1), communication=0.5))
    odd, settings = Memory((2.0,), (-1.0,), (0.0,), 4.0), CpSettings(workers=1, seed=0)
    with refusal("give back"):
        optimum(pipeline([0], 1, (1, 1, 1)), odd, split=True, span=False, seconds=1,
                settings=settings)  # fmt: skip
