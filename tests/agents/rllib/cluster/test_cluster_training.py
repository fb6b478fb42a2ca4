"""Whole runs: they learn, go on after a kill as if nothing had happened, and keep the best."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from schedulers import MODEL, environment, schedulers, training

from agents.cluster.teachers import FirstFit
from agents.rllib.config import Cloning
from agents.rllib.runner import specs
from agents.rllib.training import Exam, Trained, train
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import Curriculum, MixedClusters, RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace

CLOCKS = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}
CLONING = Cloning(iterations=2, learning_rate=3e-3, num_epochs=1, first_share=0.0, last_share=0.5)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key not in CLOCKS} for row in rows]


def trained(folder: Path, *, resume: bool = False, **changes: Any) -> Trained:
    env = changes.pop("env", environment)
    chosen = training(**changes)
    return train(chosen, schedulers(env, parameters=chosen.parameters), folder, resume=resume)


def one_server() -> ClusterParallelEnv:
    """Six jobs at once on one GPU: the order is all there is to decide."""
    generator = RandomJobs(
        Cluster.uniform(1, 1), jobs=(6, 6), load=(90.0, 90.0), max_gpus=1, duration_s=(60, 36_000)
    )
    sizes = partial(ClusterObservation, window=6, running=1, shares=1)
    return ClusterParallelEnv(generator, schedulers=1, observation=sizes)


@pytest.mark.proof
def test_ppo_learns_that_the_shortest_job_goes_first(tmp_path: Path) -> None:
    ppo = {"num_envs": 16, "steps": 24, "minibatch_size": 128, "num_epochs": 4,
           "learning_rate": 1e-2, "auxiliary_coefficient": 0.0}  # fmt: skip
    result = trained(
        tmp_path, ppo=ppo, env=one_server, max_steps=384 * 16, exam_every=16, exam_episodes=16
    )
    shortest = Exam(schedulers(one_server), 16).of_policies(None, adviser=Shortest())
    optimum = np.mean([one.outcome for one in shortest] / np.array(result.reference))
    assert result.exams[0][1] > optimum + 0.2
    assert result.best_score < optimum + 0.05


class Shortest:
    """The waiting job with the least work goes first, which is optimal on one server."""

    def begin(self, episode: SchedulingEpisode) -> Shortest:
        return self

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        waiting = episode.book.window[scheduler]
        running = episode.simulator.state.clock[0]["running"]
        work = np.where(waiting >= 0, episode.simulator.state.jobs["work"][waiting], np.inf)
        if running or not np.isfinite(work).any():
            return episode.action_table.size - 1
        return int(np.argmin(work)) * episode.action_table.groups


def test_a_run_that_is_taken_up_again_is_as_one_without_a_break(tmp_path: Path) -> None:
    """Through cloning, exams and running episodes, bit by bit."""
    env = partial(environment, jobs=12)  # episodes longer than a fragment
    common: dict[str, Any] = {"env": env, "cloning": CLONING, "ppo": {"alike": 2}, "exam_every": 3}
    trained(tmp_path / "parts", max_steps=64 * 3, **common)
    resumed = trained(tmp_path / "parts", resume=True, max_steps=64 * 7, **common)
    whole = trained(tmp_path / "whole", max_steps=64 * 7, **common)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    assert len(rows_of(tmp_path / "whole")) == 7
    # the end of the first part was examined, too
    assert set(whole.exams) <= set(resumed.exams)
    for part in ("checkpoints/iteration_000007", "best"):
        first, second = (
            load_file(tmp_path / name / part / "weights.safetensors") for name in ("parts", "whole")
        )
        for name, value in first.items():
            torch.testing.assert_close(second[name], value, atol=0, rtol=0)


def test_exams_are_the_same_whoever_plays_beside() -> None:
    found = [Exam(schedulers(), count).of_policies(None, adviser=FirstFit()) for count in (2, 5)]
    assert found[0] == found[1][:2]
    module = specs(schedulers(), MODEL)["scheduler"].build()
    exams = [Exam(schedulers(), count).of_policies({"scheduler": module}) for count in (1, 3)]
    assert exams[0] == exams[1][:1]
    assert all(np.isfinite(one.outcome) for one in exams[1])


@pytest.mark.proof
def test_a_window_is_given_up_once_it_is_surely_worse_than_allowed() -> None:
    exam = Exam(schedulers(partial(environment, jobs=40)), 2)
    modules = {"scheduler": specs(schedulers(), MODEL)["scheduler"].build()}
    whole = exam.of_policies(modules)
    least = [one.outcome for one in whole]
    assert exam.of_policies(modules, least) == whole
    given_up = exam.of_policies(modules, [least[0], 0.1 * least[1]])
    assert given_up[0] == whole[0]
    assert given_up[1].outcome == float("inf")
    assert given_up[1].length < whole[1].length


@pytest.mark.proof
def test_schedulers_can_have_policies_of_their_own(tmp_path: Path) -> None:
    result = trained(tmp_path, parameters="separate", cloning=CLONING)
    assert sorted(result.policies) == ["scheduler_0", "scheduler_1"]
    first, second = (policy.state_dict() for policy in result.policies.values())
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert {"losses/scheduler_0/entropy", "losses/scheduler_1/agreement"} <= set(
        rows_of(tmp_path)[0]
    )


def staged() -> ClusterParallelEnv:
    rng = np.random.default_rng(0)
    trace = Trace.of(
        "staged", np.sort(rng.integers(0, 9_000, 60)), rng.integers(60, 900, 60), np.ones(60, int)
    )
    clusters = [Cluster.uniform(nodes, 2, nodes_per_rack=nodes // 2) for nodes in (2, 4)]
    stages = Curriculum(first_load=(0.5, 0.5), load=(1.0, 1.0), first_gpus=4, gpus=8, until=0.5)
    generator = MixedClusters(
        clusters, trace, stages=stages, jobs_per_gpu=(1.5, 1.5), max_share=0.5
    )
    sizes = partial(ClusterObservation, window=3, running=6, shares=8)
    return ClusterParallelEnv(generator, schedulers=2, observation=sizes)


@pytest.mark.proof
def test_the_curriculum_goes_on_with_training(tmp_path: Path) -> None:
    common: dict[str, Any] = {"env": staged, "curriculum_steps": 64 * 4, "exam_every": 99}
    trained(tmp_path / "parts", max_steps=64 * 3, **common)
    trained(tmp_path / "parts", resume=True, max_steps=64 * 6, **common)
    trained(tmp_path / "whole", max_steps=64 * 6, **common)
    rows = rows_of(tmp_path / "whole")
    progress = [float(row["charts/curriculum"]) for row in rows]
    assert progress == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert rows_of(tmp_path / "parts") == rows
