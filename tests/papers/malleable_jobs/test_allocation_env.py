"""`Allocation-v0`: the toy has the optimum of all plans, an episode pays what its plan is worth."""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest

from experiments.papers.malleable_jobs.env import AllocationEnv
from experiments.papers.malleable_jobs.generated import TOY_OPTIMUM, toy_problem
from experiments.papers.malleable_jobs.parallel_env import AllocationParallelEnv
from experiments.papers.malleable_jobs.problem import AllocationPlan, play
from tests.refusal import refusal


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
    episode = env.episode
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
        rng = np.random.default_rng(seed)
        seen, infos = env.reset(seed=seed)
        total = 0.0
        while env.agents:
            actions = {
                agent: int(rng.choice(np.flatnonzero(one["action_mask"])))
                for agent, one in seen.items()
            }
            seen, rewards, *_, infos = env.step(actions)
            total += rewards["queue_0"]
        problem, plan = env.episode.problem, env.episode.plan
        assert problem.violations(plan) == []
        assert total == pytest.approx(play(problem, plan).utility)
        assert infos["queue_0"]["utility"] == pytest.approx(total)


def test_a_queue_gives_to_its_own_jobs_and_bad_actions_are_refused() -> None:
    env = AllocationParallelEnv(queues=2)
    env.reset(seed=1)
    for number in range(2):
        assert (env.episode.queue[env.shown(number)] == number).all()
    with refusal("queue_1"):
        env.step({"queue_0": 0})
    with refusal("term"):
        AllocationParallelEnv(weights={"speed": 1.0})
