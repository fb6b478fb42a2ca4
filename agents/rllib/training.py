"""The training loop: sample, learn, examine, record, checkpoint; go on after a kill."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from scipy.stats import gmean

from agents.rllib import restore
from agents.rllib.algorithm import LockStepPPO, algorithm
from agents.rllib.config import Patience, Training
from agents.rllib.metrics import ITERATION, NAN, MetricsLog, Row, TensorBoard, Tracking, columns
from agents.rllib.module import PolicyModule
from agents.rllib.runner import Seats, forced, masks_of, most_probable, within
from agents.rllib.subject import Array, ArrayMemory, Solution, Subject
from envs.arrays import IntArray
from envs.compilation import clock
from envs.errors import InputError, in_one_line
from models.architecture import Policy

OnIteration = Callable[[Row], None]

IDENTITY = (  # what a resumed run keeps
    "model", "parameters", "ppo", "cloning", "seed", "curriculum_steps", "exam_every",
    "exam_episodes", "exam_give_up",
)  # fmt: skip
INF = float("inf")


@dataclass
class Progress:
    """What a run has come to."""

    iteration: int = 0
    seconds: float = 0.0  # wall clock spent training
    reference: tuple[float, ...] = ()  # outcomes of the exam's episodes; () where there is none
    untrained: tuple[float, ...] = ()  # those of the first policies; inf: failed
    trained: tuple[float, ...] = ()  # those of the last exam
    exams: list[tuple[int, float]] = field(default_factory=list)  # (iteration, score)
    best_score: float = INF
    best_iteration: int = 0
    best_objective: float = INF  # of the decisions met in training
    best_decisions: dict[str, list[Any]] | None = None
    trajectory: list[tuple[float, float]] = field(default_factory=list)  # (seconds, best so far)

    def __post_init__(self) -> None:
        self.reference, self.untrained = tuple(self.reference), tuple(self.untrained)
        self.trained = tuple(self.trained)
        self.exams = [(iteration, score) for iteration, score in self.exams]
        self.trajectory = [(seconds, best) for seconds, best in self.trajectory]

    def note(self, found: Solution | None, seconds: float) -> None:
        """Keep decisions that are better than all before."""
        if found is not None and found.objective < self.best_objective:
            self.best_objective, self.best_decisions = found.objective, found.lists()
            self.trajectory.append((seconds, found.objective))

    @property
    def best(self) -> Solution | None:
        if self.best_decisions is None:
            return None
        return Solution.of(self.best_objective, self.best_decisions)


@dataclass(kw_only=True, eq=False)
class Trained(Progress):
    """What a run found and learned, all its sessions together."""

    policies: Mapping[str, Policy]  # of the best exam, by module
    steps: int
    episodes: int
    warnings: tuple[str, ...] = ()  # what a user is to know

    @property
    def iterations(self) -> int:
        return self.iteration


class Examined(NamedTuple):
    """One episode."""

    outcome: float
    length: int  # steps


class Exam:
    """Episodes 0, 1, ... stepped together; episode k starts at `reset(seed=k)`.

    Args:
        subject: makes their environments; a curriculum is at its end.
        episodes: how many.
        patience: with making their environments.
    """

    def __init__(self, subject: Subject, episodes: int, patience: Patience | None = None) -> None:
        self.lanes = []
        for number in range(episodes):
            if patience is not None:
                patience.check("exam_episodes", number, episodes)
            self.lanes.append(subject.exam_lane(number))
        self.seats = Seats(subject, self.lanes, 1)
        self.agents = len(subject.agents)

    def of_policies(
        self,
        modules: Mapping[str, PolicyModule] | None,
        limits: Sequence[float] | None = None,
        adviser: Any = None,
    ) -> list[Examined]:
        """The most probable actions, or what an adviser does, if there is one.

        An episode whose outcome exceeds its limit is given up.
        """
        for number, lane in enumerate(self.lanes):
            lane.reset(number, 1.0, adviser)
            lane.observe(0)
        lengths = [0] * len(self.lanes)
        found: dict[int, Examined] = {}
        running = list(range(len(self.lanes)))
        while running:
            actions = self._actions(running, modules)
            for number in list(running):
                lane = self.lanes[number]
                step = lane.step(actions[number])
                lengths[number] += 1
                if step.terminated or step.truncated:
                    found[number] = Examined(lane.outcome(), lengths[number])
                elif limits is not None and lane.at_least() > limits[number]:
                    found[number] = Examined(INF, lengths[number])
                else:
                    lane.observe(0)
                    continue
                running.remove(number)
        return [found[number] for number in range(len(self.lanes))]

    def _actions(
        self, running: Sequence[int], modules: Mapping[str, PolicyModule] | None
    ) -> dict[int, list[Any]]:
        """One action of every agent of the lanes that run."""
        actions: dict[int, list[Any]] = {n: [None] * self.agents for n in running}
        for name, memory in self.seats.memories.items():
            seats = self.seats.of_row[name]
            rows = [row for row, (lane, _) in enumerate(seats) if lane in actions]
            places = [seats[row] for row in rows]
            made: Iterable[Any] = (
                [self.lanes[lane].advice(agent) for lane, agent in places]
                if modules is None
                else _decided(modules[name], memory, np.array(rows, np.int64))
            )
            for (lane, agent), action in zip(places, made, strict=True):
                actions[lane][agent] = action
        return actions


def _decided(module: PolicyModule, memory: ArrayMemory, numbers: IntArray) -> Array:
    """The most probable actions; nobody is asked where only one is allowed."""
    masks = masks_of(module, memory)
    if masks is None:
        return within(module.action_space, most_probable(module, memory.at(0, numbers)))
    actions, choice = forced(module, masks[0, numbers])
    if choice.any():
        actions[choice] = most_probable(module, memory.at(0, numbers[choice]))
    return actions


def train(
    training: Training,
    subject: Subject,
    run_folder: Path,
    on_iteration: OnIteration = lambda row: None,
    *,
    resume: bool = False,
    tracking: Tracking | None = None,
) -> Trained:
    """Train policies until the budget is spent and so many iterations as are wanted are done.

    The budget counts neither what comes before the first iteration nor the compilation of kernels.

    Args:
        training: the run.
        subject: what is learned about.
        run_folder: receives `metrics.csv`, `checkpoints/` and, the policies of the best exam and
            of the first one, `best/` and `untrained/`.
        on_iteration: called with each iteration's metrics, when they are on the disk.
        resume: go on from the last checkpoint in `run_folder`; the budget counts from the start of
            the run.
        tracking: where metrics go beside `metrics.csv`; None: `tensorboard/` in `run_folder`.

    Raises:
        InputError: `run_folder` holds a run already and `resume` is not set, there is nothing (or
            something else) to resume, or the config asks for what is not there.
    """
    if not resume and restore.has_checkpoint(run_folder):
        raise InputError("holds a run already: resume it, or take another folder", file=run_folder)
    for name in ("ray.rllib", "ray.tune", "ray._common.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)
    threads, connected = torch.get_num_threads(), ray.is_initialized()
    torch.set_num_threads(training.torch_threads)
    try:
        built = algorithm(training, subject)
        try:
            run = _Run(built, run_folder, tracking or TensorBoard())
            return run.train(on_iteration, resume)
        finally:
            built.stop()
    finally:
        torch.set_num_threads(threads)
        if ray.is_initialized() and not connected:
            ray.shutdown()


class _Run:
    def __init__(self, built: LockStepPPO, folder: Path, tracking: Tracking) -> None:
        self.algorithm, self.training, self.folder = built, built.training, folder
        self.tracking = tracking
        patience = Patience(self.training.budget_s)
        self.exam = Exam(built.subject, self.training.exam_episodes, patience)
        self.progress = Progress()
        self.exam_seconds = 0.0
        chosen = asdict(self.training)
        self.identity = {
            **{name: chosen[name] for name in IDENTITY},
            "num_env_runners": self.training.learner.num_env_runners,
        }

    def train(self, on_iteration: OnIteration, resume: bool) -> Trained:
        """Until the budget is spent."""
        if resume:
            self._resume()
        else:
            self._begin()
            self._save()
        progress, training = self.progress, self.training
        begun = clock() - progress.seconds
        saved = first = progress.iteration
        reserve = 0.0  # seconds that another iteration and the last exam will take
        names = columns(self.algorithm.subject.charts, list(self.algorithm.modules))
        with MetricsLog(self.folder, progress.iteration, names, self.tracking) as log:
            while not self._spent(clock() - begun + reserve):
                start = clock()
                row = self._iterate(begun)
                reserve = clock() - start
                if training.exam_every is None:
                    reserve += self.exam_seconds
                log.write(row)
                on_iteration(row)
                if progress.iteration % training.checkpoint_every == 0:
                    self._save()
                    saved = progress.iteration
        if saved != progress.iteration:
            self._save()
        if progress.exams[-1][0] != progress.iteration:
            self._examine()
        policies = self.algorithm.policies()
        restore.load_best(self.folder, policies)
        return Trained(
            **{**vars(progress), "seconds": clock() - begun},
            policies=policies,
            steps=self.algorithm.counters.steps,
            episodes=self.algorithm.counters.episodes,
            warnings=(self._over(),) if resume and progress.iteration == first else (),
        )

    def _begin(self) -> None:
        """The first exam, of the reference and of what has learned nothing."""
        reference = self.algorithm.subject.reference
        if reference is not None:
            found = self.exam.of_policies(None, adviser=reference)
            self.progress.reference = tuple(one.outcome for one in found)
            if not np.isfinite(self.progress.reference).any():
                raise InputError("fails in every episode of the exam", field="reference")
        self.algorithm.counters.horizon = max(one.length for one in self._examine())

    def _resume(self) -> None:
        state, files = restore.restore(self.folder, self.identity)
        path = self.folder / "checkpoints"
        try:
            self.progress = Progress(**state["progress"])
            self.algorithm.restore_learning(files)
            self.algorithm.restore_sampling(state["sampling"], files.get("episodes", {}))
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            message = in_one_line(error)
            raise InputError(f"is not what a run writes ({message})", file=path) from error

    def _save(self) -> None:
        sampling, episodes = self.algorithm.document()
        state = {"progress": asdict(self.progress), "sampling": sampling}
        files = {**self.algorithm.tensors(), "episodes": episodes}
        restore.save(self.folder, self.progress.iteration, state, files, self.identity)

    def _spent(self, seconds: float) -> bool:
        """Whether a limit is reached, or would be by going on."""
        budget_s, most = self.training.budget_s, self.training.max_steps
        enough = self.progress.iteration >= self.training.min_iterations
        if enough and budget_s is not None and seconds >= budget_s:
            return True
        return most is not None and self.algorithm.counters.steps >= most

    def _over(self) -> str:
        """Of a run that was resumed with nothing left to do."""
        budget_s, most = self.training.budget_s, self.training.max_steps
        key, spent = "budget_s", f"the budget of {budget_s} s is spent"
        if most is not None and self.algorithm.counters.steps >= most:
            key, spent = "max_steps", f"{most} steps are done"
        return f"nothing more was trained, {spent}: give training.{key}=..., which is the total"

    def _iterate(self, begun: float) -> Row:
        """Sample and learn once, and examine where it is time to."""
        progress, every = self.progress, self.training.exam_every
        self.algorithm.training_step()
        progress.iteration = self.algorithm.counters.iteration
        progress.note(self.algorithm.best, clock() - begun)
        examined = every is not None and progress.iteration % every == 0
        if examined:
            self._examine()
        progress.seconds = clock() - begun
        return {
            ITERATION: progress.iteration,
            "charts/seconds": progress.seconds,
            "charts/best_objective": progress.best_objective,
            "exam/score": progress.exams[-1][1] if examined else NAN,
            "exam/outcome": float(np.mean(progress.trained)) if examined else NAN,
            "exam/best_score": progress.best_score,
            **self.algorithm.row,
        }

    def _examine(self) -> list[Examined]:
        """Examine the policies, and keep the best so far; while none has finished, the last."""
        start, progress = clock(), self.progress
        limits = [self.training.exam_give_up * by for by in self._yardstick()]
        given = limits if progress.reference else None
        found = self.exam.of_policies(self.algorithm.modules, given)
        progress.trained = tuple(one.outcome for one in found)
        first = not progress.untrained
        if first:
            progress.untrained = progress.trained
        reached = float(gmean(np.array(progress.trained) / self._yardstick()))
        progress.exams.append((progress.iteration, reached))
        better = reached < progress.best_score or not np.isfinite(progress.best_score)
        if better:
            progress.best_score, progress.best_iteration = reached, progress.iteration
        for which in ([restore.UNTRAINED] if first else []) + ([restore.BEST] if better else []):
            score = {
                "score": reached,
                "outcomes": progress.trained,
                "iteration": progress.iteration,
                "steps": self.algorithm.counters.steps,
            }
            weights = self.algorithm.tensors()[restore.WEIGHTS]
            restore.save_best(self.folder, weights, score, which)
        self.exam_seconds = clock() - start
        return found

    def _yardstick(self) -> Array:
        """What outcomes are divided by: the reference's, or the geometric mean of the first exam's.

        Where the reference fails, that of its other outcomes.
        """
        known = np.array(self.progress.reference or self.progress.untrained or [INF])
        finite = known[np.isfinite(known)]
        mean = float(gmean(finite)) if len(finite) else 1.0
        if not self.progress.reference:
            return np.full(self.training.exam_episodes, mean)
        return np.where(np.isfinite(known), known, mean)
