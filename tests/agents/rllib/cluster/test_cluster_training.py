"""Whole runs: they learn, go on after a kill as if nothing had happened, and keep the best."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from schedulers import MODEL, environment, schedulers, training

from agents.cluster.teachers import FirstFit
from agents.rllib.config import Cloning
from agents.rllib.module import modules_of
from agents.rllib.vector import Evaluation
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import Curriculum, MixedClusters, RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from experiments.learning.training import Trained, train_policies
from tests.agents.rllib.toys import in_parts, rows_of

CLONING = Cloning(2, 3e-3, 1)


def trained(folder: Path, env: Any = environment, **changes: Any) -> Trained:
    chosen = training(**changes)
    return train_policies(chosen, schedulers(env, parameters=chosen.parameters), folder)


def one_server() -> ClusterParallelEnv:
    """Six jobs at once on one GPU: the order is all there is to decide."""
    generator = RandomJobs(
        Cluster.uniform(1, 1), jobs=(6, 6), load=(90.0, 90.0), max_gpus=1, duration_s=(60, 36_000)
    )
    sizes = partial(ClusterObservation, window=6, running=1, shares=1)
    return ClusterParallelEnv(generator, schedulers=1, observation=sizes)


class Shortest:
    """The waiting job with the least work goes first, which is optimal on one server."""

    def begin(self, episode: SchedulingEpisode) -> Shortest:
        return self

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        waiting, state = episode.book.window[scheduler], episode.simulator.state
        work = np.where(waiting >= 0, state.jobs["work"][waiting], np.inf)
        if state.clock[0]["running"] or not np.isfinite(work).any():
            return episode.action_table.size - 1
        return int(np.argmin(work)) * episode.action_table.groups


@pytest.mark.proof
def test_ppo_learns_that_the_shortest_job_goes_first(tmp_path: Path) -> None:
    ppo = {"num_envs": 16, "steps": 24, "minibatch_size": 128, "num_epochs": 4,
           "learning_rate": 1e-2, "auxiliary_coefficient": 0.0}  # fmt: skip
    result = trained(
        tmp_path, ppo=ppo, env=one_server, max_steps=384 * 16, evaluate_every=16,
        evaluation_episodes=16,
    )  # fmt: skip
    shortest = Evaluation(schedulers(one_server), 16).of(None, expert=Shortest())
    optimum = np.mean([one.objective for one in shortest] / np.array(result.reference))
    assert result.evaluations[0][1] > optimum + 0.2
    assert result.best_score < optimum + 0.05


@pytest.mark.proof
def test_a_run_that_is_taken_up_again_is_as_one_without_a_break(tmp_path: Path) -> None:
    """Through cloning, evaluations and running episodes, bit by bit."""
    env = partial(environment, jobs=12)  # episodes longer than a rollout
    chosen = training({"group_size": 2}, cloning=CLONING, evaluate_every=3)
    resumed, whole = in_parts(tmp_path, chosen, partial(schedulers, env), 64 * 3, 64 * 7, best=True)
    assert len(rows_of(tmp_path / "whole")) == 7
    # the end of the first part was evaluated, too
    assert set(whole.evaluations) <= set(resumed.evaluations)


def test_evaluations_are_the_same_whoever_plays_beside() -> None:
    modules = modules_of(schedulers(), MODEL)
    for given, expert in ((None, FirstFit()), (modules, None)):
        few, more = (Evaluation(schedulers(), n).of(given, expert=expert) for n in (2, 4))
        assert few == more[:2]
        assert all(np.isfinite(one.objective) for one in more)


@pytest.mark.proof
def test_a_window_is_given_up_once_it_is_surely_worse_than_allowed() -> None:
    evaluation = Evaluation(schedulers(partial(environment, jobs=40)), 2)
    modules = modules_of(schedulers(), MODEL)
    first, second = whole = evaluation.of(modules)
    assert evaluation.of(modules, [first.objective, second.objective]) == whole
    kept, given_up = evaluation.of(modules, [first.objective, 0.1 * second.objective])
    assert kept == first
    assert given_up.objective == float("inf")
    assert given_up.length < second.length


@pytest.mark.proof
def test_schedulers_can_have_policies_of_their_own(tmp_path: Path) -> None:
    result = trained(tmp_path, parameters="separate", cloning=CLONING)
    assert sorted(result.policies) == ["scheduler_0", "scheduler_1"]
    first, second = (policy.state_dict() for policy in result.policies.values())
    assert any(not torch.equal(first[name], second[name]) for name in first)
    losses = {"losses/scheduler_0/entropy", "losses/scheduler_1/agreement"}
    assert losses <= set(rows_of(tmp_path)[0])


def staged() -> ClusterParallelEnv:
    rng = np.random.default_rng(0)
    submits, durations = np.sort(rng.integers(0, 9_000, 60)), rng.integers(60, 900, 60)
    trace = Trace.of("staged", submits, durations, np.ones(60, int))
    clusters = [Cluster.uniform(nodes, 2, nodes_per_rack=nodes // 2) for nodes in (2, 4)]
    stages = Curriculum(first_load=(0.5, 0.5), load=(1.0, 1.0), first_gpus=4, gpus=8, until=0.5)
    generator = MixedClusters(
        clusters, trace, stages=stages, jobs_per_gpu=(1.5, 1.5), max_share=0.5
    )
    sizes = partial(ClusterObservation, window=3, running=6, shares=8)
    return ClusterParallelEnv(generator, schedulers=2, observation=sizes)


@pytest.mark.proof
def test_the_curriculum_goes_on_with_training(tmp_path: Path) -> None:
    chosen = training(curriculum_steps=64 * 4, evaluate_every=99)
    in_parts(tmp_path, chosen, partial(schedulers, staged), 64 * 3, 64 * 6)
    progress = [float(row["charts/curriculum"]) for row in rows_of(tmp_path / "whole")]
    assert progress == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
