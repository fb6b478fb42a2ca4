"""Our sampler and RLlib's PPO learner in this process, without a Ray runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from torch import nn

from agents.rllib import restore
from agents.rllib.archive import Archive, Record
from agents.rllib.config import TrainingConfig, rllib_config
from agents.rllib.decisions import Act, greedy
from agents.rllib.environment import EndedEpisode, EpisodeKeeper, TrainingEnv
from agents.rllib.module import PolicyModule
from agents.rllib.restore import Progress
from agents.rllib.runner import Episode, Runner
from agents.rllib.tasks import Task
from models.architecture import Policy

EnvFactory = Callable[[], Any]


class PPOSession:
    """Environments, runner, learner and archive of one run.

    Draws from the global generators: make and use it inside `restore.seeded_generators`.

    Args:
        config: the run.
        env_factory: makes one environment; called for each of `num_envs` and for the exams.
        task: what the environments are about.

    Raises:
        InputError: `config.model` is not what the task needs.
    """

    def __init__(self, config: TrainingConfig, env_factory: EnvFactory, task: Task) -> None:
        self.config, self.task = config, task
        self.archive = Archive(config.ppo.num_envs)
        self.keepers = [
            EpisodeKeeper(
                env_factory(), task, config.seed, index, self.archive, config.restart_share
            )
            for index in range(config.ppo.num_envs)
        ]
        self.exam_envs = [env_factory() for _ in range(config.ppo.num_envs)]
        envs = [TrainingEnv(keeper) for keeper in self.keepers]
        names = task.architectures(config.model)
        spaces = {task.module_of(agent): envs[0].spaces_of(agent) for agent in envs[0].agents}
        self.learner = rllib_config(config, task).build_learner(spaces=spaces)
        self.modules: dict[str, PolicyModule] = {name: self.learner.module[name] for name in names}
        self.runner = Runner(envs, self.modules, task)
        self.policies: dict[str, Policy] = {name: m.policy for name, m in self.modules.items()}
        self.network: nn.Module = (
            nn.ModuleDict(self.policies) if task.team else self.policies[DEFAULT_MODULE_ID]
        )
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: self.learner.get_optimizer(name) for name in self.modules
        }
        self.act: Act = greedy(self.modules, task)

    def restore(self, run_folder: Path, identity: dict[str, Any]) -> Progress:
        """Take up the last checkpoint of `run_folder`."""
        progress = restore.restore(
            run_folder, self.network, list(self.optimizers.values()), identity, Progress
        )
        for keeper, started in zip(self.keepers, progress.episodes_started, strict=True):
            keeper.episodes_started = started
        for index, (fastest, held) in enumerate(progress.records):
            self.keepers[index].fastest = fastest
            if held is not None:
                plan = {name: np.array(values) for name, values in held[1].items()}
                self.archive.offer(index, Record(plan, held[0]))
        self.learner.after_gradient_based_update(
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: progress.env_steps}
        )  # brings the schedules to where they were
        self.learner.metrics.reduce()  # lets go of what that logged
        return progress

    def save(self, progress: Progress, run_folder: Path, identity: dict[str, Any]) -> None:
        """Write a checkpoint."""
        progress.episodes_started = [keeper.episodes_started for keeper in self.keepers]
        progress.records = [
            (keeper.fastest, None if held is None else (held.step_time, as_lists(held)))
            for keeper, held in zip(self.keepers, self.archive.records, strict=True)
        ]
        optimizers = list(self.optimizers.values())
        restore.save(run_folder, progress, self.network, optimizers, identity)

    def sample(self, horizon: int) -> tuple[list[Episode], list[EndedEpisode]]:
        """The episodes of one batch, and what the episodes that ended came to.

        Every batch starts from fresh episodes, so that nothing but counters carries over from one
        iteration to the next. `horizon` decisions per episode end all episodes that long; where
        some end sooner, others start, and what is then left over is cut (and bootstrapped).
        """
        batch = self.runner.sample(self.config.ppo.batch_episodes * horizon)
        return batch, [ended for keeper in self.keepers for ended in keeper.drain()]

    def learn(self, batch: Sequence[Episode], env_steps: int) -> dict[str, dict[str, float]]:
        """One PPO update on `batch`; RLlib's metrics of it, by module."""
        ppo = self.config.ppo
        results = self.learner.update(
            episodes=[part for episode in batch for part in episode.parts.values()],
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: env_steps},
            num_epochs=ppo.num_epochs,
            minibatch_size=ppo.minibatch_size,
            shuffle_batch_per_epoch=True,
        )
        return {
            module: {name: float(stat.peek()) for name, stat in results[module].items()}
            for module in self.modules
        }


def as_lists(record: Record) -> dict[str, list[Any]]:
    """The plan of `record` as JSON takes it."""
    return {name: values.tolist() for name, values in record.plan.items()}
