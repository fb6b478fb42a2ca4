"""The learned posterior over the work left: two ways to its index, times stretched, fitting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from duration_rows import SMALL, like_their_neighbours, random_rows
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import logistic
from torch import nn

from envs.cluster.environment.duration_features import DurationFeatures, width
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from models.durations.index import GittinsPriority
from models.durations.network import SPREADS, DurationConfig, DurationPosterior, fit, stretched
from models.durations.posterior import BINS, GittinsIndex, bins_of, edges_s, log_middles
from tests.strength import examples


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@examples(20)
@given(
    st.integers(0, 2**31 - 1),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_numpys_index_mean_and_deviation_are_torchs(
    seed: int, history: int, heads: int, scale: float
) -> None:
    config = replace(SMALL, history=history, heads=heads, dropout=0.3)
    torch.manual_seed(seed)
    posterior = DurationPosterior(config).eval()
    with torch.no_grad():
        for weight in posterior.parameters():
            weight.mul_(scale)
    rows = random_rows(seed, 20, history)
    with torch.no_grad():
        logits = posterior(torch.from_numpy(rows))
        chance, middles = logits.softmax(-1).double(), log_middles()
        mean = chance @ middles
        deviation = ((chance * (middles - mean[:, None]) ** 2).sum(1)).sqrt()
        expected = torch.stack([GittinsIndex()(logits).double(), mean, deviation], 1).numpy()
    told = GittinsPriority.of(posterior)
    np.testing.assert_allclose(told(rows), expected, atol=1e-4, rtol=1e-4)
    one_by_one = np.concatenate([told(rows[k : k + 1]) for k in range(5)])
    np.testing.assert_allclose(one_by_one, expected[:5], atol=1e-4, rtol=1e-4)
    assert told(rows[:0]).shape == (0, 3)


def test_who_is_absent_has_no_part() -> None:
    """Whatever an absent neighbour's other columns hold, and wherever it stands on its side."""
    torch.manual_seed(0)
    posterior = DurationPosterior(SMALL).eval()
    rows = torch.from_numpy(random_rows(1, 30, 2))
    near = rows[:, -16:].view(30, 4, 4)
    near[:, 1] = 0.0
    other = rows.clone()
    other[:, -16:].view(30, 4, 4)[:, 1, 1:] = 0.7
    swapped = rows.clone()
    swapped[:, -16:].view(30, 4, 4)[:, [0, 1]] = near[:, [1, 0]]
    with torch.no_grad():
        logits = posterior(rows)
        assert torch.allclose(posterior(other), logits, atol=1e-6)
        assert torch.allclose(posterior(swapped), logits, atol=1e-5)
        across = rows.clone()
        across[:, -16:].view(30, 4, 4)[:, [0, 2]] = near[:, [2, 0]]
        assert not torch.allclose(posterior(across), logits, atol=1e-3)  # sides differ


def copying(spread: int) -> DurationPosterior:
    """It does nothing but copy, all finished neighbours alike, with one of the spreads."""
    posterior = DurationPosterior(SMALL).eval()
    with torch.no_grad():
        for weight in posterior.parameters():
            weight.zero_()
        posterior.no_copy.bias.fill_(-100.0)
        posterior.copies_again.bias.fill_(-100.0)
        posterior.copies_again.bias[spread] = 0.0
    return posterior


@examples(30)
@given(
    st.floats(0.0, 2e5), st.floats(60.0, 1e5), st.floats(60.0, 1e5), st.integers(0, 2)
)  # fmt: skip
def test_copies_are_of_all_work_given_the_work_done(
    done_s: float, one_s: float, other_s: float, spread: int
) -> None:
    """By Bayes, of jobs that took about as long as one of two and have not ended by now."""
    rows = np.zeros((1, width(2)), np.float32)
    rows[0, 2] = np.log1p(done_s / 60.0) / 4.0
    near = rows[0, -16:].reshape(4, 4)
    near[0] = 1.0, np.log1p(one_s / 60.0) / 4.0, 1.0, 0.2
    near[2] = 1.0, np.log1p(other_s / 60.0) / 4.0, 1.0, 0.3
    near[3] = 1.0, 0.4, 0.0, 0.1  # has not finished: nothing to copy
    done_s = 60.0 * np.expm1(4.0 * float(rows[0, 2]))  # as its column has it
    edges = np.concatenate([[max(done_s, 1e-3)], done_s + edges_s().numpy(), [np.inf]])
    ended = np.zeros(len(edges))
    for column in (near[0, 1], near[2, 1]):
        took = 60.0 * np.expm1(4.0 * float(column))
        ended += logistic.sf(np.log(edges / took) / SPREADS[spread])
    if ended[0] < 1e-6:  # neither: nobody knows
        return
    expected = -np.diff(ended) / ended[0]
    with torch.no_grad():
        found = copying(spread)(torch.from_numpy(rows)).exp().numpy()[0]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_allclose(
        GittinsPriority.of(copying(spread)).chances(rows)[0], expected, atol=2e-4
    )


def test_fitting_learns_to_copy() -> None:
    """New jobs take as long as one of their neighbours did, the first; others took any time."""
    rng = np.random.default_rng(0)
    rows, work = like_their_neighbours(0, 3000, 2)
    near = rows[:, -16:].reshape(len(rows), 4, 4)
    near[:, 1:, 1] = np.log1p(np.exp(rng.uniform(4.0, 13.0, (len(rows), 3))) / 60.0) / 4.0
    near[:, 1:, 3] = 0.5  # submitted at another time
    rows[:, -16:] = near.reshape(len(rows), 16)
    posterior, _ = fit(replace(SMALL, epochs=30), rows[:2000], work[:2000], seed=0)
    true = bins_of(torch.from_numpy(work[2000:]))
    with torch.no_grad():
        loss = float(nn.functional.nll_loss(posterior(torch.from_numpy(rows[2000:])), true))
    assert loss < 0.5


@pytest.mark.parametrize("factor", [2, 5])
def test_stretched_rows_are_those_of_a_stretched_trace(factor: int) -> None:
    """But for means over finished jobs, which are nearly so where work is long against a minute."""
    rng = np.random.default_rng(factor)
    submit, work = np.sort(rng.integers(0, 9000, 30)), rng.integers(3000, 90_000, 30)
    gpus = rng.choice([1, 2], 30)
    rows = [
        _rows(Trace.of("jobs", submit * by, work * by, gpus), [30_000.0 * by, 60_000.0 * by])
        for by in (1, factor)
    ]
    assert len(rows[0]) > 20
    found = stretched(torch.from_numpy(rows[0]), torch.full((len(rows[0]),), float(factor)))
    means = [4, 5, 7, 8]
    exact = [column for column in range(found.shape[1]) if column not in means]
    np.testing.assert_allclose(found.numpy()[:, exact], rows[1][:, exact], atol=2e-6)
    np.testing.assert_allclose(found.numpy()[:, means], rows[1][:, means], atol=2e-3)
    assert (rows[0][:, 6] > 0.0).any()
    assert not np.allclose(rows[0], rows[1], atol=0.1)


def _rows(trace: Trace, instants: list[float]) -> np.ndarray:
    """Of all arrived jobs; jobs start as they come, in order, while there is room."""
    simulator = ClusterSimulator(Cluster.uniform(1, 12), trace)
    features, found = DurationFeatures(simulator, 2), []
    for instant in instants:
        while simulator.now < instant and simulator.advance(instant):
            for job in simulator.pending():
                if simulator.state.jobs[job]["gpus"] <= simulator.state.nodes[0]["free"]:
                    simulator.start(int(job), [(0, int(simulator.state.jobs[job]["gpus"]))])
        simulator.settle()
        arrived = np.arange(int(simulator.state.clock[0]["arrived"]))
        found.append(features.rows(simulator.state, arrived))
    return np.concatenate(found)


def test_fitting_learns_from_neighbours_what_the_marginal_cannot_tell() -> None:
    config = replace(SMALL, epochs=10, stretch=5.0)
    posterior, losses = fit(config, *like_their_neighbours(0, 2000, 2), seed=0)
    rows, work = like_their_neighbours(1, 1000, 2)
    true = bins_of(torch.from_numpy(work))
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(posterior(torch.from_numpy(rows)), true))
    _, training_work = like_their_neighbours(0, 2000, 2)
    counts = np.bincount(bins_of(torch.from_numpy(training_work)).numpy(), minlength=BINS) + 1.0
    marginal = float(-np.log(counts / counts.sum())[true.numpy()].mean())
    assert loss < 0.4 * marginal
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert not posterior.training


def test_one_seed_one_posterior_whatever_else_is_drawn() -> None:
    rows, work = like_their_neighbours(0, 300, 2)
    config = replace(SMALL, dropout=0.2)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, losses = fit(config, rows, work, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    again, losses_again = fit(config, rows, work, seed=3)
    other, _ = fit(config, rows, work, seed=4)
    assert losses == losses_again
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.state_dict()["bins.weight"], other.state_dict()["bins.weight"])


def test_rows_of_another_history_are_refused() -> None:
    rows, work = like_their_neighbours(0, 10, 3)
    with pytest.raises(InputError) as caught:
        fit(SMALL, rows, work, seed=0)
    assert caught.value.field == "history"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("history", 0), ("hidden", 0), ("readout", 0), ("heads", 0), ("epochs", 0), ("batch", 0),
        ("dropout", 1.0), ("dropout", -0.1), ("stretch", 0.9), ("stretch", float("nan")),
        ("learning_rate", 0.0), ("weight_decay", -1.0),
    ],
)  # fmt: skip
def test_settings_out_of_range_name_themselves(field: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        DurationConfig(**{**asdict(SMALL), field: value})
    assert caught.value.field == field
