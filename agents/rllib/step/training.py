"""The training loop: sample, learn, record, checkpoint; go on after a kill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from torch import nn

from agents.rllib import restore
from agents.rllib.learner import GRADIENT_NORM_METRIC
from agents.rllib.metrics import ITERATION, MetricsLog, Row
from agents.rllib.module import PolicyModule
from agents.rllib.step.config import TrainingConfig, rllib_config
from agents.rllib.step.decisions import Act, examine, follow_look_ahead, greedy
from agents.rllib.step.environment import (
    Archive,
    EndedEpisode,
    EpisodeKeeper,
    Record,
    TrainingEnv,
    WarmStart,
)
from agents.rllib.step.runner import Episode, Runner
from agents.rllib.step.tasks import Found, PlacementTask, Task
from envs.errors import InputError
from models.architecture import Policy

CHARTS = (
    ITERATION,
    "charts/env_steps",  # decisions so far
    "charts/episodes",  # so far
    "charts/seconds",  # wall clock spent training so far
    "charts/SPS",  # decisions per second, this iteration, learning included
    "charts/sample_seconds",  # of this iteration
    "charts/learn_seconds",  # of this iteration
    "charts/episodic_return",  # mean over this iteration's episodes
    "charts/episodic_length",  # mean, decisions
    "charts/feasible_share",  # of this iteration's episodes
    "charts/step_time_s_mean",  # of this iteration's feasible episodes; nan without any
    "charts/step_time_s_min",  # of this iteration's feasible episodes; nan without any
    "charts/step_time_s_best",  # best plan so far, simulated on every operator; inf without any
    "charts/learning_rate",
    "charts/entropy_coefficient",
)
LOSSES = {  # column -> RLlib's name; all of the last minibatch of the iteration
    "policy_loss": "policy_loss",
    "value_loss": "vf_loss",
    "total_loss": "total_loss",
    "entropy": "entropy",  # nats
    "kl": "mean_kl_loss",  # from the sampling policy, nats
    "explained_variance": "vf_explained_var",
    "gradient_norm": GRADIENT_NORM_METRIC,  # before clipping
}


def loss_column(module: str, name: str, modules: int) -> str:
    """The column of a loss; with several modules it says whose."""
    return f"losses/{name}" if modules == 1 else f"losses/{module}/{name}"


def columns(modules: Sequence[str]) -> tuple[str, ...]:
    """The columns of a run with these modules, in order."""
    losses = (loss_column(module, name, len(modules)) for module in modules for name in LOSSES)
    return (*CHARTS, *losses)


@dataclass
class Progress:
    iteration: int = 0
    env_steps: int = 0
    episodes: int = 0
    horizon: int = 1  # decisions of the longest episode met
    seconds: float = 0.0  # wall clock spent training
    best_step_time: float = float("inf")  # seconds, of feasible plans
    best_plan: dict[str, list[Any]] | None = None  # the arrays of its decisions
    untrained: list[float] = field(default_factory=list)  # exam of the first policy, seconds
    trajectory: list[tuple[float, float]] = field(default_factory=list)  # (seconds, best so far)
    episodes_started: list[int] = field(default_factory=list)  # per environment: its seed counter
    # per environment: fastest plan offered, and its record (step time, plan)
    records: list[tuple[float, tuple[float, dict[str, list[Any]]] | None]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        self.trajectory = [(seconds, best) for seconds, best in self.trajectory]


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


OnIteration = Callable[[Row], None]
IDENTITY = ("model", "ppo", "seed", "restart_share", "kick", "draws")  # what a resumed run keeps


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What a run found and learned. Step times in seconds, simulated on every operator."""

    best_plan: Found | None  # arrays of the best feasible seen anywhere, None without any
    best_step_time: float  # inf without any
    untrained: tuple[float, ...]  # exam of the policy before training, see `exam.examine`
    trained: tuple[float, ...]  # the same episodes after it
    look_ahead: tuple[float, ...]  # the same by the look-ahead alone; () where there is none
    iterations: int
    env_steps: int
    episodes: int
    seconds: float  # wall clock of training and decoding, all sessions of the run together
    trajectory: list[tuple[float, float]]  # (seconds since the start, best step time so far)
    policies: Mapping[str, Policy]  # by module


def train(
    config: TrainingConfig,
    env_factory: EnvFactory,
    run_folder: Path,
    on_iteration: OnIteration = lambda row: None,
    *,
    resume: bool = False,
    task: Task | None = None,
    warm_start: WarmStart | None = None,
) -> TrainingResult:
    """Train policies on the environment of `env_factory` until the budget is spent.

    All episodes are on one problem, so that their step times compare.

    Args:
        config: the run.
        env_factory: makes the environment.
        run_folder: receives `metrics.csv`, `tensorboard/` and `checkpoints/`.
        on_iteration: called with each iteration's metrics, when they are on the disk.
        resume: go on from the last checkpoint in `run_folder`; the budget counts from the start
            of the run.
        task: what the environment is about; placement unless it is said.
        warm_start: a plan to go on from, whose seconds are part of the budget; None: from nothing.
            A resumed run has the same.

    Raises:
        InputError: `run_folder` holds a run already and `resume` is not set, or there is nothing
            (or something else) to resume.
    """
    if not resume and restore.has_checkpoint(run_folder):
        raise InputError("holds a run already: resume it, or take another folder", file=run_folder)
    started = time.perf_counter()
    logging.getLogger("ray._common.deprecation").setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.torch_threads)
    try:
        with restore.seeded_generators(config.seed):
            session = PPOSession(config, env_factory, task or PlacementTask(config.kick))
            return _train(session, started, run_folder, on_iteration, resume, warm_start)
    finally:
        torch.set_num_threads(threads)


def _train(
    session: PPOSession,
    started: float,
    run_folder: Path,
    on_iteration: OnIteration,
    resume: bool,
    warm_start: WarmStart | None,
) -> TrainingResult:
    config = session.config
    chosen = asdict(config)
    identity = {name: chosen[name] for name in IDENTITY}
    identity["warm_start"] = None if warm_start is None else warm_start.identity
    progress = Progress()
    if resume:
        progress = session.restore(run_folder, identity)
    else:
        if warm_start is not None:
            session.archive.offer(0, warm_start.record)
            progress.seconds = warm_start.seconds
            _note_best(progress, warm_start.record, warm_start.seconds)
        episodes = max(1, config.exam_episodes)
        exam = examine(session.act, session.exam_envs, episodes, session.task)
        progress.horizon = max(episode.length for episode in exam)
        progress.untrained = [episode.step_time for episode in exam[: config.exam_episodes]]
        session.save(progress, run_folder, identity)
    begun = started - progress.seconds
    saved = progress.iteration
    reserve = 0.0  # seconds that another iteration and the exam will take
    with MetricsLog(run_folder, progress.iteration, columns(list(session.modules))) as log:
        while not _spent(config, progress, time.perf_counter() - begun + reserve):
            row = _iterate(session, progress, begun)
            reserve = _reserve(config, row)
            log.write(row)
            on_iteration(row)
            if progress.iteration % config.checkpoint_every == 0:
                session.save(progress, run_folder, identity)
                saved = progress.iteration
    if saved != progress.iteration:
        session.save(progress, run_folder, identity)
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
        **losses(learned),
    }


def losses(learned: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The learner's metrics as columns; with several modules each has its own losses."""
    first = next(iter(learned.values()))
    row = {
        "charts/learning_rate": first["default_optimizer_learning_rate"],
        "charts/entropy_coefficient": first["curr_entropy_coeff"],
    }
    for module, values in learned.items():
        for name, key in LOSSES.items():
            row[loss_column(module, name, len(learned))] = values[key]
    return row


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
        progress.best_plan = as_lists(best)
        progress.trajectory.append((seconds, best.step_time))


def _result(session: PPOSession, progress: Progress, begun: float) -> TrainingResult:
    """The best of everything, and what the final policy does alone."""
    episodes, task = session.config.exam_episodes, session.task
    trained = examine(session.act, session.exam_envs, episodes, task)
    rule = follow_look_ahead(task)
    look_ahead = examine(rule, session.exam_envs, episodes, task) if task.looks_ahead else []
    best = progress.best_plan
    return TrainingResult(
        best_plan=None if best is None else {name: np.array(x) for name, x in best.items()},
        best_step_time=progress.best_step_time,
        untrained=tuple(progress.untrained),
        trained=tuple(episode.step_time for episode in trained),
        look_ahead=tuple(episode.step_time for episode in look_ahead),
        iterations=progress.iteration,
        env_steps=progress.env_steps,
        episodes=progress.episodes,
        seconds=time.perf_counter() - begun,
        trajectory=list(progress.trajectory),
        policies=session.policies,
    )
