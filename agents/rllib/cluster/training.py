"""The training loop of schedulers: imitate, sample, learn, examine, record; go on after a kill."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.rllib import restore
from agents.rllib.cluster.config import ClusterTraining
from agents.rllib.cluster.drivers import Agent, asked, greedy
from agents.rllib.cluster.lane import Lane
from agents.rllib.cluster.memory import ObservationMemory
from agents.rllib.cluster.runner import EpisodeEnd, Staged
from agents.rllib.cluster.session import (
    COLUMNS,
    LOSSES,
    ClusterProgress,
    ClusterSession,
    EnvFactory,
)
from agents.rllib.metrics import MetricsLog, Row
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser
from envs.cluster.simulation.cluster_state import NEVER
from envs.errors import InputError
from models.architecture import Policy
from models.artifacts import atomic_folder, check_hashes, hashes_of, read_json_object

LOOKS_EVERY = 64  # steps
Act = Callable[[Mapping[str, Tensor], Sequence[Agent]], NDArray[np.int64]]


@dataclass(frozen=True)
class Examined:
    mean_jct: float  # seconds; inf: given up, or jobs were left over when it was truncated
    decisions: int  # steps


class Exam:
    """Episodes 0, 1, ... of the windows, stepped together; episode k starts at `reset(seed=k)`.

    Args:
        envs: one for every episode; a curriculum is at its end.
    """

    def __init__(self, envs: Sequence[ClusterParallelEnv]) -> None:
        env = envs[0]
        self.lanes = [Lane(env, index) for index, env in enumerate(envs)]
        self._agents = [(lane, s) for lane in self.lanes for s in range(lane.schedulers)]
        space = env.observation_space(env.possible_agents[0])
        self._memory = ObservationMemory(env.observation, space, 1, len(envs) * env.schedulers)

    def of_policy(self, policy: Policy, most_jct: Sequence[float] | None = None) -> list[Examined]:
        """The most probable actions of a policy.

        Args:
            policy: it.
            most_jct: seconds of mean JCT for each window beyond which it is given up: a policy that
                has learned nothing yet takes a hundred times as many steps as one that has.
        """
        return self.play(lambda observations, _: greedy(policy, observations), most_jct=most_jct)

    def of_teacher(self, teacher: Adviser) -> list[Examined]:
        return self.play(lambda _, agents: asked(agents), teacher)

    def play(
        self,
        act: Act,
        teacher: Adviser | None = None,
        most_jct: Sequence[float] | None = None,
    ) -> list[Examined]:
        """One episode of each window; `act` may ask a teacher, `most_jct` as of `of_policy`."""
        for index, lane in enumerate(self.lanes):
            if isinstance(lane.env.generator, Staged):
                lane.env.generator.progress = 1.0
            lane.reset(index, teacher)
            lane.observe(self._memory, 0)
        found: list[Examined | None] = [None] * len(self.lanes)
        running = list(range(len(self.lanes)))
        while running:
            lanes = [self.lanes[index] for index in running]
            masks = self._memory.masks[0]
            actions = masks.argmax(axis=1)
            numbers = np.array(
                [
                    number
                    for lane in lanes
                    for number in range(lane.rows.start, lane.rows.stop)
                    if masks[number].sum(dtype=np.int64) > 1
                ],
                np.int64,
            )
            if len(numbers):
                agents = [self._agents[number] for number in numbers]
                actions[numbers] = act(self._memory.at(0, numbers), agents)
            for index, lane in zip(list(running), lanes, strict=True):
                step = lane.step(actions[lane.rows].tolist(), masks[lane.rows])
                if step.terminated or step.truncated:
                    running.remove(index)
                    found[index] = _examined(lane)
                elif most_jct is not None and _exceeds(lane, most_jct[index]):
                    running.remove(index)
                    found[index] = Examined(float("inf"), lane.decisions)
                else:
                    lane.observe(self._memory, 0)
        return [one for one in found if one is not None]


def _exceeds(lane: Lane, most_jct: float) -> bool:
    """Whether the mean JCT will surely be above, looked up every so many steps."""
    if lane.decisions % LOOKS_EVERY:
        return False
    jobs = lane.episode.simulator.state.jobs
    until = np.where(jobs["finish"] == NEVER, lane.now, jobs["finish"])
    return float(np.maximum(until - jobs["submit"], 0.0).mean()) > most_jct


def _examined(lane: Lane) -> Examined:
    schedule = lane.episode.simulator.schedule()
    whole = bool(schedule.finished.all())
    return Examined(float(schedule.jct.mean()) if whole else float("inf"), lane.decisions)


def score(found: Sequence[Examined], reference: Sequence[float]) -> float:
    """Mean over the windows of the mean JCT / that of the reference, in the same order."""
    return float(np.mean([one.mean_jct / by for one, by in zip(found, reference, strict=True)]))


OnIteration = Callable[[Row], None]
ExamFactory = Callable[[int], ClusterParallelEnv]
IDENTITY = (  # what a resumed run keeps
    "model", "ppo", "cloning", "seed", "curriculum_decisions", "exam_windows", "exam_every",
    "exam_give_up",
)  # fmt: skip
BEST, WEIGHTS_FILE, SCORE_FILE = "best", "weights.safetensors", "score.json"
SCHEMA_VERSION = 1
NOT_MEASURED = float("nan")


@dataclass(frozen=True, eq=False)
class ClusterTrained:
    policy: Policy  # that of the best exam
    best_score: float  # mean JCT / the reference's, mean over the windows of the exam
    best_iteration: int
    exams: tuple[tuple[int, float], ...]  # (iteration, score), the first before any learning
    reference: tuple[float, ...]  # mean JCT of the reference in every window, seconds
    iterations: int
    decisions: int
    episodes: int
    seconds: float  # wall clock, all sessions of the run together


def train_schedulers(
    config: ClusterTraining,
    env_factory: EnvFactory,
    exam_factory: ExamFactory,
    run_folder: Path,
    on_iteration: OnIteration = lambda row: None,
    *,
    teacher: Adviser | None,
    reference: Adviser,
    resume: bool = False,
) -> ClusterTrained:
    """Train one policy for all schedulers until the budget is spent.

    Args:
        config: the run.
        env_factory: makes an environment to train in.
        exam_factory: makes one with the same spaces to be examined in, by the number of the window.
        run_folder: receives `metrics.csv`, `tensorboard/`, `checkpoints/` and `best/`, the policy
            of the best exam.
        on_iteration: called with each iteration's metrics, when they are on the disk.
        teacher: who is imitated first; None: nobody.
        reference: whose mean JCT the exams are measured by.
        resume: go on from the last checkpoint in `run_folder`; the budget counts from the start of
            the run.

    Raises:
        InputError: `run_folder` holds a run already and `resume` is not set, there is nothing (or
            something else) to resume, or the config asks for what is not there.
    """
    if not resume and restore.has_checkpoint(run_folder):
        raise InputError("holds a run already: resume it, or take another folder", file=run_folder)
    started = time.perf_counter()
    logging.getLogger("ray._common.deprecation").setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.torch_threads)
    try:
        with restore.seeded_generators(config.seed):
            session = ClusterSession(config, env_factory, teacher)
            exam = Exam([exam_factory(number) for number in range(config.exam_windows)])
            chosen = asdict(config)
            run = _Run(session, exam, run_folder, {name: chosen[name] for name in IDENTITY})
            return run.train(reference, started, on_iteration, resume=resume)
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Run:
    session: ClusterSession
    exam: Exam
    folder: Path
    identity: dict[str, object]

    def train(
        self, reference: Adviser, started: float, on_iteration: OnIteration, *, resume: bool
    ) -> ClusterTrained:
        """Until the budget is spent."""
        session, config = self.session, self.session.config
        if resume:
            progress = session.restore(self.folder, self.identity)
        else:
            progress = ClusterProgress()
            progress.reference = [one.mean_jct for one in self.exam.of_teacher(reference)]
            if not np.isfinite(progress.reference).all():
                raise InputError("leaves jobs over in the exam's windows", field="reference")
            self.examine(progress)
            session.save(progress, self.folder, self.identity)
        begun = started - progress.seconds
        saved = progress.iteration
        reserve = 0.0  # seconds that another iteration will take
        with MetricsLog(self.folder, progress.iteration, COLUMNS) as log:
            while not _spent(config, progress, time.perf_counter() - begun + reserve):
                start = time.perf_counter()
                row = self.iterate(progress, begun)
                reserve = time.perf_counter() - start
                log.write(row)
                on_iteration(row)
                if progress.iteration % config.checkpoint_every == 0:
                    session.save(progress, self.folder, self.identity)
                    saved = progress.iteration
        if saved != progress.iteration:
            session.save(progress, self.folder, self.identity)
        if progress.exams[-1][0] != progress.iteration:
            self.examine(progress)
        load_best(self.folder, session.policy)
        return ClusterTrained(
            policy=session.policy,
            best_score=progress.best_score,
            best_iteration=progress.best_iteration,
            exams=tuple(progress.exams),
            reference=tuple(progress.reference),
            iterations=progress.iteration,
            decisions=progress.decisions,
            episodes=progress.episodes,
            seconds=time.perf_counter() - begun,
        )

    def iterate(self, progress: ClusterProgress, begun: float) -> Row:
        """Sample and learn once, and examine where it is time to; brings `progress` forward."""
        session, config = self.session, self.session.config
        cloning, stage = session.cloning(progress), session.stage(progress)
        share = config.cloning.share(progress.iteration) if cloning else NOT_MEASURED
        start = time.perf_counter()
        fragment = session.sample(progress)
        sampled = time.perf_counter()
        metrics, made, rate = session.learn(fragment, progress)
        learned = time.perf_counter()
        progress.iteration += 1
        progress.decisions += fragment.decisions
        progress.learned += 0 if cloning else fragment.decisions
        progress.episodes += len(fragment.ended)
        found: Sequence[Examined] = ()
        if progress.iteration % config.exam_every == 0:
            found = self.examine(progress)
        progress.seconds = time.perf_counter() - begun
        return {
            "iteration": progress.iteration,
            "charts/cloning": float(cloning),
            "charts/decisions": progress.decisions,
            "charts/episodes": progress.episodes,
            "charts/seconds": progress.seconds,
            "charts/SPS": fragment.decisions / (learned - start),
            "charts/sample_seconds": sampled - start,
            "charts/learn_seconds": learned - sampled,
            "charts/gradient_steps": made,
            **_of_episodes(fragment.ended),
            "charts/curriculum": stage,
            "charts/pupil_share": share,
            "charts/reward_scale": session.reward_scale.deviation,
            "charts/value_mean": session.value_scale.mean,
            "charts/value_deviation": session.value_scale.deviation,
            "charts/learning_rate": rate,
            "charts/entropy_coefficient": metrics["curr_entropy_coeff"],
            "exam/score": score(found, progress.reference) if found else NOT_MEASURED,
            "exam/mean_jct_s": _mean([one.mean_jct for one in found]),
            "exam/best_score": progress.best_score,
            **{column: metrics.get(name, NOT_MEASURED) for column, name in LOSSES.items()},
        }

    def examine(self, progress: ClusterProgress) -> list[Examined]:
        """Examine the policy, and keep the best so far; while none has finished, the last."""
        most = [self.session.config.exam_give_up * mean_jct for mean_jct in progress.reference]
        found = self.exam.of_policy(self.session.policy, most)
        reached = score(found, progress.reference)
        progress.exams.append((progress.iteration, reached))
        if reached < progress.best_score or not np.isfinite(progress.best_score):
            progress.best_score, progress.best_iteration = reached, progress.iteration
            save_best(self.folder, self.session.policy, progress)
        return found


def save_best(run_folder: Path, policy: Policy, progress: ClusterProgress) -> None:
    """Write the policy to `best/`, whole or not at all."""
    with atomic_folder(run_folder / BEST) as temporary:
        save_file(dict(policy.state_dict()), temporary / WEIGHTS_FILE)
        document = {
            "schema_version": SCHEMA_VERSION,
            "score": progress.best_score,
            "iteration": progress.best_iteration,
            "decisions": progress.decisions,
            "sha256": hashes_of(temporary),
        }
        (temporary / SCORE_FILE).write_text(json.dumps(document), encoding="utf-8")


def load_best(run_folder: Path, policy: Policy) -> None:
    """Give `policy` the weights in `best/`.

    Raises:
        InputError: there are none, they were damaged, or are another policy's.
    """
    folder = run_folder / BEST
    document = read_json_object(folder / SCORE_FILE)
    check_hashes(folder, document["sha256"])
    try:
        policy.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except RuntimeError as error:
        message = " ".join(str(error).split())
        raise InputError(message, file=folder / WEIGHTS_FILE) from error


def _spent(config: ClusterTraining, progress: ClusterProgress, seconds: float) -> bool:
    """Whether a limit is reached, or would be by going on."""
    if config.budget_s is not None and seconds >= config.budget_s:
        return True
    return config.max_decisions is not None and progress.decisions >= config.max_decisions


def _of_episodes(ended: Sequence[EpisodeEnd]) -> Mapping[str, float]:
    jobs = sum(end.jobs for end in ended)
    return {
        "charts/mean_jct_s": _mean([end.mean_jct for end in ended if end.finished]),
        "charts/finished_share": sum(end.finished for end in ended) / jobs
        if jobs
        else float("nan"),
        "charts/episodic_length": _mean([end.decisions for end in ended]),
        "charts/episodic_return": _mean([end.reward for end in ended]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
