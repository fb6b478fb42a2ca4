"""The zero-bubble search: never worse than the published heuristics, and within its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.pipeline.published import looped, v_shaped, zb_v
from agents.pipeline.zero_bubble import Facts, Memory, fill, zero_bubble
from envs.files import read_json
from envs.step.pipeline import Action, Pipeline, PlayedPipeline, Work, play
from tests.refusal import refusal
from tests.strength import SEEDS, at_full_strength


def per_stage(value: Any, stages: int) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, list) else (value,) * stages


def highest(played: PlayedPipeline, memory: Memory) -> float:
    """The most that a rank holds."""
    adds = (memory.forward, memory.input_gradient, memory.weight_gradient)
    held = [np.cumsum([adds[bar.work][bar.stage] for bar in row]).max() for row in played.bars]
    return float(max(held))


def searched(entry: dict[str, Any], limit: float, tries: int) -> PlayedPipeline:
    p, m, v_shape = entry["p"], entry["m"], "zbv" in entry["algorithm"]
    rank = v_shaped(p) if v_shape else looped(p, 1)
    f, i, w = (per_stage(entry[key], len(rank)) for key in "FBW")
    pipeline = Pipeline(rank, m, f, i, w, entry["comm"], (tuple(range(len(rank))),))
    takes = (per_stage(entry[f"mem_{key}"], len(rank)) for key in "FBW")
    memory = Memory(*takes, limit=limit)
    published = zb_v(p, m, 2) if v_shape else None
    played = play(pipeline, zero_bubble(pipeline, memory, published, tries, 0, 0.0))
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


@given(data=st.data())
def test_the_kernel_plays_its_lists_as_the_simulator_does(data: st.DataObject) -> None:
    p, m, in_a_v = (
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 6)),
        data.draw(st.booleans()),
    )
    rank = v_shaped(p) if in_a_v else looped(p, 1)
    stages, chunks = len(rank), len(rank) // p
    random = np.random.default_rng(data.draw(SEEDS))
    seconds = random.integers(0, 9, (3, stages)).astype(np.float64)
    mine = np.array([[s for s in range(stages) if rank[s] == r] for r in range(p)])
    limit = data.draw(st.sampled_from([2.0 * chunks, 2.0 * p * chunks, np.inf]))
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
    orders = []
    for row in codes.tolist():
        seen = [row[:k].count(code) for k, code in enumerate(row)]
        orders.append([Action(Work(c % 3), c // 3, k) for c, k in zip(row, seen, strict=True)])
    pipeline = Pipeline(rank, m, *map(tuple, seconds.tolist()), late, (tuple(range(stages)),))
    played = play(pipeline, orders)
    assert (played.max_rank_span, played.makespan) == (span, makespan)
    spans = [max(bar.finish for bar in row) - row[0].start for row in played.bars]
    assert np.mean(spans) == pytest.approx(mean)
    assert highest(played, Memory(*map(tuple, takes.tolist()), limit=limit)) <= limit


def pipeline(p: int, m: int, chunks: int) -> Pipeline:
    times = (3.0,) * (p * chunks)
    return Pipeline(looped(p, chunks), m, times, times, times, 1.0, (tuple(range(p * chunks)),))


def memory(stages: int, limit: float) -> Memory:
    return Memory((2.0,) * stages, (-1.0,) * stages, (-1.0,) * stages, limit)


def test_one_micro_batch_at_a_time_where_memory_holds_no_more() -> None:
    pipe = pipeline(2, 3, 1)
    played = play(pipe, zero_bubble(pipe, memory(2, 2.0), None, 100, 0, 0.0))
    assert played.peak_live(Work.WEIGHT) == [1, 1]
    with refusal("does not hold one micro-batch"):
        zero_bubble(pipe, memory(2, 1.0), None, 100, 0, 0.0)


def test_patience_finds_what_filling_every_gap_or_none_does_not() -> None:
    """Eight ranks: 522 where gradients fill no gap that is too short, 534 where they fill all."""
    times = ((10.0,) * 8, (12.0,) * 8, (8.0,) * 8)
    pipe = Pipeline(looped(8, 1), 16, *times, 0, (tuple(range(8)),))
    assert play(pipe, zero_bubble(pipe, memory(8, 30.0), None, 0, 0, 0.0)).max_rank_span <= 516


def test_a_seed_gives_the_same_lists_and_more_tries_no_worse_ones() -> None:
    pipe = pipeline(3, 5, 1)
    first = zero_bubble(pipe, memory(3, 8.0), None, 300, 7, 1.0)
    assert first == zero_bubble(pipe, memory(3, 8.0), None, 300, 7, 1.0)
    spans = [
        play(pipe, zero_bubble(pipe, memory(3, 8.0), None, tries, 7, 1.0)).makespan
        for tries in (0, 3000)
    ]
    assert spans[1] <= spans[0]
