"""The toy has the optimum of all plans, an episode pays what its plan is worth, policies follow."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.rllib.task import ObservationBuffer
from envs import PARALLEL
from experiments.config.papers import register_environments
from experiments.papers.malleable_jobs.env import AllocationEnv, AllocationParallelEnv
from experiments.papers.malleable_jobs.gadget import Gadget
from experiments.papers.malleable_jobs.generated import random_problem
from experiments.papers.malleable_jobs.learned import (
    AllocationRLTask,
    AllocationRunnerEnv,
    LearnedAllocation,
)
from experiments.papers.malleable_jobs.problem import (
    AllocationPlan,
    AllocationProblem,
    LinearUtility,
    LogUtility,
    MalleableJob,
    RingSpeed,
    play,
)
from models.cluster.pairs import PairsConfig
from models.export.checkpoint import ModelCard
from models.export.pairs import export_pairs
from tests.refusal import refusal

TOY_OPTIMUM = 7.892789260714373


def toy_problem(rng: np.random.Generator | None = None) -> AllocationProblem:
    """On three GPUs: a job that must begin at once, one that pays later, one that can wait."""
    jobs = [
        MalleableJob(
            name, first, last, 60.0 * slots, 1, 2, 0, (1.0, 1.0, 0.0), (0.0,) * 3, 1e9,
            RingSpeed(1, 1.0, 5e8), worth,
        )
        for name, first, last, slots, worth in (
            ("urgent", 0, 2, 3.0, LinearUtility(4.0, 8.0)),
            ("large", 0, 3, 5.0, LinearUtility(9.0, 6.0)),
            ("patient", 1, 3, 4.0, LogUtility(3.0, 0.5)),
        )
    ]  # fmt: skip
    return AllocationProblem(tuple(jobs), np.array([[3.0, 3.0, 1.0, 1e9]]), 1e10, 3, 60.0)


def best_of_all_plans() -> float:
    problem, best = toy_problem(), 0.0
    ways = [
        [
            way
            for way in product(range(3), repeat=3)
            if sum(way) <= 3
            and not any(way[j] and slot not in problem.windows[j] for j in range(3))
        ]
        for slot in range(problem.slots)
    ]
    for chosen in product(*ways):
        plan = AllocationPlan.empty(problem)
        plan.workers[:, :, 0] = chosen
        played = play(problem, plan).utility
        if played > best:
            best = played
            assert problem.violations(plan) == []
    return best


def best_of_all_actions(env: AllocationEnv, seen: dict[tuple[object, ...], float]) -> float:
    episode = env.parallel.episode
    if episode.over:
        return 0.0
    key = (episode.slot, *np.round(episode.done, 9), *sorted(episode.level.items()))
    key += tuple(np.flatnonzero(episode.open))
    if key not in seen:
        found = []
        for action in np.flatnonzero(env.action_masks()):
            twin = copy.deepcopy(env)
            reward = twin.step(action)[1]
            found.append(reward + best_of_all_actions(twin, seen))
        seen[key] = max(found)
    return seen[key]


def test_the_toy_s_optimum_is_that_of_all_plans_and_of_all_actions() -> None:
    env = AllocationEnv(toy_problem)
    env.reset(seed=0)
    assert best_of_all_actions(env, {}) == pytest.approx(TOY_OPTIMUM, abs=1e-6)
    assert best_of_all_plans() == pytest.approx(TOY_OPTIMUM, abs=1e-6)


@pytest.mark.parametrize("queues", [1, 3])
def test_an_episode_pays_what_its_plan_is_worth(queues: int) -> None:
    env = AllocationParallelEnv(queues=queues)
    for seed in range(4):
        rng, total = np.random.default_rng(seed), 0.0
        seen, infos = env.reset(seed=seed)
        while env.agents:
            allowed = {agent: np.flatnonzero(one["action_mask"]) for agent, one in seen.items()}
            seen, rewards, *_, infos = env.step({x: int(rng.choice(y)) for x, y in allowed.items()})
            total += rewards["queue_0"]
        problem, plan = env.episode.problem, env.episode.plan
        assert problem.violations(plan) == []
        assert total == pytest.approx(play(problem, plan).utility)
        assert infos["queue_0"]["utility"] == pytest.approx(total)


def test_a_queue_gives_to_its_own_jobs_and_bad_actions_are_refused() -> None:
    register_environments()
    assert "meshwright/AllocationParallel-v0" in PARALLEL
    env = AllocationParallelEnv(queues=2)
    env.reset(seed=1)
    for number in range(2):
        assert (env.episode.queue[env.shown[number]] == number).all()
    with refusal("queue_1"):
        env.step({"queue_0": 0})
    with refusal("term"):
        AllocationParallelEnv(weights={"speed": 1.0})


def env_of(queues: int = 1) -> AllocationParallelEnv:
    return AllocationParallelEnv(
        lambda rng: random_problem(rng, "parameter_server", jobs=6, slots=6), queues=queues
    )


def played(env: AllocationRunnerEnv, expert: object) -> AllocationProblem:
    queues = env.env.queues
    buffer, ended = ObservationBuffer(env.env.observation.space, 1, queues), False
    env.attach([(buffer, row) for row in range(queues)])
    env.reset(3, expert=expert)
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
    folder = export_pairs(policy, tmp_path / "it", ModelCard("", "", "", {}))
    planner, (seen, _) = LearnedAllocation(str(folder)), env.reset(seed=5)
    for _ in range(8):
        one = seen["queue_0"]
        batch = {name: torch.from_numpy(array[None]) for name, array in one.items()}
        logits = policy.decide(batch)[0][0].detach().numpy()
        allowed = one["action_mask"] > 0
        np.testing.assert_allclose(planner.scores(one)[allowed], logits[allowed], atol=1e-4)
        seen = env.step({"queue_0": int(logits.argmax())})[0]
    with refusal("checkpoint folder"):
        LearnedAllocation(str(tmp_path / "nowhere"))


def test_the_rule_is_what_an_unlearned_policy_does_and_queues_imitate_a_plan() -> None:
    env = AllocationRLTask(env_of, env_of).make_env(0)
    problem = played(env, None)
    found = LearnedAllocation().solve(problem)
    assert found.solution is not None
    assert problem.violations(found.solution) == []
    assert found.value == pytest.approx(env.env.utility)
    assert env.objective() == pytest.approx(env.env.episode.worth / found.value)
    env = AllocationRLTask(lambda: env_of(2), lambda: env_of(2)).make_evaluation_env(0)
    played(env, Gadget())
    given, made = env.workers, env.env.episode.plan.workers.sum(axis=2)
    assert given is not None
    assert made.sum() >= 0.6 * given.sum()
    assert ((made > 0) <= (given > 0))[given.any(axis=1)].mean() > 0.8
