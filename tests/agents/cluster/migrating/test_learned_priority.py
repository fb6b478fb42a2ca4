"""Orders by a learned posterior: from a folder, for every instant anew, copied whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from migrating_cases import OVERHEADS, OneSpeed, weights_of
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from agents.cluster.migrating.learned_priority import (
    COLUMNS,
    NAMES,
    SIBLINGS,
    LearnedPriority,
    PriorityFeatures,
    from_folder,
)
from agents.cluster.migrating.policy import Migrating
from agents.cluster.replay import replay
from envs.cluster.environment.duration_features import DurationFeatures
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, RUNNING, Overheads
from envs.cluster.workload.trace import Trace
from models.durations.network import DurationConfig, DurationPosterior, save_durations
from tests.models.durations.duration_rows import priority_of
from tests.refusal import refusal
from tests.strength import SEEDS, examples

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
    assert_allclose(keys, [0.7 * np.log(4.0) + time - 0.2, 0.7 * np.log(2.0) + time], rtol=1e-6)
    again = order(simulator.state, np.array([2, 1, 0]))
    assert_array_equal(again[[2, 1]], keys)
    assert index.asked == 3
    simulator.preempt(0)
    assert_array_equal(order(simulator.state, jobs), keys)  # as if it ran
    simulator.advance(700.0)
    later = order(simulator.state, jobs)
    assert index.asked == 5
    since = np.log1p(700.0 / 60.0) / 4.0
    assert_allclose(later[0], 0.7 * np.log(4.0) + since, rtol=1e-6)


def test_the_order_from_a_folder_is_that_of_its_posterior(tmp_path: Path) -> None:
    posterior = saved(tmp_path / "durations", 0)
    one, other = (from_folder(str(tmp_path / "durations"), WEIGHTS) for _ in range(2))
    assert one is not other
    assert one.posterior is other.posterior  # read once
    simulator = ClusterSimulator(Cluster.uniform(2, 8), trace_of())
    one.reset(simulator)
    simulator.advance()
    simulator.advance()
    jobs = simulator.pending()
    rows = DurationFeatures(simulator, CONFIG.history).rows(simulator.state, jobs)
    beliefs = priority_of(posterior)(rows)
    expected = 0.7 * np.log(simulator.state.jobs["gpus"][jobs]) - beliefs[:, 0]
    assert_allclose(one(simulator.state, jobs), expected, rtol=1e-6)


def test_a_folder_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    folder = tmp_path / "durations"
    saved(folder, 0)
    first = from_folder(str(folder), WEIGHTS)
    saved(folder, 1)
    assert from_folder(str(folder), WEIGHTS).posterior is not first.posterior


def test_a_policy_with_it_finishes_every_job_and_repeats_itself(tmp_path: Path) -> None:
    saved(tmp_path, 0)
    cluster = Cluster.uniform(4, 4, gpu_types=("A", "B"))
    policy = Migrating(from_folder(str(tmp_path), WEIGHTS), 1.33, 600.0, 600.0)
    assert policy.knows == "predictions"
    settings: dict[str, Any] = {"rates": OneSpeed(1.0, 0.5), "overheads": OVERHEADS}
    first, again = (replay(policy, cluster, trace_of(), **settings) for _ in range(2))
    assert first.finished.all()
    assert_array_equal(first.finish, again.finish)


def test_what_is_no_posterior_is_refused(tmp_path: Path) -> None:
    with refusal(r"no checkpoint in .*nowhere"):
        from_folder(str(tmp_path / "nowhere"), WEIGHTS)
    saved(tmp_path, 0)
    with refusal() as caught:
        from_folder(str(tmp_path), weights_of(gpus=float("nan")))
    assert caught.value.field == "weights.gpus"


def time(seconds: float) -> float:
    return math.log(1.0 + seconds / 60.0) / 4.0


def worked_out(simulator: ClusterSimulator, job: int, expected: NDArray[np.float64]) -> list[float]:
    """The columns of a job, by name, from the trace and the state."""
    state, trace, now = simulator.state, simulator.trace, simulator.now
    records = state.jobs
    did = trace.duration_s - records["remaining"]
    alike = [j for j in range(len(trace)) if trace.num_gpus[j] == trace.num_gpus[job]]
    place = alike.index(job)
    gpus = math.log(trace.num_gpus[job])
    row = dict.fromkeys(COLUMNS, 0.0)
    row |= {"gpus": gpus, "fresh": float(did[job] == 0.0), "attained": time(did[job]) - 1.0}
    row |= {"gpus_attained": gpus * (did[job] > 0.0), "age": time(now - trace.submit_s[job]) - 1.5}
    row |= {"expected": (expected[0] - 10.0) / 3.0, "spread": expected[1] / 2.0 - 1.0}
    patience = 5.0 * (did[job] + math.exp(expected[0]))
    row["overdue"] = math.log(max((now - trace.submit_s[job]) / patience, 1.0))
    seen, ended = 0, []
    for rank, other in enumerate(alike):
        away = abs(rank - place)
        status = records["status"][other]
        if not 1 <= away <= SIBLINGS or status == FUTURE:
            continue
        seen += 1
        near = math.exp(-away / 4.0)
        hours = abs(trace.submit_s[other] - trace.submit_s[job]) / 3600.0
        together = math.exp(-hours)
        if status == FINISHED:
            ended.append(time(trace.duration_s[other]))
            row["finished"] += near / 4.0
        elif did[other] > did[job]:
            row["ahead_running" if status == RUNNING else "ahead_waiting"] += near
            row["ahead_together"] += together / 2.0
        else:
            row["behind"] += near / 3.0
            row["behind_together"] += together / 4.0
            row["behind_running"] += near * (status == RUNNING)
            if did[job] == 0.0 and other < job:
                row["before"] += near / 2.0
                row["before_together"] += together / 4.0
    row["unseen"] = 1.0 - seen / (2 * SIBLINGS)
    if ended:
        usual = np.mean([time(t) for t in trace.duration_s[records["status"] == FINISHED]])
        row["finished_long"] = float(np.mean(ended) - usual)
    return list(row.values())


@given(SEEDS, st.sampled_from([300.0, 20_000.0]))
@examples(25)
def test_columns_are_what_they_are_called(seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    jobs = 40
    submit = np.sort(rng.integers(0, int(apart * jobs / 4), jobs))
    trace = Trace.of("drawn", submit, rng.integers(60, 9000, jobs), rng.choice([1, 2], jobs))
    simulator = ClusterSimulator(Cluster.uniform(3, 4), trace, overheads=Overheads(30.0, 0.0))
    features, whole = PriorityFeatures(simulator), None
    while simulator.advance():
        simulator.settle()
        for job in list(simulator.running()):
            if rng.random() < 0.2:
                simulator.preempt(int(job))
        free = simulator.state.nodes["free"].copy()
        for job in rng.permutation(simulator.pending()):
            nodes = np.flatnonzero(free >= trace.num_gpus[job])
            if len(nodes) and rng.random() < 0.8:
                node = int(rng.choice(nodes))
                simulator.start(int(job), [(node, int(trace.num_gpus[job]))])
                free[node] -= trace.num_gpus[job]
        simulator.settle()
        there = np.concatenate([simulator.pending(), simulator.running()]).astype(np.int64)
        if len(there) == 0 or rng.random() < 0.5:
            continue
        expected = rng.normal(size=(len(there), 2))
        found = features.rows(simulator.state, there, expected)
        wanted = [worked_out(simulator, int(j), e) for j, e in zip(there, expected, strict=True)]
        assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
        whole = features
    assert whole is not None
    assert len(NAMES) == len(COLUMNS) + 1
