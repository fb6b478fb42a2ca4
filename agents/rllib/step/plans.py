"""Whole plans of problems that are never the same: an episode is one problem, and one action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from agents.placement.labelling import read_dataset
from agents.placement.shipped import placer_folder
from agents.rllib.config import Training
from agents.rllib.task import Array, Numbers, RLTask, RunnerEnv, Solution, Step
from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError
from envs.placement.episodes import Judged, PlanSource, WholeProblem, order_class
from envs.placement.whole import STARTS, WholeLayout
from models.architecture import Policy
from models.export.checkpoint import ModelCard
from models.export.placer import export_placer, trained_placer
from models.step.placer import PlacerConfig, PlacerPolicy

PLANNER = "planner"
NAN = float("nan")


class Question(Protocol):
    """A problem as a policy meets it."""

    @property
    def observation(self) -> Mapping[str, Array]:
        """Every array of the source's `observation_space`."""

    @property
    def expert_action(self) -> Array:
        """(A,) tokens of the expert's plan, -1 where it names none.

        Where nothing is imitated, of a plan to be measured by.
        """

    def judge(self, action: Array) -> Judged:
        """Of the plan that (A,) tokens stand for."""


class Source(Protocol):
    """Where problems come from.

    Attributes:
        observation_space: of every problem, padded.
        action_space: tokens of a plan.
        labelled: whether the expert action of every problem that is drawn is to be imitated.
        measured: whether evaluations are measured by the expert actions.
    """

    observation_space: spaces.Dict
    action_space: spaces.MultiDiscrete
    labelled: bool
    measured: bool

    def draw(self, seed: int, progress: float) -> Question:
        """A problem to train on; `progress` is that of a curriculum, 0 to 1."""

    def evaluation(self, number: int) -> Question:
        """The problem of the evaluation's episode with this number."""

    def state(self) -> Numbers:
        """What later problems depend on, for a checkpoint."""

    def load(self, numbers: Numbers) -> None:
        """Go on from what `state` gave."""


@dataclass(frozen=True)
class Continued:
    """`models.architecture.Architecture`: a policy of whole plans that was trained before.

    Attributes:
        checkpoint: its folder, or the name of a shipped one.
        changed_sweeps: over the groups, instead of its own.

    Raises:
        InputError: by `policy` and `sweeps`: the folder holds none, or is damaged.
    """

    checkpoint: str = "any_step"
    changed_sweeps: Sequence[str] | None = None

    @property
    def sweeps(self) -> Sequence[str]:
        """Over the groups."""
        return self._kept.config.sweeps if self.changed_sweeps is None else self.changed_sweeps

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        config = replace(self._kept.config, sweeps=tuple(self.sweeps))
        fresh = config.policy(observation_space, action_space)
        fresh.load_state_dict(self._kept.state_dict())
        return fresh

    @cached_property
    def _kept(self) -> PlacerPolicy:
        return trained_placer(placer_folder(self.checkpoint))


def sweeps_of(model: Any) -> int:
    """How often `model` decides every group.

    Raises:
        InputError: it makes no whole plans.
    """
    if not isinstance(model, PlacerConfig | Continued):
        message = f"{type(model).__name__} makes no whole plans: take model=placer"
        raise InputError(message, field="model")
    return len(model.sweeps)


class PlanRunnerEnv(RunnerEnv):
    """A problem is drawn, a plan is made, and the episode is over.

    Args:
        task: whose it is.
        number: of the only problem that it meets, in evaluations; None: whatever is drawn.
    """

    def __init__(self, task: PlanRLTask, number: int | None) -> None:
        self.task, self.number = task, number

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        if self.number is None:
            self.question = self.task.drawn(seed, progress)
        elif not hasattr(self, "question"):
            self.question = self.task.source.evaluation(self.number)

    def observations(self) -> Sequence[Mapping[str, Array]]:
        return [self.task.seen(self.question)]

    def step(self, actions: Sequence[Any]) -> Step:
        self.judged = self.question.judge(actions[0])
        if self.judged.device is not None:
            self.task.keep(Solution(self.judged.step_time, {"device": self.judged.device}))
        return Step([self.judged.reward], 1.0, terminated=True, truncated=False)

    def expert_action(self, agent: int) -> Any:
        """(A,) tokens of a plan."""
        return self.question.expert_action

    def objective(self) -> float:
        return self.judged.outcome

    def metrics(self) -> Mapping[str, float]:
        seconds, fits = self.judged.seconds, bool(np.isfinite(self.judged.seconds))
        return {
            "step_time_s_mean": seconds if fits else NAN,
            "ratio_mean": self.judged.ratio if fits else NAN,
            "feasible_share": float(fits),
        }


class PlanRLTask(RLTask):
    """All problems of a source.

    The environments of a group meet the same problem: it is drawn once. The fastest plan of all is
    kept where problems say that they compare.

    Args:
        source: of the problems.
        training: the run.

    Raises:
        InputError: episodes are to go on.
    """

    agents: Sequence[str] = (PLANNER,)
    metrics: Sequence[str] = ("step_time_s_mean", "ratio_mean", "feasible_share")
    title, measure, unit = "A placement policy", "step times", "step time"
    kind = PlanRunnerEnv

    def __init__(self, source: Source, training: Training) -> None:
        if training.ppo.steps is not None:
            message = "a problem is one step: set episodes, and this to null"
            raise InputError(message, field="steps")
        self.source = source
        self.teacher = source if source.labelled else None
        self.reference = source if source.measured else None
        self._last: tuple[tuple[int, float], Question] | None = None
        self._seen: tuple[Question, Mapping[str, Array]] | None = None

    def state(self) -> Numbers:
        return {**super().state(), "source": self.source.state()}

    def load(self, numbers: Numbers) -> None:
        super().load(numbers)
        self.source.load(numbers["source"])

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.source.observation_space, self.source.action_space

    def make_env(self, index: int) -> PlanRunnerEnv:
        return self.kind(self, None)

    def make_evaluation_env(self, number: int) -> PlanRunnerEnv:
        return self.kind(self, number)

    def news(self, row: Mapping[str, float]) -> str:
        return (
            f"{row['charts/ratio_mean']:.3f} times the reference, "
            f"{row['charts/feasible_share']:.0%} fit, {row['charts/SPS']:.0f} plans/s"
        )

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        export_placer(policies[self.module_of(self.agents[0])], folder, card)

    def drawn(self, seed: int, progress: float) -> Question:
        """A problem to train on; the environments of a group ask for it one after another."""
        if self._last is None or self._last[0] != (seed, progress):
            self._last = (seed, progress), self.source.draw(seed, progress)
        return self._last[1]

    def seen(self, question: Question) -> Mapping[str, Array]:
        """What a policy sees of a problem; those of a group ask for it one after another."""
        if self._seen is None or self._seen[0] is not question:
            self._seen = question, question.observation
        return self._seen[1]


@bounded
class LabelledProblems(PlanSource):
    """`agents.rllib.step.plans.Source` of labelled problems; seconds relate to the expert's.

    Evaluations are about the last of them, which are never trained on. There is no curriculum.

    Args:
        folder: of the dataset.
        layout: of observations.
        sweeps: of a plan.
        unfit: nats that a plan costs which does not fit.
        kept_back: problems for evaluations.

    Raises:
        InputError: it is no dataset, or nothing is left to train on; by `draw`: a problem does not
            fit the layout.
    """

    labelled, measured = True, True

    def __init__(
        self,
        folder: str,
        *,
        layout: WholeLayout = WholeLayout(groups=128),
        sweeps: int,
        unfit: NonNegative = 2.0,
        kept_back: Count = 64,
    ) -> None:
        super().__init__(layout, sweeps, unfit)
        self.problems = read_dataset(folder)
        self.trained = len(self.problems) - kept_back
        if self.trained < 1:
            message = f"{kept_back} kept back of {len(self.problems)} labelled problems leave none"
            raise InputError(message, field="kept_back")
        self._known: dict[int, WholeProblem] = {}

    def draw(self, seed: int, progress: float) -> WholeProblem:
        """One to train on."""
        return self._of(seed % self.trained).at(seed // self.trained % STARTS)

    def evaluation(self, number: int) -> WholeProblem:
        """The problem of the evaluation's episode with this number."""
        found = self._of(self.trained + number % (len(self.problems) - self.trained))
        return found.at(number % STARTS)

    def state(self) -> Numbers:
        """Nothing: no problem depends on what came before."""
        return {}

    def load(self, numbers: Numbers) -> None:
        """Nothing to take over."""

    def _of(self, number: int) -> WholeProblem:
        if number in self._known:
            return self._known[number]
        one = self.problems[number]
        found = WholeProblem(number, one.problem, one.fusion, self, one.seconds)
        self._known[number] = found
        found.taught = self.tokens.row(one.device, order_class(one.rule))
        return found
