"""The training loop: sample, learn, record, checkpoint; go on after a kill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from agents.rllib import restore
from agents.rllib.archive import Found, Record
from agents.rllib.config import TrainingConfig
from agents.rllib.decisions import follow_look_ahead
from agents.rllib.exam import examine
from agents.rllib.metrics import LOSSES, MetricsLog, Row, columns, loss_column
from agents.rllib.restore import Progress
from agents.rllib.session import EnvFactory, PPOSession, as_lists
from agents.rllib.tasks import PlacementTask, Task
from agents.rllib.warm_start import WarmStart
from envs.errors import InputError
from models.architecture import Policy

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
