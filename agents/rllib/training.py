"""PPO as a task of the trainer: a step is one iteration, a score one evaluation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
import torch
from scipy.stats import gmean
from torch import Tensor

from agents.rllib.algorithm import CHARTS, LockStepPPO, algorithm, loss_columns
from agents.rllib.config import BudgetGuard, Training
from agents.rllib.task import Array, Numbers, RLTask, Solution, better, restored, saved
from agents.rllib.vector import Evaluation
from envs.errors import InputError
from models.architecture import Policy

_IDENTITY = (  # what a resumed run keeps
    "model", "parameters", "ppo", "cloning", "seed", "curriculum_steps", "evaluation_episodes",
    "evaluation_give_up",
)  # fmt: skip
INF = float("inf")


class PPOTask:
    """`experiments.learning.trainer.Task` of an `RLTask`.

    Attributes:
        reference: objectives of the evaluation's episodes under the reference policy; () without.
        outcomes: those under the policies, in the last evaluation; inf: failed.
        best: the best decisions met in training.
    """

    def __init__(self, built: LockStepPPO) -> None:
        self.algorithm, self.training = built, built.training
        guard = BudgetGuard(self.training.budget_s)
        self.evaluation = Evaluation(built.task, self.training.evaluation_episodes, guard)
        self.reference: tuple[float, ...] = ()
        self.first: tuple[float, ...] = ()  # outcomes, before training
        self.outcomes: tuple[float, ...] = ()
        self.best: Solution | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run has in common with the one that was begun."""
        chosen = asdict(self.training)
        runners = self.training.learner.num_env_runners
        return {**{name: chosen[name] for name in _IDENTITY}, "num_env_runners": runners}

    @property
    def columns(self) -> list[str]:
        """Of the metrics of a step."""
        metrics = [f"charts/{name}" for name in self.algorithm.task.metrics]
        return [*CHARTS, *metrics, *loss_columns({name: {} for name in self.algorithm.modules})]

    @property
    def steps(self) -> int:
        """Of environments, so far."""
        return self.algorithm.counters.steps

    @property
    def policies(self) -> dict[str, Policy]:
        """As they are now, by module."""
        return {name: module.policy for name, module in self.algorithm.modules.items()}

    def begin(self) -> None:
        """Play the reference policy, where there is one."""
        reference = self.algorithm.task.reference
        if reference is not None:
            played = self.evaluation.of(None, expert=reference)
            self.reference = tuple(one.objective for one in played)
            if not np.isfinite(self.reference).any():
                raise InputError("fails in every episode of the evaluation", field="reference")

    def step(self) -> dict[str, float]:
        """Sample and learn once."""
        self.algorithm.training_step()
        self.best = better(self.best, self.algorithm.best)
        best = INF if self.best is None else self.best.objective
        return {"charts/best_objective": best, **self.algorithm.row}

    def score(self) -> float:
        """Evaluate the policies: geometric mean of the objectives over the reference's."""
        limits = [self.training.evaluation_give_up * by for by in self._yardstick()]
        given = limits if self.reference else None
        played = self.evaluation.of(self.algorithm.modules, given)
        self.outcomes = tuple(one.objective for one in played)
        if not self.first:
            self.first = self.outcomes
            self.algorithm.counters.horizon = max(one.length for one in played)
        return float(gmean(np.array(self.outcomes) / self._yardstick()))

    def weights(self) -> Mapping[str, Tensor]:
        """Of the policies, as `<module>/<parameter>`."""
        return self.algorithm.tensors()["weights"]

    def state(self) -> tuple[Numbers, dict[str, Mapping[str, Tensor]]]:
        """What training needs to go on: plain numbers, and arrays by file and name."""
        sampling, episodes = self.algorithm.sampling_state()
        numbers = {
            "sampling": sampling,
            "reference": self.reference,
            "first": self.first,
            "outcomes": self.outcomes,
            "best": saved(self.best),
        }
        return numbers, {**self.algorithm.tensors(), "episodes": episodes}

    def load(self, numbers: Numbers, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from what `state` gave."""
        self.reference, self.first = tuple(numbers["reference"]), tuple(numbers["first"])
        self.outcomes, self.best = tuple(numbers["outcomes"]), restored(numbers["best"])
        self.algorithm.restore_run(numbers["sampling"], files.get("episodes", {}), files)

    def _yardstick(self) -> Array:
        """What outcomes are divided by: the reference's, or the mean of the first evaluation's.

        Where the reference fails, the geometric mean of its other outcomes.
        """
        known = np.array(self.reference or self.first or [INF])
        finite = known[np.isfinite(known)]
        mean = float(gmean(finite)) if len(finite) else 1.0
        if not self.reference:
            return np.full(self.training.evaluation_episodes, mean)
        return np.where(np.isfinite(known), known, mean)


@contextmanager
def ppo_task(training: Training, task: RLTask) -> Iterator[PPOTask]:
    """A task, its actors and what it needs of torch and Ray, for as long as it is trained.

    Raises:
        InputError: as `agents.rllib.algorithm.algorithm`.
    """
    for name in ("ray.rllib", "ray.tune", "ray._common.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)
    threads, connected = torch.get_num_threads(), ray.is_initialized()
    torch.set_num_threads(training.torch_threads)
    try:
        built = algorithm(training, task)
        try:
            yield PPOTask(built)
        finally:
            built.stop()
    finally:
        torch.set_num_threads(threads)
        if ray.is_initialized() and not connected:
            ray.shutdown()
