"""The learned posterior over the work left: two ways to its index, times stretched, fitting."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from duration_rows import (
    SMALL,
    feature,
    like_their_neighbours,
    near_of,
    priority_of,
    random_rows,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from scipy.stats import logistic
from torch import Tensor
from torch.nn.functional import nll_loss

from envs.cluster.environment.duration_features import DurationFeatures, width
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from envs.files import read_json
from models.artifacts import sha256_of
from models.durations.bins import (
    BINS,
    SPEC_FILE,
    SPREADS,
    WEIGHTS_FILE,
    middles,
    read_durations,
    upper_edges_s,
)
from models.durations.network import (
    DurationPosterior,
    GittinsIndex,
    bins_of,
    fit,
    save_durations,
    stretched,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples


def log_chances(posterior: DurationPosterior, rows: NDArray[np.float32]) -> Tensor:
    with torch.no_grad():
        return posterior(torch.from_numpy(rows))


def true_bins(work: NDArray[np.float64]) -> Tensor:
    return bins_of(torch.from_numpy(work))


@examples(20)
@given(SEEDS, st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0]))
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
    logits = log_chances(posterior, rows)
    chance, centres = logits.softmax(-1).double().numpy(), middles()
    mean = chance @ centres
    deviation = np.sqrt((chance * (centres - mean[:, None]) ** 2).sum(1))
    expected = np.stack([GittinsIndex()(logits).numpy(), mean, deviation], 1)
    beliefs = priority_of(posterior)
    assert_allclose(beliefs(rows), expected, atol=1e-4, rtol=1e-4)
    one_by_one = np.concatenate([beliefs(rows[k : k + 1]) for k in range(5)])
    assert_allclose(one_by_one, expected[:5], atol=1e-4, rtol=1e-4)
    assert beliefs(rows[:0]).shape == (0, 3)


def test_who_is_absent_has_no_part() -> None:
    """Whatever an absent neighbour's other columns hold, and wherever it stands on its side."""
    torch.manual_seed(0)
    posterior = DurationPosterior(SMALL).eval()
    rows = random_rows(1, 30, 2)
    near_of(rows)[:, 1] = 0.0

    def moved(order: list[int], absent: float = 0.0) -> float:
        """By how much the chances change with neighbours in another order."""
        other = rows.copy()
        near_of(other)[:] = near_of(rows)[:, order]
        near_of(other)[:, order.index(1), 1:] = absent
        change = log_chances(posterior, other) - log_chances(posterior, rows)
        return float(change.abs().max())

    assert moved([0, 1, 2, 3], absent=0.7) < 1e-5
    assert moved([1, 0, 2, 3]) < 1e-5
    assert moved([2, 1, 0, 3]) > 1e-3  # sides differ


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
@given(st.floats(0.0, 2e5), st.floats(60.0, 1e5), st.floats(60.0, 1e5), st.integers(0, 2))
def test_copies_are_of_all_work_given_the_work_done(
    done_s: float, one_s: float, other_s: float, spread: int
) -> None:
    """By Bayes, of jobs that took about as long as one of two and have not ended by now."""
    rows = np.zeros((1, width(2)), np.float32)
    rows[0, 2], near = feature(done_s), near_of(rows)[0]
    near[0] = 1.0, feature(one_s), 1.0, 0.2
    near[2] = 1.0, feature(other_s), 1.0, 0.3
    near[3] = 1.0, 0.4, 0.0, 0.1  # has not finished: nothing to copy
    done_s = seconds(rows[0, 2])  # as its column has it
    edges = np.concatenate([[max(done_s, 1e-3)], done_s + upper_edges_s(), [np.inf]])
    took = [seconds(column) for column in (near[0, 1], near[2, 1])]
    ended = sum(logistic.sf(np.log(edges / one) / SPREADS[spread]) for one in took)
    if ended[0] < 1e-6:  # neither: nobody knows
        return
    expected = -np.diff(ended) / ended[0]
    found = log_chances(copying(spread), rows)[0].exp()
    assert_allclose(found, expected, atol=1e-3)  # in single precision
    assert_allclose(priority_of(copying(spread)).chances(rows)[0], expected, atol=2e-4)


@pytest.mark.slow
def test_fitting_learns_to_copy() -> None:
    """New jobs take as long as one of their neighbours did, the first; others took any time."""
    rng = np.random.default_rng(0)
    rows, work = like_their_neighbours(0, 3000, 2)
    near = near_of(rows)
    near[:, 1:, 1] = feature(np.exp(rng.uniform(4.0, 13.0, (len(rows), 3))))
    near[:, 1:, 3] = 0.5  # submitted at another time
    posterior, _ = fit(replace(SMALL, epochs=30), rows[:2000], work[:2000], seed=0)
    assert nll_loss(log_chances(posterior, rows[2000:]), true_bins(work[2000:])) < 0.5


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
    assert_allclose(found.numpy()[:, exact], rows[1][:, exact], atol=2e-6)
    assert_allclose(found.numpy()[:, means], rows[1][:, means], atol=2e-3)
    assert (rows[0][:, 6] > 0.0).any()
    assert not np.allclose(rows[0], rows[1], atol=0.1)


def _rows(trace: Trace, instants: list[float]) -> np.ndarray:
    """Of all arrived jobs; jobs start as they come, in order, while there is room."""
    simulator, found = ClusterSimulator(Cluster.uniform(1, 12), trace), []
    features, state = DurationFeatures(simulator, 2), simulator.state
    for instant in instants:
        while simulator.now < instant and simulator.advance(instant):
            for job in simulator.pending():
                if state.jobs[job]["gpus"] <= state.nodes[0]["free"]:
                    simulator.start(int(job), [(0, int(state.jobs[job]["gpus"]))])
        simulator.settle()
        found.append(features.rows(state, np.arange(int(state.clock[0]["arrived"]))))
    return np.concatenate(found)


@pytest.mark.slow
def test_fitting_learns_from_neighbours_what_the_marginal_cannot_tell() -> None:
    config = replace(SMALL, epochs=10, stretch=5.0)
    training, (rows, work) = (like_their_neighbours(seed, 2000 - 1000 * seed, 2) for seed in (0, 1))
    posterior, losses = fit(config, *training, seed=0)
    true = true_bins(work)
    counts = true_bins(training[1]).bincount(minlength=BINS) + 1.0
    marginal = nll_loss((counts / counts.sum()).log().expand(len(true), -1), true)
    assert nll_loss(log_chances(posterior, rows), true) < 0.4 * marginal
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert not posterior.training


@pytest.mark.slow
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
    for one, same in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(first.bins.weight, other.bins.weight)


def test_rows_of_another_history_are_refused() -> None:
    with refusal("field 'history'"):
        fit(SMALL, *like_their_neighbours(0, 10, 3), seed=0)


logits_of_bins = st.lists(st.floats(-8.0, 8.0), min_size=BINS, max_size=BINS)


def brute_force(probability: NDArray[np.float64], steps: int = 400) -> float:
    """The index by numerical integration of the survival function, bin by bin."""
    edges = np.append(0.0, np.geomspace(30.0, 5_184_000.0, 25))
    best, spent, done = 0.0, 0.0, 0.0
    for bin_, (low, high) in enumerate(itertools.pairwise(edges)):
        middles = (np.arange(steps) + 0.5) / steps  # survival falls evenly within the bin
        survival = 1.0 - done - probability[bin_] * middles
        spent += float(survival.mean()) * (high - low)
        done += float(probability[bin_])
        best = max(best, done / spent)
    return best


@examples(100)
@given(logits_of_bins)
def test_the_index_is_that_of_brute_force(drawn: list[float]) -> None:
    logits = torch.tensor(drawn, dtype=torch.float32)
    probability = torch.softmax(logits.double(), -1).numpy()
    expected = math.log(brute_force(probability))
    assert float(GittinsIndex()(logits)) == pytest.approx(expected, abs=1e-3)


def test_a_job_sure_to_end_within_a_bin_has_the_index_of_its_middle() -> None:
    """And a shorter job has a higher index, that of the last bin too."""
    index = GittinsIndex()(torch.eye(BINS) * 400.0 - 200.0).numpy()
    edges = np.append(0.0, upper_edges_s())
    assert_allclose(index[:-1], -np.log((edges[:-1] + edges[1:]) / 2), atol=1e-4, rtol=0)
    assert (np.diff(index) < 0).all()


def test_an_endless_job_has_a_finite_index_and_a_gradient() -> None:
    logits = torch.full((3, BINS), -300.0)
    logits[:, -1] = 300.0
    index = GittinsIndex()(logits.requires_grad_())
    (slope,) = torch.autograd.grad(index.sum(), logits)
    assert torch.isfinite(index).all()
    assert torch.isfinite(slope).all()


@examples(20)
@given(logits_of_bins, st.integers(0, BINS - 1))
def test_the_gradient_is_the_slope(drawn: list[float], bin_: int) -> None:
    index = GittinsIndex().double()
    logits = torch.tensor(drawn, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(index(logits), logits)
    step = torch.eye(BINS, dtype=torch.float64)[bin_] * 1e-6
    down, here, up = (float(index(logits.detach() + sign * step)) for sign in (-1, 0, 1))
    slopes = (up - here) / 1e-6, (here - down) / 1e-6
    if slopes[0] == pytest.approx(slopes[1], abs=1e-4):  # no other edge takes over here
        assert float(gradient[bin_]) == pytest.approx((up - down) / 2e-6, abs=1e-4)


def test_bins_hold_what_their_edges_say() -> None:
    edges = torch.from_numpy(upper_edges_s())
    assert len(edges) == BINS - 1
    assert float(edges[0]) == pytest.approx(30.0)
    assert float(edges[-1]) == pytest.approx(60 * 86_400)
    between = torch.tensor([0.0, 29.0, 31.0, 3600.0, 86_400.0, 5_183_000.0, 6e6, math.inf])
    for left, bin_ in zip(between.tolist(), bins_of(between).tolist(), strict=True):
        assert bin_ == 0 or edges[bin_ - 1] < left
        assert bin_ == BINS - 1 or left <= edges[bin_]
    assert bins_of(edges).tolist() == list(range(BINS - 1))


@pytest.fixture
def posterior() -> DurationPosterior:
    torch.manual_seed(0)
    return DurationPosterior(SMALL).eval()


@pytest.fixture
def folder(posterior: DurationPosterior, tmp_path: Path) -> Path:
    save_durations(posterior, tmp_path / "durations", {"seed": 7})
    return tmp_path / "durations"


def load_durations(folder: Path) -> DurationPosterior:
    config, weights = read_durations(folder)
    read = DurationPosterior(config)
    read.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return read.eval()


def test_what_is_read_predicts_the_same(posterior: DurationPosterior, folder: Path) -> None:
    again = load_durations(folder)
    assert again.config == SMALL
    rows = random_rows(0, 20, SMALL.history)
    assert torch.equal(log_chances(again, rows), log_chances(posterior, rows))


def test_the_spec_says_what_it_is(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {WEIGHTS_FILE, SPEC_FILE}
    spec = read_json(folder / SPEC_FILE)
    known = {"kind": "meshwright.durations", "schema_version": 1, "history": 2}
    known |= {"provenance": {"seed": 7}, "sha256": {WEIGHTS_FILE: sha256_of(folder / WEIGHTS_FILE)}}
    assert {key: spec[key] for key in known} == known
    assert len(spec["columns"]) == 9 + 2 * 2 * 4
    assert spec["columns"][9] == "before 1: arrived"
    assert spec["columns"][-1] == "after 2: time between the submissions"
    assert_allclose(spec["bins"], upper_edges_s())


def test_a_folder_is_replaced_whole_or_not_at_all(
    folder: Path,
) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    before = files()
    torch.manual_seed(1)
    other = DurationPosterior(SMALL)
    with pytest.raises(TypeError):
        save_durations(other, folder, {"not JSON": object()})
    assert files() == before
    assert [path.name for path in folder.parent.iterdir()] == ["durations"]
    save_durations(other, folder, {})
    assert torch.equal(load_durations(folder).bins.weight, other.bins.weight)


def rewrite(folder: Path, **changed: Any) -> None:
    """Other values in the spec."""
    (folder / SPEC_FILE).write_text(json.dumps({**read_json(folder / SPEC_FILE), **changed}))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"kind": "meshwright.policy"}, "kind"),
        ({"schema_version": 2}, "schema_version"),
        ({"sha256": {}}, "sha256"),
        ({"history": 3}, "history"),
        ({"columns": ["log2 of the GPUs / 4"]}, "columns"),
        ({"bins": [1.0, 2.0]}, "bins"),
        ({"config": None}, "config"),
        ({"config": {k: v for k, v in asdict(SMALL).items() if k != "heads"}}, "config"),
        ({"config": {**asdict(SMALL), "depth": 2}}, "config"),
        ({"config": {**asdict(SMALL), "heads": 0}}, "config.heads"),
        ({"config": {**asdict(SMALL), "heads": "two"}}, "config.heads"),
        ({"config": {**asdict(SMALL), "hidden": 9}}, None),
        ({"config": {**asdict(SMALL), "hidden": 8.5}}, "config.hidden"),
    ],
)
def test_a_spec_that_does_not_hold_is_refused(
    folder: Path, changed: dict[str, Any], field: str | None
) -> None:
    rewrite(folder, **changed)
    with refusal() as caught:
        load_durations(folder)
    assert (caught.value.file, caught.value.field) == (
        folder / (SPEC_FILE if field else WEIGHTS_FILE), field,
    )  # fmt: skip


def test_files_that_are_missing_or_damaged_are_refused(folder: Path) -> None:
    weights = folder / WEIGHTS_FILE
    tensors = {name: value.clone() for name, value in load_file(weights).items()}
    weights.write_bytes(b"damaged")
    with refusal("sha256 differs") as caught:
        load_durations(folder)
    assert caught.value.file == weights
    del tensors["bins.bias"]
    for write, message in (
        (lambda: None, "cannot be read"),
        (lambda: save_file(tensors, weights), r"bins\.bias"),
    ):
        write()
        rewrite(folder, sha256={WEIGHTS_FILE: sha256_of(weights)})
        with refusal(message):
            load_durations(folder)
    weights.unlink()
    with refusal("missing"):
        load_durations(folder)
    (folder / SPEC_FILE).write_text("[]")
    with refusal():
        load_durations(folder)
    with refusal("no such file"):
        load_durations(folder / "nowhere")
