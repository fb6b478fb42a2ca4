"""The zero-bubble search: never worse than the published heuristics, and within its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from agents.pipeline.published import looped, numbered, v_shaped, zb_v
from agents.pipeline.zero_bubble import Facts, Memory, fill, zero_bubble
from envs.files import read_json
from envs.step.pipeline import Action, PlayedPipeline, Work, play
from tests.envs.step.pipelines import pipeline
from tests.refusal import refusal
from tests.strength import SEEDS, at_full_strength


def highest(played: PlayedPipeline, memory: Memory) -> float:
    """The most that a rank holds."""
    adds = (memory.forward, memory.input_gradient, memory.weight_gradient)
    held = [np.cumsum([adds[bar.work][bar.stage] for bar in row]).max() for row in played.bars]
    return float(max(held))


def searched(entry: dict[str, Any], limit: float, tries: int) -> PlayedPipeline:
    p, m, v_shape = entry["p"], entry["m"], "zbv" in entry["algorithm"]
    rank = v_shaped(p) if v_shape else looped(p, 1)
    pipe = pipeline(rank, m, [entry[key] for key in "FBW"], entry["comm"])
    takes = pipeline(rank, m, [entry[f"mem_{key}"] for key in "FBW"])
    memory = Memory(takes.forward, takes.input_gradient, takes.weight_gradient, limit)
    published = zb_v(p, m, 2) if v_shape else None
    played = play(pipe, zero_bubble(pipe, memory, published, tries, 0, 0.0))
    assert highest(played, memory) <= limit
    return played


def test_no_span_is_longer_than_the_authors(data: Path) -> None:
    """In `make proof` every entry; else some of the quick ones."""
    entries = read_json(data / "oracles/parallel/zero_bubble.json")["heuristic"]
    for entry in entries if at_full_strength() else entries[::6]:
        in_a_v = "zbv" in entry["algorithm"]
        if not at_full_strength() and (entry["p"] > 4 or entry["m"] > (4 if in_a_v else 8)):
            continue
        limit = max(entry["peak_mem"]) if in_a_v else entry["mem_limit"]
        span = searched(entry, limit, 200_000 if at_full_strength() else 4000).max_rank_span
        assert span <= entry["resim_span"], entry
        assert span == entry.get("proved_optimal_span", span), entry


@given(SEEDS)
def test_the_kernel_plays_its_lists_as_the_simulator_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    p, m, in_a_v = (int(random.integers(*ends)) for ends in ((1, 5), (1, 7), (0, 2)))
    rank = v_shaped(p) if in_a_v else looped(p, 1)
    stages, chunks = len(rank), len(rank) // p
    seconds = random.integers(0, 9, (3, stages)).astype(np.float64)
    mine = np.array([[s for s in range(stages) if rank[s] == r] for r in range(p)])
    limit = float(random.choice([2.0 * chunks, 2.0 * p * chunks, np.inf]))
    takes = np.repeat([[2.0], [-1.0], [-1.0]], stages, axis=1)
    late = float(random.integers(0, 4))
    facts = Facts(mine, np.array(rank), seconds, takes, limit, late, m)
    forward = [0, 2, 3, 1] if in_a_v else [0, 1]
    passes = np.array([forward * m] * p, dtype=np.int8)
    for row in passes:  # exchanges of neighbours, which may deadlock or exceed the memory
        for at in random.integers(0, len(row) - 1, random.integers(0, 3)):
            row[at], row[at + 1] = row[at + 1], row[at]
    patience = random.choice([0.0, 3.0, np.inf], p)
    span, makespan, mean, codes = fill(facts, passes, patience)
    if not np.isfinite(span):
        return
    orders = [[Action(Work(c % 3), c // 3, k) for c, k in numbered(row)] for row in codes.tolist()]
    played = play(pipeline(rank, m, seconds.tolist(), late), orders)
    assert (played.max_rank_span, played.makespan) == (span, makespan)
    spans = [max(bar.finish for bar in row) - row[0].start for row in played.bars]
    assert np.mean(spans) == pytest.approx(mean)
    assert highest(played, Memory(*map(tuple, takes.tolist()), limit=limit)) <= limit


def memory(stages: int, limit: float) -> Memory:
    return Memory((2.0,) * stages, (-1.0,) * stages, (-1.0,) * stages, limit)


def test_one_micro_batch_at_a_time_where_memory_holds_no_more() -> None:
    pipe = pipeline(range(2), 3, (3.0, 3.0, 3.0), 1.0)
    played = play(pipe, zero_bubble(pipe, memory(2, 2.0), None, 100, 0, 0.0))
    assert played.peak_live(Work.WEIGHT) == [1, 1]
    with refusal("does not hold one micro-batch"):
        zero_bubble(pipe, memory(2, 1.0), None, 100, 0, 0.0)


def test_patience_finds_what_filling_every_gap_or_none_does_not() -> None:
    """Eight ranks: 522 where gradients fill no gap that is too short, 534 where they fill all."""
    pipe = pipeline(range(8), 16, (10.0, 12.0, 8.0))
    assert play(pipe, zero_bubble(pipe, memory(8, 30.0), None, 0, 0, 0.0)).max_rank_span <= 516


def test_a_seed_gives_the_same_lists_and_more_tries_no_worse_ones() -> None:
    pipe = pipeline(range(3), 5, (3.0, 3.0, 3.0), 1.0)
    none, some, again = (
        zero_bubble(pipe, memory(3, 8.0), None, tries, 7, 1.0) for tries in (0, 3000, 3000)
    )
    assert some == again
    assert play(pipe, some).makespan <= play(pipe, none).makespan
