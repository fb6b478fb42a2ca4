"""Any Gymnasium environment, and any PettingZoo parallel environment, as a task of the learner."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from agents.rllib.task import Array, RLTask, RunnerEnv, Step
from envs import PARALLEL, make_parallel
from envs.bounds import bounded
from envs.errors import InputError, near

MakesEnv = Callable[[], gymnasium.Env[Any, Any] | ParallelEnv[Any, Any, Any]]
RANDOM_PLAY = 1  # with the episode's seed, the seed of random actions
LARGEST = 600.0  # of a return, of which an exponential is taken


@bounded
class EnvironmentTask(RLTask):
    """Episodes of an environment, each agent rewarded as it says.

    Returns are means over agents. The reference of evaluations is random play of allowed actions.

    Args:
        id: of an environment: Gymnasium's, or one of `envs.PARALLEL`.
        make: makes the environment instead.
        objective: of an episode, where less is better and nothing below 0: the name of a number in
            its last `info`; "cost": -return; "worth": 1 / return; None: exp(-return).
        shared: whether agents whose names differ by a number alone, and whose spaces are equal,
            share a policy.

    Raises:
        InputError: there is no such environment, or its observations are no `Dict` or `Box`.
    """

    metrics: Sequence[str] = ("return_mean",)
    reference = "random"
    measure = "objectives"

    def __init__(
        self,
        id: str = "",  # noqa: A002, as Gymnasium calls it
        *,
        make: MakesEnv | None = None,
        objective: str | None = None,
        shared: bool = True,
    ) -> None:
        if make is None and not id:
            raise InputError("is missing: task.id=CartPole-v1 is one", field="task.id")
        if make is None and id not in PARALLEL and id not in gymnasium.registry:
            known = ", ".join(near(id, [*PARALLEL, *gymnasium.registry]))
            hint = f" (near it: {known})" if known else ""
            raise InputError(f"there is no {id!r}{hint}", field="task.id")
        self.info = objective
        parallel = partial(make_parallel, PARALLEL[id]) if id in PARALLEL else None
        self.make = make or parallel or partial(gymnasium.make, id)
        env: Any = self.make()
        self.parallel = isinstance(env, ParallelEnv)
        self.agents = getattr(env, "possible_agents", ["agent"])
        self._spaces = {agent: _spaces(env, agent) for agent in self.agents}
        stems = {agent: re.sub(r"_?\d+$", "", agent) for agent in self.agents}
        equal = {
            stem: len({repr(self._spaces[x]) for x in self.agents if stems[x] == stem}) == 1
            for stem in stems.values()
        }
        self._module = {x: stem if shared and equal[stem] else x for x, stem in stems.items()}

    def module_of(self, agent: str) -> str:
        return self._module[agent]

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self._spaces[agent]

    def make_env(self, index: int) -> EnvironmentRunnerEnv:
        return EnvironmentRunnerEnv(self)

    def make_evaluation_env(self, number: int) -> EnvironmentRunnerEnv:
        return EnvironmentRunnerEnv(self)


def _spaces(env: Any, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
    """Of an agent; what it observes as a mapping of arrays."""
    seen, acts = env.observation_space, env.action_space
    if isinstance(env, ParallelEnv):
        seen, acts = seen(agent), acts(agent)
    if isinstance(seen, spaces.Box):
        seen = spaces.Dict({"observation": seen})
    if not isinstance(seen, spaces.Dict):
        raise InputError(f"observes {seen}, which is neither Dict nor Box", field="task.id")
    return seen, acts


class EnvironmentRunnerEnv(RunnerEnv):
    """An environment of an `EnvironmentTask`, with a seed for each episode."""

    def __init__(self, task: EnvironmentTask) -> None:
        self.task = task
        self.env: Any = task.make()

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        self.seen, self.info = self.env.reset(seed=seed)
        # not the stream that the environment draws from
        self.steps, self.total, self.random = 0, 0.0, np.random.default_rng([RANDOM_PLAY, seed])

    @property
    def time(self) -> float:
        return float(self.steps)

    def observations(self) -> Sequence[Mapping[str, Array]]:
        seen = self.seen if self.task.parallel else {"agent": self.seen}
        shown = [seen[agent] for agent in self.task.agents]
        return [x if isinstance(x, Mapping) else {"observation": x} for x in shown]

    def step(self, actions: Sequence[Any]) -> Step:
        agents = self.task.agents
        if self.task.parallel:
            acting = {x: a for x, a in zip(agents, actions, strict=True) if x in self.env.agents}
            seen, rewards, _, truncated, infos = self.env.step(acting)
            self.seen = {**self.seen, **seen}  # who has left sees what it saw last
            self.info = infos.get(agents[0], self.info)
            given = [float(rewards.get(agent, 0.0)) for agent in agents]
            cut = not self.env.agents and all(truncated.values())
            over = not self.env.agents and not cut
        else:
            self.seen, reward, over, cut, self.info = self.env.step(actions[0])
            given = [float(reward)]
        self.steps += 1
        self.total += sum(given) / len(given)
        return Step(given, 1.0, bool(over), bool(cut))

    def expert_action(self, agent: int) -> Any:
        """Any allowed one."""
        _, space = self.task.spaces_of(self.task.agents[agent])
        mask = self.observations()[agent].get("action_mask")
        if isinstance(space, spaces.Box):
            return self.random.uniform(space.low, space.high)
        if isinstance(space, spaces.MultiDiscrete):
            rows = np.ones((len(space.nvec), space.nvec.max())) if mask is None else mask
            sizes = zip(rows, space.nvec, strict=False)
            return np.array([self.random.choice(np.flatnonzero(row[:n])) for row, n in sizes])
        assert isinstance(space, spaces.Discrete)
        allowed = np.arange(int(space.n)) if mask is None else np.flatnonzero(mask)
        return int(self.random.choice(allowed))

    def objective(self) -> float:
        name, total = self.task.info, self.total
        if name is None:
            return float(np.exp(np.clip(-total, -LARGEST, LARGEST)))
        if name in ("cost", "worth"):
            found = -total if name == "cost" else 1.0 / max(total, 1e-12)
        else:
            if not isinstance(self.info.get(name), int | float | np.number):
                reason = f"the last info has no number {name!r} (it has {', '.join(self.info)})"
                raise InputError(reason, field="task.objective")
            found = float(self.info[name]) if self.info.get("feasible", True) else np.inf
        return found if np.isfinite(found) and found > 0.0 else float("inf")

    def metrics(self) -> Mapping[str, float]:
        return {"return_mean": self.total}
