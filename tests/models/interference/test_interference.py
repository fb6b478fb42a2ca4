"""The network of slow-downs, its folds, its fit and its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up_pairs import pairs, small_fit

from envs.cluster.interference.kernel import multisets
from envs.cluster.interference.rates import NoInterference
from envs.cluster.interference.tabulated import number_of
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from envs.files import read_json
from models.interference.crossval import (
    Calibration,
    asked_of,
    cross_validate,
    evaluate,
    scores_of,
)
from models.interference.fit import Fitted, InterferenceNetwork, Task, fit
from models.interference.measurements import (
    MeasuredJob,
    Measurements,
    choose_probes,
    deepshare_measurements,
    fold,
    fold_without,
    gavel_measurements,
)
from models.interference.rates import (
    SPEC_FILE,
    WEIGHTS_FILE,
    InterferencePredictor,
    LearnedInterference,
    PredictedPairs,
    find_predictor,
    load_predictor,
    predictor_of,
    save_predictor,
)
from tests.refusal import refusal
from tests.strength import examples

FEW = examples(25)


def network(seed: int, jobs: int = 6) -> tuple[InterferenceNetwork, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = InterferenceNetwork(3, 4, 8, generator)
    for parameter in made.parameters():  # biases and linear parts too
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return made, torch.randn(3, jobs, 4, generator=generator)


def quiet(stage: str, ensembles: int) -> None:
    assert ensembles > 0
    assert stage


@FEW
@given(st.integers(0, 999), st.lists(st.integers(0, 5), max_size=4), st.integers(0, 5), st.data())
def test_slow_downs_add_up_in_any_order_and_alone_is_one(
    seed: int, beside: list[int], further: int, data: st.DataObject
) -> None:
    made, profiles = network(seed)
    order = data.draw(st.permutations([*beside, further, *[-1] * (4 - len(beside))]))
    sets = [[], beside, [further], [*beside, further], order]
    padded = torch.tensor([[*others, *[-1] * (5 - len(others))] for others in sets])
    nobody, before, one, both, again = made(profiles, torch.full((5,), 3), padded).unbind(1)
    assert (nobody == 1.0).all()
    assert (both < before).all()
    assert (both > 0.0).all()
    assert torch.allclose(both, again, rtol=1e-5)
    assert torch.allclose(1 / both - 1, (1 / before - 1) + (1 / one - 1), rtol=1e-4)


def test_all_pairs_are_the_sets_of_one() -> None:
    made, profiles = network(1)
    rate, scale = made.all_pairs(profiles[:, None])
    own, other = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    single = made(profiles, own.flatten(), other.flatten()[:, None])
    assert torch.allclose(rate.reshape(3, -1), single, rtol=1e-5)
    assert (scale > 0.0).all()


def test_networks_at_once_do_not_meet() -> None:
    made, profiles = network(2)
    before, _ = made.all_pairs(profiles[:, None])
    with torch.no_grad():
        for parameter in made.parameters():
            parameter[1] += 1.0
    after, _ = made.all_pairs(profiles[:, None])
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])


@FEW
@given(st.integers(0, 99), st.integers(0, 4), st.integers(0, 5))
def test_a_fold_parts_the_measurements(seed: int, model: int, probes: int) -> None:
    measured = pairs(seed=seed)
    unseen = measured.jobs_of(f"model{model}")
    made = fold_without(measured, unseen, probes)
    assert len(set(made.probes)) == probes
    assert not unseen[list(made.probes)].any()
    assert (made.known ^ made.asked == measured.measured).all()
    for _, own, other in np.argwhere(made.asked):
        assert unseen[own] or unseen[other]
        assert own not in made.probes
        assert other not in made.probes
    assert made.inputs.shape == (2, 15, 2 + 2 * probes)
    seen = made.inputs[:, ~unseen].reshape(-1, made.inputs.shape[-1])
    assert np.abs(seen.mean(axis=0)).max() < 0.2  # but for what is cut


def changed(measured: Measurements, where: np.ndarray) -> Measurements:
    """The same with other rates at `where`."""
    return replace(measured, rate=np.where(where, 1.0 - 0.9 * measured.rate, measured.rate))


@pytest.mark.slow
def test_what_is_asked_for_is_never_looked_at() -> None:
    """Probes, inputs, fit, choice of the jitter and calibration of a fold without a model."""
    measured, config = pairs(models=4, each=2, tables=1), small_fit()
    levels = (0.5, 0.8)
    first = cross_validate(measured, config, 2, levels, 0, quiet)
    other = changed(measured, first.folds["model1"].task.fold.asked)
    again = cross_validate(other, config, 2, levels, 0, quiet)
    a, b = (one.folds["model1"] for one in (first, again))
    assert (a.task.fold.unseen == measured.jobs_of("model1")).all()
    assert a.task.fold.probes == b.task.fold.probes
    assert a.task.jitter == b.task.jitter
    assert (a.task.fold.inputs == b.task.fold.inputs).all()
    assert (a.rate == b.rate).all()
    factors = [one.calibrations["model1"].factor for one in (first, again)]
    assert (factors[0] == factors[1]).all()
    whole = Calibration.of(scores_of(measured, list(first.folds.values())), levels)
    assert whole.document()["levels"] == list(levels)
    assert whole.factor.shape == (1, 2)
    # The same change is seen where it may be.
    assert (first.folds["model0"].rate != again.folds["model0"].rate).any()


def test_the_fingerprint_is_looked_at() -> None:
    measured = pairs()
    unseen = measured.jobs_of("model1")
    made = fold_without(measured, unseen, 3)
    other = changed(measured, made.known & (unseen[:, None] | unseen))
    (a,), (b,) = (
        fit(m, [Task(fold(m, unseen, made.probes), 0.1, 1)], small_fit(), 0)
        for m in (measured, other)
    )
    assert (a.rate[:, made.asked] != b.rate[:, made.asked]).all()


def test_probes_are_jobs_that_tell_much() -> None:
    """Where all jobs but two are alike, those two leave nothing open."""
    measured = pairs(models=4, each=2, tables=1)
    turn = np.ones(8)
    turn[[2, 5]] = 4.0, 0.2
    rate = (turn[:, None] / (turn[:, None] + turn))[None]
    measured = replace(measured, rate=rate)
    assert choose_probes(measured, np.ones(8, bool), 0) == ()
    assert len(choose_probes(measured, np.ones(8, bool), 99)) == 8
    hidden = np.arange(8) == 2
    assert 2 not in choose_probes(measured, ~hidden, 7)


@pytest.mark.slow
def test_the_network_learns_unseen_models_from_their_fingerprints() -> None:
    measured = pairs(tables=1)
    config = small_fit(250, hidden=16)

    def error(probes: int) -> float:
        of = measured.models
        folds = {name: fold_without(measured, measured.jobs_of(name), probes) for name in of}
        found = evaluate(measured, folds, dict.fromkeys(of, 0.1), config, 1, 0).values()
        off = [np.abs(f.mean - measured.rate) for f in found]
        return float(np.concatenate(asked_of(list(found), off)).mean())

    asked = measured.rate[measured.measured]
    constant = float(np.abs(asked - np.median(asked)).mean())
    by_fingerprint, by_profile = error(3), error(0)
    assert by_fingerprint < 0.035 < by_profile < 0.7 * constant


def test_one_seed_one_fit() -> None:
    measured = pairs()
    tasks = [Task(fold_without(measured, measured.jobs_of(m), 2), 0.2, 3) for m in measured.models]
    one, same, other = (fit(measured, tasks, small_fit(), seed) for seed in (0, 0, 1))
    assert [len(f.rate) for f in one] == [3] * 5
    for a, b, c in zip(one, same, other, strict=True):
        assert (a.rate == b.rate).all()
        assert (a.rate != c.rate).any()
        assert (a.spread >= np.sqrt((a.scale**2).mean(axis=0))).all()


def test_intervals_hold_what_they_should() -> None:
    rng = np.random.default_rng(0)
    rate = np.full((1, 1, 60, 60), 0.5)
    measured = pairs()
    task = Task(fold_without(measured, measured.jobs_of("model0"), 0), 0.1, 1)
    fitted = Fitted(task, rate, np.full(rate.shape, 0.02), {})
    calibration = Calibration.of([np.abs(rng.normal(0, 3, 400))], (0.8, 0.95))
    assert calibration.factor[0] == pytest.approx([3 * 1.2816, 3 * 1.96], rel=0.15)
    truth = np.clip(0.5 + 0.02 * rng.normal(0, 3, (60, 60)), 0, 1)
    for level, share in enumerate((0.8, 0.95)):
        low, high = calibration.interval(fitted, level)
        assert ((low[0] <= truth) & (truth <= high[0])).mean() == pytest.approx(share, abs=0.03)
        assert ((low >= 0.0) & (high <= 1.0)).all()


def test_the_quantile_is_that_of_split_conformal_prediction() -> None:
    scores = np.arange(1.0, 10.0)  # 9 scores: the k-th has level k / 10
    assert Calibration.of([scores], (0.5, 0.9)).factor.tolist() == [[5.0, 9.0]]
    assert Calibration.of([scores, scores[:1]], (0.95,)).factor.tolist() == [[np.inf], [np.inf]]


def test_too_few_models_or_jobs_are_told() -> None:
    with refusal("2 models, fewer than 3"):
        cross_validate(pairs(models=2), small_fit(), 1, (0.8,), 0, quiet)
    with refusal("4 probes of 3 jobs"):
        cross_validate(pairs(models=3), small_fit(), 4, (0.8,), 0, quiet)


Saved = tuple[Path, InterferencePredictor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    measured = pairs()
    known = fold_without(measured, np.zeros(len(measured.jobs), bool), 2)
    (fitted,) = fit(measured, [Task(known, 0.1, 3)], small_fit(), 0)
    made, run = predictor_of(measured, fitted), tmp_path_factory.mktemp("run")
    save_predictor(made, run / "predictors" / "made up", {"probes": ["a"]}, {"seed": 0})
    return run, made


def test_a_predictor_comes_back_as_it_was(saved: Saved) -> None:
    run, made = saved
    folder = run / "predictors" / "made up"
    for path in (run, folder.parent, folder):
        assert find_predictor(path, "made up") == folder
    loaded = load_predictor(folder)
    assert (loaded.jobs, loaded.tables, loaded.scope) == (made.jobs, made.tables, made.scope)
    rng = np.random.default_rng(0)
    own, beside = rng.integers(0, 15, 9000), rng.integers(-1, 15, (9000, 3))
    for table in range(2):
        assert (loaded.rates(table, own, beside) == made.rates(table, own, beside)).all()
    assert sorted(p.name for p in folder.iterdir()) == [SPEC_FILE, WEIGHTS_FILE]
    assert read_json(folder / SPEC_FILE)["probes"] == ["a"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kind", "meshwright.scheduler", "kind"),
        ("schema_version", 2, "schema_version"),
        ("sha256", {}, "sha256"),
        ("sha256", {WEIGHTS_FILE: "0"}, "changed or damaged"),
        ("jobs", [], "does not fit"),
        ("scope", 9, "scope 9"),
        ("tables", None, "does not fit"),
    ],
)
def test_a_damaged_folder_is_told(
    saved: Saved, tmp_path: Path, key: str, value: object, message: str
) -> None:
    folder = find_predictor(saved[0], "made up")
    (tmp_path / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes())
    spec = read_json(folder / SPEC_FILE)
    (tmp_path / SPEC_FILE).write_text(json.dumps({**spec, key: value}))
    with refusal(message):
        load_predictor(tmp_path)


def test_a_folder_without_predictor_is_told(tmp_path: Path) -> None:
    with refusal("no predictor of source 'gavel'"):
        find_predictor(tmp_path, "gavel")


def test_known_jobs_stand_in_by_size_and_fewest_nodes(saved: Saved) -> None:
    sizes = [(2, 2), (4, 4), (4, 2), (8, 8)]
    jobs = tuple(MeasuredJob(m, m, g, n) for m in ("a", "b") for g, n in sizes)
    known = replace(saved[1], jobs=jobs)
    trace = Trace.of("t", [0] * 9, [1] * 9, [1, 2, 3, 4, 7, 8, 99, 1, 4])
    rows = known.assign(trace, 0)
    assert (rows % 4).tolist() == [0, 0, 0, 2, 2, 3, 3, 0, 2]
    assert (known.assign(trace, 0) == rows).all()
    assert set(known.assign(Trace.of("t", [0] * 50, [1] * 50, [2] * 50), 1)) == {0, 4}


def test_the_simulator_runs_jobs_at_the_predicted_rates(saved: Saved) -> None:
    run, made = saved
    model = LearnedInterference(str(run), "made up", "table1", 2, alone=NoInterference(), seed=3)
    every = list(multisets(15, 2))[1:]
    padded = np.array([[-1] * (2 - len(members)) + list(members) for members in every])
    columns = [number_of(members, 2) for members in every]
    expected = made.rates(1, np.full(len(every), 6), padded)
    assert model.sets[6, columns] == pytest.approx(expected, rel=1e-6)
    trace = Trace.of("t", [0, 0, 0], [9, 9, 9], [1, 1, 1])
    trace = replace(trace, gpu_milli=np.full(3, 300, np.int32))
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace, rates=model)
    simulator.advance()
    rows, rate = made.assign(trace, 3), simulator.state.jobs["rate"]
    simulator.start(0, [(0, 1)])
    assert rate[0] == 1.0
    for job in (1, 2):
        simulator.start(job, [(0, 1)], 0)
    beside = np.array([np.sort(np.delete(rows, job)) for job in range(3)])
    assert rate == pytest.approx(made.rates(1, rows, beside), rel=1e-6)


def test_predicted_pairs_are_those_of_labels(saved: Saved) -> None:
    run, made = saved
    pairs = PredictedPairs(str(run), "made up", "table1")
    expected = made.rates(1, np.array([4, 4, 2, 2]), np.array([[4], [2], [4], [2]]))
    found = pairs(["job4", "job2"])
    np.testing.assert_array_equal(found, np.minimum(expected, 1.0).reshape(2, 2))
    with refusal(r"predicted.*knows no 'nobody'"):
        pairs(["job4", "nobody"])
    with refusal(r"table.*'k80' is not one of table0, table1"):
        LearnedInterference(str(run), "made up", "k80", 2, alone=NoInterference(), seed=3)


def test_gavels_measurements(data: Path) -> None:
    path = data / "interference" / "gavel" / "simulation_throughputs.json.gz"
    found = gavel_measurements(path)
    assert found.tables == ("k80", "p100", "v100")
    assert found.profiles.shape == (3, 26, len(found.features))
    assert np.isfinite(found.profiles).all()
    assert found.measured.sum(axis=(1, 2)).tolist() == [589, 656, 636]
    assert found.models == (
        "ResNet-18", "ResNet-50", "Transformer", "A3C", "LM", "Recommendation", "CycleGAN"
    )  # fmt: skip
    assert found.jobs_of("LM").sum() == 5
    first, second = found.jobs[0].label, found.jobs[14].label
    assert (first, second) == ("ResNet-18 (batch size 16)", "A3C")
    assert found.rate[2, 14, 0] == pytest.approx(0.78, abs=0.005)
    assert np.nanmax(found.rate) <= 1.0


def test_deepshares_measurements(data: Path) -> None:
    found = deepshare_measurements(data / "interference" / "deepshare")
    assert found.profiles.shape == (1, 36, len(found.features))
    assert found.measured.all()
    assert len(found.models) == 6
    row = found.jobs.index(MeasuredJob("DLRM", "DLRM", 8, 8))
    assert found.rate[0, row, 0] == pytest.approx(0.123, abs=0.0005)
    assert found.profiles[0, 0, :3].tolist() == pytest.approx(np.log([2, 2, 1]).tolist())
