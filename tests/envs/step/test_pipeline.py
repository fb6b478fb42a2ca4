"""Pipelines of stages: the published figures, and a second simulator that knows no lists."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from agents.pipeline.published import PUBLISHED, looped, one_f_one_b, v_shaped
from envs.errors import InputError
from envs.files import read_json
from envs.step.pipeline import Action, Orders, Overlap, Pipeline, PlayedPipeline, Work, play
from tests.envs.step.pipelines import Times, pipeline
from tests.refusal import refusal

NAMES = {
    "GPipe": "gpipe", "1F1B": "1f1b", "LoopedBFS": "looped_bfs", "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "zb_h1", "ZBVZeroBubble": "zb_v", "DualPipeV": "dualpipe_v",
}  # fmt: skip


def piped(name: str, p: int, m: int, v: int, times: Times, communication: float = 0) -> Pipeline:
    """The pipeline of a published schedule."""
    rank = v_shaped(p) if name in {"zb_v", "dualpipe_v"} else looped(p, v)
    return pipeline(rank, m, times, communication)


def found(played: PlayedPipeline) -> dict[str, object]:
    return {
        "makespan": played.makespan,
        "max_rank_span": played.max_rank_span,
        "peak_live_until_W": played.peak_live(Work.WEIGHT),
        "peak_live_until_I": played.peak_live(Work.INPUT),
    }


def test_every_published_figure_is_met_to_the_digit(data: Path) -> None:
    entries = read_json(data / "oracles/parallel/pipeline_schedules.json")["entries"]
    for entry in entries:
        name = NAMES[entry["schedule"]]
        p, m, v = entry["p"], entry["m"], entry["v"]
        if "refused" in entry:
            with refusal():
                PUBLISHED[name](p, m, v)
            continue
        times = entry["F"], entry["I"], entry["W"]
        played = play(
            piped(name, p, m, v, times, entry["comm"]),
            PUBLISHED[name](p, m, v),
            entry.get("overlap", "serial"),
        )
        got = found(played)
        assert got == {key: entry[key] for key in got}, entry


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 5), (2, 1), (3, 2), (3, 6), (5, 3), (5, 10)])
def test_the_makespans_of_the_papers(p: int, m: int) -> None:
    def makespan(name: str, v: int, times: Times, overlap: Overlap = "serial") -> float:
        return play(piped(name, p, m, v, times), PUBLISHED[name](p, m, v), overlap).makespan

    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("looped_bfs", 2), ("interleaved", 3)):
        passes = chunks * m + p - 1 + (chunks - 1) * max(0, p - m)
        assert makespan(name, chunks, (3, 5, 2)) == passes * 10
    for chunks in (1, 2) if m % p == 0 else ():
        assert makespan("zb_h1", chunks, (10, 12, 8)) == chunks * m * 30 + (p - 1) * 14
    if m >= 2 * p:
        assert makespan("dualpipe_v", 2, (1, 1, 1)) == 6 * m + p - 1
        assert makespan("dualpipe_v", 2, (1, 1, 1), "atomic") == 6 * m + (p - 1) * 2
        played = play(piped("zb_v", p, m, 2, (4, 4, 4)), PUBLISHED["zb_v"](p, m, 2))
        assert (played.max_rank_span, played.makespan) == (24 * m, 24 * m + (p - 1) * 4)
        assert max(played.peak_live(Work.WEIGHT)) == 2 * p


def longest_paths(pipe: Pipeline, orders: Orders) -> Mapping[Action, float]:
    """The end of every action: the longest path in the graph of all that waits for something."""
    graph = nx.DiGraph()
    here = {(a.stage, a.micro_batch, a.work): a for order in orders for a in order}
    for order in orders:
        for first, second in pairwise(order):
            graph.add_edge(first, second, wait=0)
    for a in here.values():
        graph.add_node(a)
        gradient = here.get((a.stage + 1, a.micro_batch, Work.INPUT)) or here.get(
            (a.stage + 1, a.micro_batch, Work.BACKWARD)
        )
        inputs = {
            Work.FORWARD: [here.get((a.stage - 1, a.micro_batch, Work.FORWARD))],
            Work.WEIGHT: [here.get((a.stage, a.micro_batch, Work.INPUT))],
        }.get(a.work, [here[a.stage, a.micro_batch, Work.FORWARD], gradient])
        for source in inputs:
            if source is not None:
                away = pipe.rank[source.stage] != pipe.rank[a.stage]
                graph.add_edge(source, a, wait=pipe.communication * away)
    end: dict[Action, float] = {}
    length = (pipe.forward, pipe.input_gradient, pipe.weight_gradient)
    for a in nx.topological_sort(graph):
        start = max((end[b] + graph.edges[b, a]["wait"] for b in graph.predecessors(a)), default=0)
        whole = length[1][a.stage] + length[2][a.stage]
        end[a] = start + (whole if a.work is Work.BACKWARD else length[a.work][a.stage])
    return end


@given(
    name=st.sampled_from(["1f1b", "looped_bfs", "interleaved", "zb_h1", "zb_v"]),
    p=st.integers(1, 4), m=st.integers(1, 5), chunks=st.integers(1, 3), data=st.data(),
)  # fmt: skip
def test_the_simulator_finds_the_longest_paths(
    name: str, p: int, m: int, chunks: int, data: st.DataObject
) -> None:
    v = 2 if name == "zb_v" else 1 if name == "1f1b" else chunks
    times = st.lists(st.integers(0, 9), min_size=p * v, max_size=p * v)
    drawn = [data.draw(times) for _ in range(3)]
    pipe = piped(name, p, m, v, drawn, data.draw(st.integers(0, 5)))
    try:
        orders = PUBLISHED[name](p, m, v)
    except InputError:  # torch refuses it as well
        reject()
    ends = longest_paths(pipe, orders)
    for row in play(pipe, orders).bars:
        for bar in row:
            assert bar.finish == ends[Action(bar.work, bar.stage, bar.micro_batch)]


@pytest.mark.parametrize("overlap", ["serial", "atomic"])
def test_two_passes_beside_each_other_wait_for_their_inputs(overlap: Overlap) -> None:
    pipe = pipeline(range(2), 2, (1, 1, 1), 5)
    f, b = Work.FORWARD, Work.BACKWARD
    orders = [
        [Action(f, 0, 0), Action(f, 0, 1), Action(b, 0, 0), Action(b, 0, 1)],
        [Action(f, 1, 0), Action(f, 1, 1, (1, 0)), Action(b, 1, 1)],
    ]
    first, second = play(pipe, orders, overlap).bars
    assert [(bar.start, bar.finish) for bar in second] == [(6, 7), (7, 8), (8, 10), (10, 12)]
    assert [bar.start for bar in first] == [0, 1, 15, 17]


def test_lists_that_do_not_fit_are_refused() -> None:
    pipe = pipeline(range(2), 1, (1, 1, 1))
    f, b = Work.FORWARD, Work.BACKWARD
    good: Any = [[Action(f, 0, 0), Action(b, 0, 0)], [Action(f, 1, 0), Action(b, 1, 0)]]
    assert play(pipe, good).makespan == 6
    with refusal("rank 0 waits for ever to run backward of stage 0"):
        play(pipe, [good[0][::-1], good[1]])
    with refusal("not done exactly once"):
        play(pipe, [good[0], good[1][:1]])
    with refusal("rank 0 has no stage 1"):
        play(pipe, [[*good[0], good[1][0]], good[1]])
    assert one_f_one_b(2, 1, 1) == good
