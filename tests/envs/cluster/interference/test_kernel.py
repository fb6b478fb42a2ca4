"""The compiled rate against a slow one that works on dictionaries."""

from __future__ import annotations

from itertools import permutations

import pytest
from crowds import (
    TWO_TYPES,
    RandomRates,
    alone_rate,
    crowd,
    holdings,
    of_host,
    of_uplink,
    random_trace,
    rates,
    slow_rate,
)
from crowds import try_to_start as start
from hypothesis import given
from hypothesis import strategies as st
from made_up import arrived
from numpy.random import default_rng

from envs.cluster.interference.kernel import (
    NOBODY,
    count,
    disturbs,
    multisets,
    neighbour_rate,
    rank,
)
from envs.cluster.interference.rates import ALONE, ON_GPU, ON_NODE, SHARED, SPANNING, NoInterference
from envs.cluster.interference.tabulated import number_of
from tests.strength import SEEDS, examples

KINDS = st.integers(ALONE, SHARED)
SCOPES = st.sampled_from([ON_NODE, ON_GPU, SPANNING])


@examples(120)
@given(SEEDS, KINDS, SCOPES, st.integers(1, 3))
def test_the_kernel_is_the_reference(seed: int, kind: int, scope: int, largest: int) -> None:
    rng = default_rng(seed)
    simulator = crowd(RandomRates(seed, kind, scope, largest), TWO_TYPES, random_trace(rng), rng)
    held, state = holdings(simulator), simulator.state
    for job, rate in rates(simulator).items():
        expected = slow_rate(simulator.tables, TWO_TYPES, held, job)
        direct = neighbour_rate(state.jobs, state.nodes, state.shares, simulator.tables, job)
        assert direct == pytest.approx(expected, rel=1e-12)
        assert rate == direct  # the simulator has kept it up to date


@examples(80)
@given(SEEDS, KINDS, SCOPES)
def test_a_neighbour_never_speeds_a_job_up(seed: int, kind: int, scope: int) -> None:
    """And who disturbs nobody changes no rate."""
    rng = default_rng(seed)
    simulator = arrived(RandomRates(seed, kind, scope), TWO_TYPES, random_trace(rng))
    for job in simulator.pending():
        before = rates(simulator)
        started, after = start(simulator, int(job), rng), rates(simulator)
        assert all(after[other] <= before[other] for other in before)
        if started and any(after[other] != before[other] for other in before):
            assert disturbs(simulator.state.jobs, simulator.state.shares, simulator.tables, job)
    for job in simulator.running():
        before = rates(simulator)
        simulator.preempt(int(job))
        assert all(rate >= before[other] for other, rate in rates(simulator).items())


@examples(40)
@given(SEEDS, KINDS, SCOPES)
def test_alone_is_speed_times_locality(seed: int, kind: int, scope: int) -> None:
    rng = default_rng(seed)
    simulator = arrived(RandomRates(seed, kind, scope), TWO_TYPES, random_trace(rng))
    for job in simulator.pending():
        if start(simulator, int(job), rng):
            held = holdings(simulator)
            assert rates(simulator)[job] == alone_rate(simulator.tables, TWO_TYPES, held, int(job))
            simulator.preempt(int(job))


@examples(80)
@given(SEEDS)
def test_no_host_and_no_uplink_gives_more_than_it_has(seed: int) -> None:
    """But for what a single job asks for by itself, which is in its trace already."""
    rng = default_rng(seed)
    simulator = crowd(RandomRates(seed, SHARED, ON_GPU), TWO_TYPES, random_trace(rng), rng)
    held, tables = holdings(simulator), simulator.tables
    left = {o: r / alone_rate(tables, TWO_TYPES, held, o) for o, r in rates(simulator).items()}
    for node in range(TWO_TYPES.num_nodes):
        asked = {o: of_host(tables, held, o, on[node][0]) for o, on in held.items() if node in on}
        for column in zip(*asked.values(), strict=True):
            given = sum(part * left[o] for o, part in zip(asked, column, strict=True))
            assert given <= max(1.0, *column) + 1e-9
    for rack in range(TWO_TYPES.num_racks):
        wanted = {o: of_uplink(tables, TWO_TYPES, held, o, rack) for o in held}
        given = sum(part * left[o] for o, part in wanted.items())
        assert given <= max(1.0, *wanted.values()) + 1e-9


def test_without_interference_all_rates_are_one() -> None:
    rng = default_rng(0)
    simulator = crowd(NoInterference(), TWO_TYPES, random_trace(rng), rng)
    assert set(rates(simulator).values()) == {1.0}


@pytest.mark.parametrize("largest", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_every_multiset_has_its_own_number(rows: int, largest: int) -> None:
    numbers = [number_of(members, largest) for members in multisets(rows, largest)]
    assert sorted(numbers) == list(range(count(rows, largest)))


@pytest.mark.parametrize("members", [(3, 1, 2), (2, 2, 0), (NOBODY, 4, 1), (NOBODY, NOBODY, 3)])
def test_order_does_not_matter(members: tuple[int, int, int]) -> None:
    assert len({rank(*order, 3) for order in permutations(members)}) == 1
