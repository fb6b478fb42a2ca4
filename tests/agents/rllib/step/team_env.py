"""A team task anybody can solve: every agent is shown what is wanted of it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from agents.rllib.advantages import PerStep
from agents.rllib.config import Training
from envs.spaces import FeatureWidths, PaddedGraphLayout
from models.step.allocator import RAISE, AllocatorConfig, TeamConfig
from tests.agents.rllib.toys import small_ppo, small_training
from tests.models.random_observations import policy_config

GROUPS, DEVICES, SERVERS = 8, 3, 2
LAYOUT = PaddedGraphLayout(
    max_nodes=10,
    max_edges=9,
    num_devices=DEVICES,
    widths=FeatureWidths(node=12, node_device=2, edge=2, device=8, link=3, candidate=6),
)
AGENTS = ["placer", *(f"allocator_{server}" for server in range(SERVERS))]
PIPES = 2
ALLOCATOR_SPACE = spaces.Dict(
    {
        "pipe_features": spaces.Box(-4.0, 4.0, (PIPES, 11), np.float32),
        "server_features": spaces.Box(-4.0, 4.0, (8,), np.float32),
        "action_mask": spaces.Box(0, 1, (1 + 2 * PIPES,), np.int8),
    }
)


class TeamIdentityEnv(ParallelEnv[str, Any, int]):
    """The placer is wanted on one device; one allocator is to raise a pipe, the others to keep.

    The reward of a step is the share of agents that do what is wanted / 8; the step time is 2 s
    less the total reward. `levels` counts the raises.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "team"}

    def __init__(self) -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.started: list[Any] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return LAYOUT.space() if agent == "placer" else ALLOCATOR_SPACE

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(DEVICES if agent == "placer" else 1 + 2 * PIPES)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        rng = np.random.default_rng(seed)
        self.started.append(options)
        self.wanted = rng.integers(0, DEVICES, GROUPS)
        self.asked = rng.integers(0, SERVERS, GROUPS)
        self.pipe = rng.integers(0, PIPES, GROUPS)
        self.device = np.zeros(GROUPS, dtype=np.int64)
        self.levels = np.zeros((SERVERS, SERVERS), dtype=np.int64)
        self.decided, self.total = 0, 0.0
        self.agents = list(AGENTS)
        return self.observe(), {name: {} for name in AGENTS}

    def step(self, actions: dict[str, Any]) -> Any:
        k = self.decided
        self.device[k] = actions["placer"]
        right = int(actions["placer"] == self.wanted[k])
        for server in range(SERVERS):
            wanted = 1 + self.pipe[k] if server == self.asked[k] else 0
            done = int(actions[f"allocator_{server}"])
            self.levels[server, 1 - server] += int(1 <= done <= PIPES)
            right += int(done == wanted)
        reward = right / len(AGENTS) / GROUPS
        self.total += reward
        self.decided += 1
        over = self.decided == GROUPS
        if over:
            self.agents = []
        info = {"step_time_s": 2.0 - self.total, "feasible": over, "placed": self.decided}
        return (
            self.observe(),
            dict.fromkeys(AGENTS, reward),
            dict.fromkeys(AGENTS, over),
            dict.fromkeys(AGENTS, False),
            {name: dict(info) for name in AGENTS},
        )

    @property
    def able(self) -> Any:
        return np.ones((GROUPS, DEVICES), dtype=np.bool_)

    @property
    def group_device(self) -> Any:
        return self.device.copy()

    def step_times(self, devices: Any, levels: Any) -> Any:
        return 2.0 - (devices == self.wanted).mean(axis=1) - 0.01 * levels.any()

    def plan_outcome(self) -> tuple[float, bool]:
        return 2.0 - self.total, True

    def observe(self) -> dict[str, Any]:
        k = min(self.decided, GROUPS - 1)
        graph = LAYOUT.empty()
        graph["node_mask"][:GROUPS] = 1
        graph["current"][0] = k
        graph["candidate_features"][self.wanted[k], 0] = 1.0
        graph["action_mask"][:] = 1
        seen: dict[str, Any] = {"placer": graph}
        for server in range(SERVERS):
            pipes = np.zeros((PIPES, 11), np.float32)
            if server == self.asked[k]:
                pipes[self.pipe[k], RAISE] = -1.0
            seen[f"allocator_{server}"] = {
                "pipe_features": pipes,
                "server_features": np.zeros(8, np.float32),
                "action_mask": np.ones(1 + 2 * PIPES, np.int8),
            }
        return seen


def team_training(**chosen: Any) -> Training:
    """A run of tiny iterations: 4 episodes of 8 steps of the team each."""
    ppo = small_ppo(
        num_envs=4,
        minibatch_size=16,
        num_epochs=3,
        learning_rate=3e-3,
        final_learning_rate=3e-3,
        discounting=PerStep(1.0, 0.97),
        auxiliary_coefficient=0.0,
    )
    model = TeamConfig(
        placer=policy_config(initial_candidate_weights={0: 0.1}),
        allocator=AllocatorConfig(
            hidden=16, initial_scale=0.1, initial_keep=0.0, initial_look_ahead=0.0
        ),
    )
    return small_training(**{"model": model, "ppo": ppo, **chosen})
