"""What every model promises: alone = 1, a neighbour never speeds you up, the same again."""

from __future__ import annotations

import pytest
from crowds import (
    ONE_TYPE,
    alone_rate,
    crowd,
    holdings,
    random_trace,
    rates,
    slow_rate,
    try_to_start,
)
from hydra import compose
from hydra.utils import instantiate
from hypothesis import HealthCheck, given
from made_up import arrived, play
from numpy.random import default_rng
from omegaconf.errors import MissingMandatoryValue

from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from experiments.config.composing import hydra_over_configs
from tests.strength import SEEDS, examples

OWN = ("none", "analytic", "contention")
MEASURED = {
    "gavel": "gavel/simulation_throughputs.json.gz",
    "deepshare": "deepshare",
    "pollux": "pollux",
    "shared": "gavel/simulation_throughputs.json.gz",
}


def configured(name: str, *overrides: str) -> RateModel:
    with hydra_over_configs():
        config = compose(f"interference/{name}", overrides=list(overrides))
    model: RateModel = instantiate(config.interference)
    return model


@pytest.fixture(scope="module", params=[*OWN, *MEASURED, "pollux contending"])
def model(request: pytest.FixtureRequest) -> RateModel:
    name, *contending = request.param.split()
    if name in OWN:
        return configured(name)
    path = request.getfixturevalue("data") / "interference" / MEASURED[name]
    more = ["interference.eta=0.3"] if contending else []
    return configured(name, f"interference.path={path}", *more)


@examples(12, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_neighbours_only_slow_down_and_alone_is_one(model: RateModel, seed: int) -> None:
    rng = default_rng(seed)
    simulator = arrived(model, ONE_TYPE, random_trace(rng))
    for job in simulator.pending():
        before = rates(simulator)
        if not try_to_start(simulator, int(job), rng):
            continue
        after, held = rates(simulator), holdings(simulator)
        assert all(after[other] <= before[other] for other in before)
        for other in held:
            alone = alone_rate(simulator.tables, ONE_TYPE, held, other)
            assert 0.0 < after[other] <= alone <= 1.0
            expected = slow_rate(simulator.tables, ONE_TYPE, held, other)
            assert after[other] == pytest.approx(expected, rel=1e-12)


def test_as_in_the_trace_where_its_conditions_hold(model: RateModel) -> None:
    """By itself, on the reference GPU type, on no more nodes than it needs: exactly 1."""
    trace = random_trace(default_rng(1), 60, fractional=False)
    simulator = arrived(model, ONE_TYPE, trace)
    for job in simulator.pending():
        nodes, rest = divmod(int(trace.num_gpus[job]), 4)
        shares = [(node, 4) for node in range(nodes)] + ([(nodes, rest)] if rest else [])
        assert play(simulator, {int(job): shares})[job] == 1.0
        simulator.preempt(int(job))


def test_the_same_again(model: RateModel) -> None:
    trace = random_trace(default_rng(3))
    runs = [crowd(model, ONE_TYPE, trace, default_rng(4)) for _ in range(2)]
    assert rates(runs[0]) == rates(runs[1])
    for run in runs:
        while not run.done and run.advance():
            pass
    assert (runs[0].state.jobs == runs[1].state.jobs).all()


def test_models_of_the_project_slow_down_a_full_cluster() -> None:
    """The test above would pass if nothing ever acted."""
    for name in ("analytic", "contention"):
        rng = default_rng(0)
        trace = random_trace(rng, fractional=name == "analytic")
        assert min(rates(crowd(configured(name), ONE_TYPE, trace, rng)).values()) < 0.7


@pytest.mark.parametrize("name", MEASURED)
def test_a_missing_path_is_named(name: str) -> None:
    with pytest.raises(MissingMandatoryValue, match=r"interference\.path"):
        configured(name)


def test_links_and_profiles_can_be_exchanged() -> None:
    config = "interference/network@interference.step.network=nvlink_100g"
    model = configured("analytic", config)
    trace, cluster = Trace.of("t", [0], [1], [4]), Cluster.uniform(2, 4)
    assert configured("analytic").tables(trace, cluster).demand[0, 2] > 0.0
    assert model.tables(trace, cluster).demand[0, 2] == 0.0
