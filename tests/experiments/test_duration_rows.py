"""Random parts on random clusters, and what is written down of their jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from small_split import write_jobs

from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import AttainedServiceClasses
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.workload.readers.canonical import CanonicalReader
from experiments.cluster.split_windows import (
    Split,
    SplitConfig,
    SplitTrace,
    reference_load,
    sampled_window,
    sources,
)
from experiments.learning.train_durations import Recording, SamplingConfig, replayed_rows
from experiments.run.provenance import file_hash
from tests.refusal import refusal

SAMPLING = SamplingConfig(
    windows=2, evaluation_windows=2, jobs=[8, 20], least_jobs=5, nodes_per_type=[2, 3],
    load=[0.7, 1.3], instants=9.0, jobs_at_once=3,
)  # fmt: skip


@pytest.fixture
def split(tmp_path: Path) -> Split:
    reader = f"{CanonicalReader.__module__}.{CanonicalReader.__name__}"
    path = write_jobs(tmp_path)
    config = SplitConfig(
        name="small",
        data=str(tmp_path),
        inputs={path.name: file_hash(path)},
        shares={"train": 0.5, "test": 0.5},
        window_jobs=8,
        least_jobs=4,
        gpus_per_node=4,
        nodes_per_rack=2,
        gpu_types=["V100", "P100"],
        interference={"_target_": "envs.cluster.interference.rates.NoInterference"},
        overheads={
            "_target_": f"{Overheads.__module__}.{Overheads.__name__}",
            "restart_s": 30.0,
            "checkpoint_s": 0.0,
        },
        formats={"canonical": {"_target_": reader}},
        traces={
            "a": SplitTrace(
                path=path.name, format="canonical", queue=None, max_gpus=16, nodes=8, load=1.0
            )
        },
    )
    return Split(config)


def policy() -> Migrating:
    return Migrating(AttainedServiceClasses(600.0), 1.33, 600.0, 600.0)


def test_parts_are_consecutive_jobs_at_loads_and_on_clusters_asked_for(split: Split) -> None:
    found = sources([split], "train", SAMPLING)
    training = set(split.traces["a"].windows["train"].trace.job_id)
    rng = default_rng(0)
    nodes = set()
    for _ in range(30):
        name, problem = sampled_window(found, SAMPLING, rng)
        cluster, jobs = problem.cluster, problem.trace
        assert name == "a"
        assert 8 <= len(jobs) <= 20
        assert set(jobs.job_id) <= training
        largest = int(np.bincount(cluster.gpu_type, cluster.gpus).min())
        assert jobs.num_gpus.max() <= largest
        assert cluster.gpu_types == ("V100", "P100")
        assert 0.66 < reference_load(jobs, cluster, problem.rates) < 1.37  # whole seconds
        assert problem.overheads.restart_s == 30.0
        nodes.add(cluster.num_nodes)
    assert nodes == {4, 6}


def test_writing_down_changes_no_schedule(split: Split) -> None:
    _, problem = sampled_window(sources([split], "train", SAMPLING), SAMPLING, default_rng(1))
    recording = Recording(policy(), 0.7, 3, 2, default_rng(2))
    assert_array_equal(problem.replay(recording).finish, problem.replay(policy()).finish)
    counts = [len(jobs) for jobs in recording.jobs[1:]]
    assert max(counts) == 3
    assert len(counts) > 3


def test_rows_go_with_the_work_left(split: Split) -> None:
    found = sources([split], "train", SAMPLING)
    rows = replayed_rows(found, SAMPLING, policy(), 2, [(0, 0, 0), (0, 0, 1)])
    again = replayed_rows(found, SAMPLING, policy(), 2, [(0, 0, 1)])
    assert rows.names == ("a", "a")
    second = rows.part == 1
    assert second.any()
    assert not second.all()
    assert_array_equal(rows.features[second], again.features)
    assert_array_equal(rows.remaining_s[second], again.remaining_s)
    assert (rows.remaining_s > 0.0).all()
    assert (rows.done_s >= 0.0).all()
    durations = split.traces["a"].windows["train"].trace.duration_s
    assert set(np.rint(rows.remaining_s + rows.done_s).astype(int)) <= set(durations.tolist())
    assert_allclose(rows.features[:, 0], np.log2(rows.gpus) / 4.0, rtol=1e-6)
    assert_allclose(rows.features[:, 2], np.log1p(rows.done_s / 60.0) / 4.0, atol=1e-5)


def test_windows_without_enough_jobs_are_told(split: Split) -> None:
    with refusal("least_jobs"):
        sources([split], "train", replace(SAMPLING, least_jobs=41))
    with refusal("is not one of train, test"):
        sources([split], "tomorrow", SAMPLING)
    few = SamplingConfig(**{**vars(SAMPLING), "jobs": [2, 3]})
    with refusal("least_jobs"):
        sampled_window(sources([split], "train", SAMPLING), few, default_rng(0))
