"""Whole runs: they learn, go on after a kill as if nothing had happened, and keep the best."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from schedulers import MODEL, environment, training

from agents.rllib.cluster.config import Cloning
from agents.rllib.cluster.drivers import FirstFit
from agents.rllib.cluster.session import COLUMNS
from agents.rllib.cluster.training import ClusterTrained, Exam, score, train_schedulers
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.mixed_clusters import Curriculum, MixedClusters
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

CLOCKS = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}
CLONING = Cloning(iterations=2, learning_rate=3e-3, num_epochs=1, first_share=0.0, last_share=0.5)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key not in CLOCKS} for row in rows]


def trained(folder: Path, *, resume: bool = False, **changes: Any) -> ClusterTrained:
    env = changes.pop("env", environment)
    return train_schedulers(
        training(**changes),
        env,
        lambda _: env(),
        folder,
        teacher=FirstFit(),
        reference=FirstFit(),
        resume=resume,
    )


def one_server() -> ClusterParallelEnv:
    """Six jobs at once on one GPU: the order is all there is to decide."""
    generator = RandomJobs(
        Cluster.uniform(1, 1), jobs=(6, 6), load=(90.0, 90.0), max_gpus=1, duration_s=(60, 36_000)
    )
    sizes = partial(ClusterObservation, window=6, running=1, shares=1)
    return ClusterParallelEnv(generator, schedulers=1, observation=sizes)


def test_ppo_learns_that_the_shortest_job_goes_first(tmp_path: Path) -> None:
    ppo = {"num_envs": 16, "fragment": 24, "minibatch_size": 128, "num_epochs": 4,
           "learning_rate": 1e-2, "posterior_coefficient": 0.0}  # fmt: skip
    result = trained(
        tmp_path, ppo=ppo, env=one_server, max_decisions=384 * 16, exam_every=16, exam_windows=16
    )
    optimum = score(
        Exam([one_server() for _ in range(16)]).of_teacher(Shortest()), result.reference
    )
    assert result.exams[0][1] > optimum + 0.2
    assert result.best_score < optimum + 0.05


class Shortest:
    """The waiting job with the least work goes first, which is optimal on one server."""

    def begin(self, episode: SchedulingEpisode) -> Shortest:
        return self

    def copy(self) -> Shortest:
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
    common = {"env": env, "cloning": CLONING, "ppo": {"alike": 2}, "exam_every": 3}
    trained(tmp_path / "parts", max_decisions=128 * 3, **common)
    resumed = trained(tmp_path / "parts", resume=True, max_decisions=128 * 7, **common)
    whole = trained(tmp_path / "whole", max_decisions=128 * 7, **common)
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


def test_cloning_comes_first_and_every_column_is_there(tmp_path: Path) -> None:
    trained(tmp_path, cloning=CLONING)
    rows = rows_of(tmp_path)
    assert [row["charts/cloning"] for row in rows] == ["1.0", "1.0", "0.0", "0.0"]
    assert [row["charts/pupil_share"] for row in rows] == ["0.0", "0.5", "nan", "nan"]
    assert all(set(row) | CLOCKS == set(COLUMNS) for row in rows)
    assert all(row["losses/agreement"] != "nan" for row in rows[:2])
    assert all(row["losses/policy_loss"] != "nan" for row in rows[2:])
    assert [row["exam/score"] != "nan" for row in rows] == [False, True, False, True]
    assert any((tmp_path / "tensorboard").iterdir())


def test_the_policy_of_the_best_exam_is_kept(tmp_path: Path) -> None:
    result = trained(tmp_path, ppo={"learning_rate": 0.03}, exam_every=1)
    scores = dict(result.exams)
    assert result.best_score == min(scores.values()) == scores[result.best_iteration]
    document = json.loads((tmp_path / "best" / "score.json").read_text())
    assert document["score"] == result.best_score
    exam = Exam([environment(), environment()])
    assert score(exam.of_policy(result.policy), result.reference) == result.best_score


def test_exams_are_the_same_whoever_plays_beside(tmp_path: Path) -> None:
    found = [Exam([environment() for _ in range(n)]).of_teacher(FirstFit()) for n in (2, 5)]
    assert found[0] == found[1][:2]
    agent = environment().possible_agents[0]
    env = environment()
    policy = MODEL.policy(env.observation_space(agent), env.action_space(agent))
    exams = [Exam([environment() for _ in range(n)]).of_policy(policy) for n in (1, 3)]
    assert exams[0] == exams[1][:1]
    assert all(np.isfinite(one.mean_jct) for one in exams[1])


def test_jobs_left_over_make_an_exam_infinite() -> None:
    found = Exam([environment(horizon=2)]).of_teacher(FirstFit())
    assert found[0].mean_jct == float("inf")
    assert found[0].decisions == 2


def test_a_window_is_given_up_once_it_is_surely_worse_than_allowed() -> None:
    exam = Exam([environment(jobs=40) for _ in range(2)])
    agent = environment().possible_agents[0]
    env = environment()
    policy = MODEL.policy(env.observation_space(agent), env.action_space(agent))
    whole = exam.of_policy(policy)
    least = [one.mean_jct for one in whole]
    assert exam.of_policy(policy, least) == whole
    given_up = exam.of_policy(policy, [least[0], 0.1 * least[1]])
    assert given_up[0] == whole[0]
    assert given_up[1].mean_jct == float("inf")
    assert given_up[1].decisions < whole[1].decisions


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


def test_the_curriculum_goes_on_with_training(tmp_path: Path) -> None:
    common = {"env": staged, "curriculum_decisions": 128 * 4, "exam_every": 99}
    trained(tmp_path / "parts", max_decisions=128 * 3, **common)
    trained(tmp_path / "parts", resume=True, max_decisions=128 * 6, **common)
    trained(tmp_path / "whole", max_decisions=128 * 6, **common)
    rows = rows_of(tmp_path / "whole")
    progress = [float(row["charts/curriculum"]) for row in rows]
    assert progress == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert rows_of(tmp_path / "parts") == rows


def test_a_run_is_not_overwritten_or_mixed_up(tmp_path: Path) -> None:
    trained(tmp_path, max_decisions=1)
    with pytest.raises(InputError, match="holds a run already"):
        trained(tmp_path, max_decisions=1)
    with pytest.raises(InputError, match="holds no checkpoint"):
        trained(tmp_path / "other", max_decisions=1, resume=True)
    with pytest.raises(InputError, match="field 'seed': the checkpoint was written with 0"):
        trained(tmp_path, max_decisions=1, seed=1, resume=True)
    with pytest.raises(InputError, match="field 'ppo'"):
        trained(tmp_path, max_decisions=1, ppo={"clip": 0.1}, resume=True)
