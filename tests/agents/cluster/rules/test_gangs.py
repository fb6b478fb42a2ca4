"""Placement rules on drawn clusters, and on nodes where the answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from agents.cluster.rules.gangs import (
    BestFit,
    Count,
    FirstFit,
    GangRule,
    HeliosConsolidate,
    Random,
    Spread,
    Yarn,
    choose,
    room_of,
)
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Labels, Trace
from tests.refusal import refusal
from tests.strength import examples

RULES: list[type[GangRule]] = [
    Count, Yarn, HeliosConsolidate, FirstFit, BestFit, Random, Spread,
]  # fmt: skip
CONSOLIDATED = (Yarn, HeliosConsolidate, FirstFit, BestFit)
RNG = default_rng(0)


def nodes_of(*gpus: int, cpu: int = UNLIMITED) -> Cluster:
    nodes = Cluster.uniform(len(gpus))
    return replace(nodes, gpus=np.array(gpus, np.int32), cpu_milli=np.full(len(gpus), cpu))


def waiting(
    cluster: Cluster, need: int, busy: tuple[int, ...] = (), **job: int
) -> ClusterSimulator:
    """The last job waits and asks for `need` GPUs; `busy` GPUs of the nodes are taken."""
    held = [(node, gpus) for node, gpus in enumerate(busy) if gpus]
    jobs = len(held) + 1
    trace = Trace.of("by hand", [0] * jobs, [9] * jobs, [*(gpus for _, gpus in held), need])
    for name, value in job.items():
        column: Any = getattr(trace, name).copy()
        column[-1] = value
        trace = replace(trace, **{name: column})
    simulator = ClusterSimulator(cluster, trace)
    simulator.advance()
    for number, share in enumerate(held):
        simulator.start(number, [share])
    return simulator


def placed(rule: type[GangRule], simulator: ClusterSimulator) -> list[tuple[int, int]] | None:
    shares = rule().place(simulator, len(simulator.trace) - 1, default_rng(0))
    return None if shares is None else list(shares)


EIGHTS = nodes_of(8, 8, 8, 8)
BUSY = (3, 8, 0, 6)  # free: 5, 0, 8, 2


@pytest.mark.parametrize(
    ("rule", "need", "expected"),
    [
        (Count, 9, [(0, 5), (2, 4)]),
        (Count, 16, None),
        (Yarn, 2, [(0, 2)]),
        (FirstFit, 2, [(0, 2)]),
        (BestFit, 2, [(3, 2)]),
        (HeliosConsolidate, 2, [(3, 2)]),
        (Yarn, 6, [(2, 6)]),
        (Yarn, 10, [(2, 8), (0, 2)]),
        (FirstFit, 10, [(2, 8), (0, 2)]),
        (BestFit, 10, [(2, 8), (3, 2)]),
        (HeliosConsolidate, 10, [(2, 8), (0, 2)]),
        (Yarn, 14, None),
        (BestFit, 14, None),
        (Spread, 3, [(2, 3)]),
        (Spread, 6, [(0, 2), (2, 4)]),
        (Spread, 15, [(0, 5), (2, 8), (3, 2)]),
        (Random, 15, [(0, 5), (2, 8), (3, 2)]),
        (Random, 16, None),
    ],
)
def test_equal_nodes(
    rule: type[GangRule], need: int, expected: list[tuple[int, int]] | None
) -> None:
    assert placed(rule, waiting(EIGHTS, need, BUSY)) == expected


@pytest.mark.parametrize("rule", CONSOLIDATED)
def test_rest_must_be_on_one_node(rule: type[GangRule]) -> None:
    assert placed(rule, waiting(nodes_of(8, 8, 8), 14, (0, 3, 3))) is None
    assert placed(rule, waiting(nodes_of(8, 8, 8), 13, (0, 3, 3))) == [(0, 8), (1, 5)]


@pytest.mark.parametrize(
    ("rule", "gpus", "busy", "need", "expected"),
    [
        # the rest goes to the emptiest other node, even if it is idle
        (HeliosConsolidate, (8, 8, 8), (0, 7, 0), 9, [(0, 8), (2, 1)]),
        (BestFit, (8, 8, 8), (0, 7, 0), 9, [(0, 8), (1, 1)]),
        (FirstFit, (4, 8, 4, 2), (), 13, [(1, 8), (0, 4), (2, 1)]),
        (BestFit, (4, 8, 4, 2), (), 13, [(1, 8), (0, 4), (3, 1)]),
        (Yarn, (4, 8, 4, 2), (), 13, [(0, 4), (1, 8), (2, 1)]),
        (Yarn, (4, 8, 4, 2), (0, 1), 10, [(0, 4), (2, 4), (3, 2)]),
    ],
)
def test_where_the_rest_goes(
    rule: type[GangRule],
    gpus: tuple[int, ...],
    busy: tuple[int, ...],
    need: int,
    expected: list[tuple[int, int]],
) -> None:
    assert placed(rule, waiting(nodes_of(*gpus), need, busy)) == expected


@pytest.mark.parametrize("rule", RULES)
def test_gpu_types_and_processors_count(rule: type[GangRule]) -> None:
    typed = Cluster.uniform(2, 8, gpu_types=("P100", "V100"))
    trace = replace(Trace.of("typed", [0], [1], [3]), gpu_type=Labels.of(["V100"]))
    simulator = ClusterSimulator(typed, trace)
    simulator.advance()
    assert rule().place(simulator, 0, RNG) == [(1, 3)]
    narrow = nodes_of(8, 8, cpu=4_000)
    shares = placed(rule, waiting(narrow, 6, cpu_milli=6_000))
    if rule in CONSOLIDATED:
        assert shares is None  # 6 GPUs need 6 cores on one node
    else:
        assert shares is not None
        assert sorted(gpus for _, gpus in shares) in ([2, 4], [3, 3])


@pytest.mark.parametrize("rule", RULES)
def test_jobs_without_gpus_have_a_place(rule: type[GangRule]) -> None:
    shares = placed(rule, waiting(nodes_of(2, 2), 0, (2, 2)))
    assert shares is not None
    assert [gpus for _, gpus in shares] == [0]


@pytest.mark.parametrize("rule", RULES)
def test_fractions_are_refused(rule: type[GangRule]) -> None:
    simulator = waiting(nodes_of(2, 2), 1, gpu_milli=500)
    with refusal("500 thousandths") as error:
        placed(rule, simulator)
    assert error.value.record == 0


@examples(200)
@given(data=st.data())
def test_shares_are_there(data: st.DataObject) -> None:
    """The simulator checks each share; counting rules find a place whenever there is one."""
    count = data.draw(st.integers(1, 5))
    gpus = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    busy = tuple(data.draw(st.integers(0, there)) for there in gpus)
    need = data.draw(st.integers(1, sum(gpus)))
    free = [there - taken for there, taken in zip(gpus, busy, strict=True)]
    for rule in RULES:
        simulator = waiting(nodes_of(*gpus), need, busy)
        shares = placed(rule, simulator)
        if rule not in CONSOLIDATED:
            assert (shares is None) == (sum(free) < need)
        elif need <= max(gpus):
            assert (shares is None) == (max(free) < need)
            assert shares is None or len(shares) == 1
        if shares is not None:
            simulator.start(len(simulator.trace) - 1, shares)
        room = room_of(count, seed=0)
        fresh = waiting(nodes_of(*gpus), need, busy)
        job = len(fresh.trace) - 1
        found = choose(rule.code, fresh.state, fresh.tables, job, room)
        assert (found > 0) == (shares is not None)


def test_random_draws_every_gpu_alike() -> None:
    rng = default_rng(1)
    simulator = waiting(nodes_of(1, 3), 1)
    hits = sum(Random().place(simulator, 0, rng) == [(0, 1)] for _ in range(4_000))
    assert abs(hits - 1_000) < 5 * np.sqrt(4_000 * 0.25 * 0.75)
