"""The training loop: sample, learn, record, checkpoint; go on after a kill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from agents.rllib import restore
from agents.rllib.archive import Archive, Record
from agents.rllib.config import TrainingConfig, rllib_config
from agents.rllib.environment import EndedEpisode, TrainingEnv
from agents.rllib.exam import examine, follow_look_ahead
from agents.rllib.learner import GRADIENT_NORM_METRIC
from agents.rllib.metrics import MetricsLog, Row
from agents.rllib.restore import Progress
from envs.errors import InputError
from envs.spaces import PaddedGraph
from models.layout import widths_of
from models.policy import PlacementPolicy

EnvFactory = Callable[[], gym.Env[PaddedGraph, Any]]
OnIteration = Callable[[Row], None]
_RLLIB_ENV_ID = "rllib-single-agent-env-v0"  # under which RLlib registers every environment


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What a run found and learned. Step times in seconds, simulated on every operator."""

    best_placement: NDArray[np.int64] | None  # (G,) best feasible seen anywhere, None without any
    best_step_time: float  # inf without any
    untrained: tuple[float, ...]  # exam of the policy before training, see `exam.examine`
    trained: tuple[float, ...]  # the same episodes after it
    look_ahead: tuple[float, ...]  # the same episodes by the look-ahead alone
    iterations: int
    env_steps: int
    episodes: int
    seconds: float  # wall clock of training and decoding, all sessions of the run together
    trajectory: list[tuple[float, float]]  # (seconds since the start, best step time so far)
    policy: PlacementPolicy


class PPOSession:
    """RLlib's env runner and PPO learner in this process, without a Ray runtime.

    Draws from the global generators: make and use it inside `restore.seeded_generators`.

    Args:
        config: the run.
        env_factory: makes one environment; called `num_envs` times.
    """

    def __init__(self, config: TrainingConfig, env_factory: EnvFactory) -> None:
        self.config = config
        self.archive = Archive(config.ppo.num_envs)
        self.envs: list[TrainingEnv] = []

        def make_env(_context: Any) -> TrainingEnv:
            env = TrainingEnv(
                env_factory(),
                config.seed,
                len(self.envs),
                self.archive,
                config.restart_share,
                config.kick,
            )
            self.envs.append(env)
            return env

        self.exam_envs = [env_factory() for _ in range(config.ppo.num_envs)]
        widths = widths_of(env_factory().observation_space.sample())
        settings = rllib_config(config, widths, make_env)
        gym.registry.pop(_RLLIB_ENV_ID, None)  # a former run's
        self.runner = SingleAgentEnvRunner(config=settings)
        self.learner = settings.build_learner(spaces=self.runner.get_spaces())
        self.policy: PlacementPolicy = self.learner.module[DEFAULT_MODULE_ID].policy
        self.optimizer: torch.optim.Optimizer = self.learner.get_optimizer(DEFAULT_MODULE_ID)
        self.sync_weights()

    def sync_weights(self) -> None:
        """Copy the learner's weights to the env runner's policy."""
        self.runner.module.policy.load_state_dict(self.policy.state_dict())

    def restore(self, run_folder: Path, identity: dict[str, Any]) -> Progress:
        """Take up the last checkpoint of `run_folder`."""
        progress = restore.restore(run_folder, self.policy, self.optimizer, identity)
        for env, started in zip(self.envs, progress.episodes_started, strict=True):
            env.episodes_started = started
        for index, (fastest, held) in enumerate(progress.records):
            self.envs[index].fastest = fastest
            if held is not None:
                self.archive.offer(index, Record(np.array(held[1], dtype=np.int64), held[0]))
        self.learner.after_gradient_based_update(
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: progress.env_steps}
        )  # brings the schedules to where they were
        self.learner.metrics.reduce()  # lets go of what that logged
        self.sync_weights()
        return progress

    def sample(self, horizon: int) -> tuple[list[Any], list[EndedEpisode]]:
        """RLlib's episodes of one batch, and the placements in which episodes ended.

        Every batch starts from fresh episodes, so that nothing but counters carries over from one
        iteration to the next. `horizon` decisions per episode end all episodes that long; where
        some end sooner, others start, and what is then left over is cut (and bootstrapped).
        """
        decisions = self.config.ppo.batch_episodes * horizon
        batch = self.runner.sample(num_timesteps=decisions, force_reset=True)
        self.runner.get_metrics()  # lets go of the episodes it keeps for its own metrics
        return batch, [ended for env in self.envs for ended in env.drain()]

    def learn(self, batch: Sequence[Any], env_steps: int) -> dict[str, float]:
        """One PPO update on `batch`; RLlib's metrics of it."""
        ppo = self.config.ppo
        results = self.learner.update(
            episodes=list(batch),
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: env_steps},
            num_epochs=ppo.num_epochs,
            minibatch_size=ppo.minibatch_size,
            shuffle_batch_per_epoch=True,
        )
        self.sync_weights()
        return {name: float(stat.peek()) for name, stat in results[DEFAULT_MODULE_ID].items()}


def train(
    config: TrainingConfig,
    env_factory: EnvFactory,
    run_folder: Path,
    on_iteration: OnIteration = lambda row: None,
    *,
    resume: bool = False,
) -> TrainingResult:
    """Train a policy on the environment of `env_factory` until the budget is spent.

    All episodes are on one problem, so that their step times compare.

    Args:
        config: the run.
        env_factory: makes the environment.
        run_folder: receives `metrics.csv`, `tensorboard/` and `checkpoints/`.
        on_iteration: called with each iteration's metrics, when they are on the disk.
        resume: go on from the last checkpoint in `run_folder`; the budget counts from the start
            of the run.

    Raises:
        InputError: `run_folder` holds a run already and `resume` is not set, or there is nothing
            (or something else) to resume.
    """
    if not resume and restore.has_checkpoint(run_folder):
        raise InputError("holds a run already: resume it, or take another folder", file=run_folder)
    logging.getLogger("ray._common.deprecation").setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.torch_threads)
    try:
        with restore.seeded_generators(config.seed):
            return _train(config, env_factory, run_folder, on_iteration, resume)
    finally:
        torch.set_num_threads(threads)


def _train(
    config: TrainingConfig,
    env_factory: EnvFactory,
    run_folder: Path,
    on_iteration: OnIteration,
    resume: bool,
) -> TrainingResult:
    started = time.perf_counter()
    session = PPOSession(config, env_factory)
    identity = {
        "model": asdict(config.model),
        "ppo": asdict(config.ppo),
        "seed": config.seed,
        "restart_share": config.restart_share,
        "kick": config.kick,
    }
    progress = Progress()
    if resume:
        progress = session.restore(run_folder, identity)
    else:
        exam = examine(session.policy, session.exam_envs, max(1, config.exam_episodes))
        progress.horizon = max(episode.length for episode in exam)
        progress.untrained = [episode.step_time for episode in exam[: config.exam_episodes]]
        _checkpoint(session, progress, run_folder, identity)
    begun = started - progress.seconds
    saved = progress.iteration
    reserve = 0.0  # seconds that another iteration and the exam will take
    with MetricsLog(run_folder, progress.iteration) as log:
        while not _spent(config, progress, time.perf_counter() - begun + reserve):
            row = _iterate(session, progress, begun)
            reserve = _reserve(config, row)
            log.write(row)
            on_iteration(row)
            if progress.iteration % config.checkpoint_every == 0:
                _checkpoint(session, progress, run_folder, identity)
                saved = progress.iteration
    if saved != progress.iteration:
        _checkpoint(session, progress, run_folder, identity)
    return _result(session, progress, begun)


def _reserve(config: TrainingConfig, row: Row) -> float:
    """Seconds of another iteration and of the exam, at the pace of the iteration in `row`."""
    an_episode = row["charts/sample_seconds"] / config.ppo.batch_episodes
    exam = 2 * config.exam_episodes * an_episode  # the policy, and the look-ahead alone
    return row["charts/sample_seconds"] + row["charts/learn_seconds"] + exam


def _spent(config: TrainingConfig, progress: Progress, seconds: float) -> bool:
    """Whether a limit is reached, or would be by going on."""
    out_of_time = config.budget_s is not None and seconds >= config.budget_s
    return out_of_time or (config.max_steps is not None and progress.env_steps >= config.max_steps)


def _iterate(session: PPOSession, progress: Progress, begun: float) -> Row:
    """Sample and learn once; brings `progress` forward."""
    start = time.perf_counter()
    batch, ended = session.sample(progress.horizon)
    sampled = time.perf_counter()
    steps = sum(len(episode) for episode in batch)
    progress.iteration += 1
    progress.env_steps += steps
    progress.episodes += len(ended)
    cut = [len(episode) for episode in batch if not episode.is_done]
    progress.horizon = longer_horizon(progress.horizon, [e.length for e in ended], cut)
    learned = session.learn(batch, progress.env_steps)
    now = time.perf_counter()
    progress.seconds = now - begun
    _note_best(progress, session.archive.best, progress.seconds)
    feasible = [episode.step_time for episode in ended if episode.feasible]
    return {
        "iteration": progress.iteration,
        "charts/env_steps": progress.env_steps,
        "charts/episodes": progress.episodes,
        "charts/seconds": progress.seconds,
        "charts/SPS": steps / (now - start),
        "charts/sample_seconds": sampled - start,
        "charts/learn_seconds": now - sampled,
        "charts/episodic_return": _mean([e.total_reward for e in ended]),
        "charts/episodic_length": _mean([e.length for e in ended]),
        "charts/feasible_share": _mean([e.feasible for e in ended]),
        "charts/step_time_s_mean": _mean(feasible),
        "charts/step_time_s_min": min(feasible, default=float("nan")),
        "charts/step_time_s_best": progress.best_step_time,
        "charts/learning_rate": learned["default_optimizer_learning_rate"],
        "charts/entropy_coefficient": learned["curr_entropy_coeff"],
        "losses/policy_loss": learned["policy_loss"],
        "losses/value_loss": learned["vf_loss"],
        "losses/total_loss": learned["total_loss"],
        "losses/entropy": learned["entropy"],
        "losses/kl": learned["mean_kl_loss"],
        "losses/explained_variance": learned["vf_explained_var"],
        "losses/gradient_norm": learned[GRADIENT_NORM_METRIC],
    }


def longer_horizon(horizon: int, ended: Sequence[int], cut: Sequence[int]) -> int:
    """Decisions per episode of the next batch, from the lengths of ended and cut episodes.

    The longest episode met; twice as much as before when one was cut at the horizon itself.
    """
    reached = any(length >= horizon for length in cut)
    return max([2 * horizon if reached else horizon, *ended])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _note_best(progress: Progress, best: Record | None, seconds: float) -> None:
    """Keep the best feasible plan seen."""
    if best is not None and best.step_time < progress.best_step_time:
        progress.best_step_time = best.step_time
        progress.best_placement = best.placement.tolist()
        progress.trajectory.append((seconds, best.step_time))


def _checkpoint(
    session: PPOSession, progress: Progress, run_folder: Path, identity: dict[str, Any]
) -> None:
    progress.episodes_started = [env.episodes_started for env in session.envs]
    progress.records = [
        (env.fastest, None if held is None else (held.step_time, held.placement.tolist()))
        for env, held in zip(session.envs, session.archive.records, strict=True)
    ]
    restore.save(run_folder, progress, session.policy, session.optimizer, identity)


def _result(session: PPOSession, progress: Progress, begun: float) -> TrainingResult:
    """The best of everything, and what the final policy does alone."""
    episodes = session.config.exam_episodes
    trained = examine(session.policy, session.exam_envs, episodes)
    look_ahead = examine(follow_look_ahead, session.exam_envs, episodes)
    best = progress.best_placement
    return TrainingResult(
        best_placement=None if best is None else np.array(best, dtype=np.int64),
        best_step_time=progress.best_step_time,
        untrained=tuple(progress.untrained),
        trained=tuple(episode.step_time for episode in trained),
        look_ahead=tuple(episode.step_time for episode in look_ahead),
        iterations=progress.iteration,
        env_steps=progress.env_steps,
        episodes=progress.episodes,
        seconds=time.perf_counter() - begun,
        trajectory=list(progress.trajectory),
        policy=session.policy,
    )
