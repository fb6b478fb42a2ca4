"""A policy decides in the planner as it did in training, and the rule is the policy unlearned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.rllib.task import ObservationBuffer
from experiments.papers.malleable_jobs.gadget import Gadget
from experiments.papers.malleable_jobs.generated import random_problem
from experiments.papers.malleable_jobs.learned import LearnedAllocation
from experiments.papers.malleable_jobs.parallel_env import AllocationParallelEnv
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.rl_task import AllocationRLTask, AllocationRunnerEnv
from models.cluster.pairs import PairsConfig
from models.export.checkpoint import ModelCard
from models.export.pairs import export_pairs
from tests.refusal import refusal


def env_of(queues: int = 1) -> AllocationParallelEnv:
    return AllocationParallelEnv(
        lambda rng: random_problem(rng, "parameter_server", jobs=6, slots=6), queues=queues
    )


def played(env: AllocationRunnerEnv, expert: object) -> AllocationProblem:
    buffer, queues = ObservationBuffer(env.env.observation.space, 1, env.env.queues), env.env.queues
    env.attach([(buffer, row) for row in range(queues)])
    env.reset(3, expert=expert)
    ended = False
    while not ended:
        env.observe(0)
        ended = env.step([env.expert_action(agent) for agent in range(queues)]).terminated
    return env.env.episode.problem


def test_a_policy_decides_as_it_did_in_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = env_of()
    policy = PairsConfig(hidden=8, head_start=2.0).policy(
        env.observation_space("queue_0"), env.action_space("queue_0")
    )
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    planner = LearnedAllocation(
        str(export_pairs(policy, tmp_path / "it", ModelCard("", "", "", {})))
    )
    seen, _ = env.reset(seed=5)
    for _ in range(8):
        one = seen["queue_0"]
        batch = {name: torch.from_numpy(array[None]) for name, array in one.items()}
        logits = policy.decide(batch)[0][0].detach().numpy()
        allowed = one["action_mask"] > 0
        np.testing.assert_allclose(planner.scores(one)[allowed], logits[allowed], atol=1e-4)
        seen = env.step({"queue_0": int(logits.argmax())})[0]
    with refusal("checkpoint folder"):
        LearnedAllocation(str(tmp_path / "nowhere"))


def test_the_rule_is_what_an_unlearned_policy_does_and_no_job_is_seen_before_it_comes() -> None:
    env = AllocationRunnerEnv(env_of())
    problem = played(env, None)
    found = LearnedAllocation().solve(problem)
    assert found.solution is not None
    assert problem.violations(found.solution) == []
    assert found.value == pytest.approx(env.env.utility)
    assert env.objective() == pytest.approx(env.whole / found.value)


def test_queues_imitate_a_plan() -> None:
    env = AllocationRLTask(env_of, lambda: env_of(2)).make_evaluation_env(0)
    played(env, Gadget())
    given, made = env.workers, env.env.episode.plan.workers.sum(axis=2)
    assert given is not None
    assert made.sum() >= 0.6 * given.sum()
    assert ((made > 0) <= (given > 0))[given.any(axis=1)].mean() > 0.8
