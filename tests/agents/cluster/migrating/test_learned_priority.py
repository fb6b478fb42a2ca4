"""Orders by a learned posterior: from a folder, for every instant anew, copied whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from migrating_cases import OVERHEADS, OneSpeed, weights_of
from numpy.typing import NDArray

from agents.cluster.migrating.learned_priority import LearnedPriority, from_folder
from agents.cluster.migrating.policy import Migrating
from agents.cluster.replay import replay
from envs.cluster.environment.duration_features import DurationFeatures
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from models.durations.index import GittinsPriority
from models.durations.network import DurationConfig, DurationPosterior, save_durations

CONFIG = DurationConfig(
    history=2, hidden=4, readout=8, heads=1, dropout=0.0, stretch=1.0, epochs=1, batch=8,
    learning_rate=1e-3, weight_decay=0.0,
)  # fmt: skip

WEIGHTS = weights_of(runs=0.2, gpus=-0.7)


class Counting:
    """The index is minus the time since submission; counts the rows it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        self.asked += len(rows)
        return np.stack([-rows[:, 1], np.zeros(len(rows)), np.zeros(len(rows))], axis=1)


def trace_of(jobs: int = 60) -> Trace:
    rng = np.random.default_rng(0)
    return Trace.of(
        "jobs", np.sort(rng.integers(0, 9000, jobs)), rng.integers(60, 9000, jobs),
        rng.choice([1, 2, 4], jobs),
    )  # fmt: skip


def saved(folder: Path, seed: int) -> DurationPosterior:
    torch.manual_seed(seed)
    posterior = DurationPosterior(CONFIG).eval()
    save_durations(posterior, folder, {})
    return posterior


def test_keys_are_indices_per_gpu_worked_out_once_an_instant() -> None:
    simulator = ClusterSimulator(
        Cluster.uniform(1, 8), Trace.of("j", [0] * 3, [900] * 3, [4, 2, 4])
    )
    index = Counting()
    order = LearnedPriority(index, 2, weights_of(runs=0.2, gpus=-0.7))
    order.reset(simulator)
    simulator.advance()
    simulator.start(0, [(0, 4)])
    simulator.advance(600.0)
    simulator.settle()
    jobs = np.array([0, 1])
    keys = order(simulator.state, jobs)
    time = np.log1p(600.0 / 60.0) / 4.0
    np.testing.assert_allclose(
        keys, [0.7 * np.log(4.0) + time - 0.2, 0.7 * np.log(2.0) + time], rtol=1e-6
    )
    again = order(simulator.state, np.array([2, 1, 0]))
    np.testing.assert_array_equal(again[[2, 1]], keys)
    assert index.asked == 3
    simulator.preempt(0)
    np.testing.assert_array_equal(order(simulator.state, jobs), keys)  # as if it ran
    simulator.advance(700.0)
    later = order(simulator.state, jobs)
    assert index.asked == 5
    since = np.log1p(700.0 / 60.0) / 4.0
    np.testing.assert_allclose(later[0], 0.7 * np.log(4.0) + since, rtol=1e-6)


def test_a_copy_knows_what_the_original_knew_and_no_more() -> None:
    simulator = ClusterSimulator(
        Cluster.uniform(1, 8), Trace.of("j", [0] * 3, [60, 900, 900], [2] * 3)
    )
    order = LearnedPriority(Counting(), 2, weights_of(gpus=-1.0))
    order.reset(simulator)
    simulator.advance()
    for job in range(3):
        simulator.start(job, [(0, 2)])
    before = order(simulator.state, np.array([1]))
    twin, ahead = order.copy(), simulator.copy()
    ahead.advance(60.0)
    ahead.settle()
    later = twin(ahead.state, np.array([1, 2]))
    assert twin._features._finished[0] == 1
    assert order._features._finished[0] == 0
    np.testing.assert_array_equal(order(simulator.state, np.array([1])), before)
    assert not np.array_equal(later[:1], before)


def test_the_order_from_a_folder_is_that_of_its_posterior(tmp_path: Path) -> None:
    posterior = saved(tmp_path / "durations", 0)
    one, other = (from_folder(str(tmp_path / "durations"), WEIGHTS) for _ in range(2))
    assert one is not other
    assert one.told is other.told  # read once
    simulator = ClusterSimulator(Cluster.uniform(2, 8), trace_of())
    one.reset(simulator)
    simulator.advance()
    simulator.advance()
    jobs = simulator.pending()
    rows = DurationFeatures(simulator, CONFIG.history).rows(simulator.state, jobs)
    told = GittinsPriority.of(posterior)(rows)
    expected = 0.7 * np.log(simulator.state.jobs["gpus"][jobs]) - told[:, 0]
    np.testing.assert_allclose(one(simulator.state, jobs), expected, rtol=1e-6)


def test_a_folder_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    folder = tmp_path / "durations"
    saved(folder, 0)
    first = from_folder(str(folder), WEIGHTS)
    saved(folder, 1)
    assert from_folder(str(folder), WEIGHTS).told is not first.told


def test_a_policy_with_it_finishes_every_job_and_repeats_itself(tmp_path: Path) -> None:
    saved(tmp_path, 0)
    cluster = Cluster.uniform(4, 4, gpu_types=("A", "B"))
    policy = Migrating(from_folder(str(tmp_path), WEIGHTS), 1.33, 600.0, 600.0)
    assert policy.knows == "predictions"
    settings: dict[str, Any] = {"rates": OneSpeed(1.0, 0.5), "overheads": OVERHEADS}
    first, again = (replay(policy, cluster, trace_of(), **settings) for _ in range(2))
    assert first.finished.all()
    np.testing.assert_array_equal(first.finish, again.finish)


def test_what_is_no_posterior_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        from_folder(str(tmp_path / "nowhere"), WEIGHTS)
    assert str(caught.value.file).endswith("spec.json")
    saved(tmp_path, 0)
    with pytest.raises(InputError) as caught:
        from_folder(str(tmp_path), weights_of(gpus=float("nan")))
    assert caught.value.field == "weights.gpus"
