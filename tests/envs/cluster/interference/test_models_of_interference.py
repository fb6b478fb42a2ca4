"""What every model promises: the rates of a slow reference; alone = 1, neighbours slow down."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from crowds import (
    ONE_TYPE,
    TWO_TYPES,
    RandomRates,
    alone_rate,
    check_rates,
    crowd,
    holdings,
    of_host,
    of_uplink,
    random_trace,
    rates,
)
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from made_up import arrived, configured, named_trace, play, profiles, step_model
from numpy.random import default_rng
from omegaconf.errors import MissingMandatoryValue

from envs.cluster.interference.analytic import SharedBottleneck
from envs.cluster.interference.cases import assign
from envs.cluster.interference.kernel import NOBODY, count, multisets, rank
from envs.cluster.interference.rates import (
    ALONE,
    ON_GPU,
    ON_NODE,
    SHARED,
    SPANNING,
    NoInterference,
    RateModel,
)
from envs.cluster.interference.tabulated import TabulatedRates, number_of, tabulate
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import SEEDS, examples

OWN = ("none", "analytic", "contention")
MEASURED = {
    "gavel": "gavel/simulation_throughputs.json.gz",
    "deepshare": "deepshare",
    "pollux": "pollux",
    "shared": "gavel/simulation_throughputs.json.gz",
}


@pytest.fixture(scope="module", params=[*OWN, *MEASURED, "pollux interference.eta=0.3"])
def model(request: pytest.FixtureRequest) -> RateModel:
    name, *more = request.param.split()
    if name in MEASURED:
        path = request.getfixturevalue("data") / "interference" / MEASURED[name]
        more.append(f"interference.path={path}")
    return configured(name, *more)


@examples(12, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_a_model_does_as_its_tables_say_and_alone_is_at_most_1(model: RateModel, seed: int) -> None:
    rng = default_rng(seed)
    assert check_rates(arrived(model, ONE_TYPE, random_trace(rng)), ONE_TYPE, rng) <= 1.0


@examples(120)
@given(
    SEEDS,
    st.integers(ALONE, SHARED),
    st.sampled_from([ON_NODE, ON_GPU, SPANNING]),
    st.integers(1, 3),
)
def test_rates_are_those_of_the_reference(seed: int, kind: int, scope: int, largest: int) -> None:
    rng, model = default_rng(seed), RandomRates(seed, kind, scope, largest)
    check_rates(arrived(model, TWO_TYPES, random_trace(rng)), TWO_TYPES, rng)


def test_as_in_the_trace_where_its_conditions_hold(model: RateModel) -> None:
    """By itself, on the reference GPU type, on no more nodes than it needs: exactly 1."""
    trace = random_trace(default_rng(1), 60, fractional=False)
    simulator = arrived(model, ONE_TYPE, trace)
    for job in simulator.pending().tolist():
        nodes, rest = divmod(int(trace.num_gpus[job]), 4)
        shares = [(node, 4) for node in range(nodes)] + ([(nodes, rest)] if rest else [])
        assert play(simulator, {job: shares})[job] == 1.0
        simulator.preempt(job)


def test_the_same_again(model: RateModel) -> None:
    trace = random_trace(default_rng(3))
    runs = [crowd(model, ONE_TYPE, trace, default_rng(4)) for _ in range(2)]
    assert rates(runs[0]) == rates(runs[1])
    for run in runs:
        while not run.done and run.advance():
            pass
    assert (runs[0].state.jobs == runs[1].state.jobs).all()


@pytest.mark.parametrize("name", ["analytic", "contention"])
def test_models_of_the_project_slow_down_a_full_cluster(name: str) -> None:
    """The tests above would pass if nothing ever acted."""
    rng = default_rng(0)
    trace = random_trace(rng, fractional=name == "analytic")
    assert min(rates(crowd(configured(name), ONE_TYPE, trace, rng)).values()) < 0.7


def test_without_interference_all_rates_are_one() -> None:
    rng = default_rng(0)
    simulator = crowd(NoInterference(), TWO_TYPES, random_trace(rng), rng)
    assert set(rates(simulator).values()) == {1.0}


@pytest.mark.parametrize("name", MEASURED)
def test_a_missing_path_is_named(name: str) -> None:
    with pytest.raises(MissingMandatoryValue, match=r"interference\.path"):
        configured(name)


def test_links_and_profiles_can_be_exchanged() -> None:
    trace, cluster = Trace.of("t", [0], [1], [4]), Cluster.uniform(2, 4)
    links = ([], ["interference/network@interference.step.network=nvlink_100g"])
    pcie, nvlink = (configured("analytic", *more).tables(trace, cluster).demand for more in links)
    assert pcie[0, 2] > 0.0 == nvlink[0, 2]


@examples(80)
@given(SEEDS)
def test_no_host_and_no_uplink_gives_more_than_it_has(seed: int) -> None:
    """But for what a single job asks for by itself, which is in its trace already."""
    rng = default_rng(seed)
    simulator = crowd(RandomRates(seed, SHARED, ON_GPU), TWO_TYPES, random_trace(rng), rng)
    held, tables = holdings(simulator), simulator.tables
    left = {o: r / alone_rate(tables, TWO_TYPES, held, o) for o, r in rates(simulator).items()}
    asked = [
        {o: of_host(tables, held, o, on[node][0]) for o, on in held.items() if node in on}
        for node in range(TWO_TYPES.num_nodes)
    ] + [
        {o: (of_uplink(tables, TWO_TYPES, held, o, rack),) for o in held}
        for rack in range(TWO_TYPES.num_racks)
    ]
    for place in asked:
        for wanted in zip(*place.values(), strict=True):
            given = sum(part * left[o] for o, part in zip(place, wanted, strict=True))
            assert given <= max(1.0, *wanted) + 1e-9


@pytest.mark.parametrize("largest", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_every_multiset_has_its_own_number(rows: int, largest: int) -> None:
    numbers = [number_of(members, largest) for members in multisets(rows, largest)]
    assert sorted(numbers) == list(range(count(rows, largest)))


@pytest.mark.parametrize("members", [(3, 1, 2), (2, 2, 0), (NOBODY, 4, 1), (NOBODY, NOBODY, 3)])
def test_order_does_not_matter(members: tuple[int, int, int]) -> None:
    assert len({rank(*order, 3) for order in permutations(members)}) == 1


WEIGHT = np.array([0.1, 0.5, 0.8, 0.0])  # of each profile; the last is of nobody


def gentle(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    assert (np.diff(neighbours, axis=1) >= 0).all()
    assert (neighbours.max(axis=1) > NOBODY).all()
    return 1.0 / (1.0 + WEIGHT[own] * WEIGHT[neighbours].sum(axis=1))


def modulo(trace: Trace, seed: int) -> np.ndarray:
    return (np.arange(len(trace)) + seed) % 3


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_every_multiset_has_its_rate(largest: int) -> None:
    def predict(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        assert neighbours.shape == (len(own), largest)
        return gentle(own, neighbours)

    sets = tabulate(predict, 3, largest)
    for members in multisets(3, largest):
        expected = 1 / (1 + WEIGHT[:3] * sum(WEIGHT[m] for m in members))
        assert sets[:, number_of(members, largest)] == pytest.approx(expected)


def test_a_predictor_that_is_not_monotone_is_made_so() -> None:
    """Alone beside 0: 0.5, beside 1: 1.5; beside both: 0.9."""

    def odd(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        zero, one = (neighbours == 0).any(axis=1), (neighbours == 1).any(axis=1)
        return np.where(zero & one, 0.9, np.where(zero, 0.5, 1.5))

    sets = tabulate(odd, 2, 2)
    at = {members: sets[0, number_of(members, 2)] for members in multisets(2, 2)}
    assert at == {(): 1.0, (0,): 0.5, (1,): 1.0, (0, 0): 0.5, (0, 1): 0.5, (1, 1): 1.0}


def test_beyond_the_tables_the_least_subset_counts() -> None:
    rng = default_rng(2)
    model = TabulatedRates("gentle", gentle, 3, modulo, NoInterference(), 2, ON_NODE, 1)
    simulator = crowd(model, ONE_TYPE, random_trace(rng, 40), rng)
    held, most = holdings(simulator), 0
    for job, rate in rates(simulator).items():
        left = 1.0
        for node in held[job]:
            beside = sorted(WEIGHT[(o + 1) % 3] for o in held if o != job and node in held[o])
            most = max(most, len(beside))
            left = min(left, 1 / (1 + WEIGHT[(job + 1) % 3] * sum(beside[-2:])))
        assert rate == pytest.approx(left, rel=1e-12)
    assert most > 2


def test_a_function_of_its_own_gives_the_rates_of_the_analytic_model() -> None:
    """Partial GPUs with at most four jobs, whose PCIe and ports nobody needs."""
    table = profiles()
    busy = np.array([*(p.busy for p in table.all), 0.0])

    def shares(own: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        return 1.0 / np.maximum(1.0, busy[own] + busy[neighbours].sum(axis=1))

    def profile(trace: Trace, seed: int) -> np.ndarray:
        return assign(trace, table.names, table.suits, seed)

    analytic = SharedBottleneck(table, step_model(), 0)
    model = TabulatedRates("shares", shares, 3, profile, analytic, 3, ON_GPU, 0)
    for seed in range(5):
        models = default_rng(seed).choice(["mute", "chatty"], 30).tolist()
        trace = named_trace(models, [1] * 30, [250] * 30)
        a, b = (rates(crowd(m, ONE_TYPE, trace, default_rng(seed))) for m in (analytic, model))
        assert a == pytest.approx(b, rel=1e-12)
        assert min(a.values()) < 1.0


def test_impossible_tables_are_refused() -> None:
    for wrong in (np.zeros(9), np.ones(2)):
        with refusal("'predict': is not 9 finite numbers above 0"):
            tabulate(lambda *_, wrong=wrong: wrong, 3, 1)
