"""Decisions with paired futures as a task of the learner: an episode is one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH, most_pairs
from agents.cluster.joint_choice import JointChoice
from agents.cluster.paired_futures import Decision, PairedFutures
from agents.rllib.task import Array, Numbers, RLTask, RunnerEnv, Step
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from models.export.checkpoint import ModelCard
from models.export.pairs import export_pairs

SCHEDULER = "scheduler"
Worlds = Callable[[np.random.Generator], tuple[PairedFutures, ClusterSimulator]]


@bounded
@dataclass(frozen=True, eq=False)
class DecisionsConfig:
    """What an episode is.

    Args:
        first: pending jobs whose places are candidates.
        nodes: of a scheduler, at most; decisions with more are left out.
        kept: decisions that are met again and again, in each process that samples.
        most: seconds that count of what a candidate saves, as a share of those that the jobs of
            the window take in all, so that no giant outweighs the others.
        sure: standard errors by which the best candidate must save something to be imitated.
        futures: makes of a base who forks its decisions.
    """

    futures: Callable[[JointChoice], PairedFutures]
    first: Count = 8
    nodes: Count = 24
    kept: Count = 4000
    most: Positive = 0.02
    sure: NonNegative = 1.0


class DecisionRLTask(RLTask):
    """The decisions of schedulers that share one policy.

    The reward of a candidate is what it saves, a percent of the seconds that the jobs of its window
    take in all being 1; the reward of what the base does is 0. Schedulers of all numbers are mixed.

    Args:
        config: see there.
        worlds: draws a window to train on, at its start, and who forks its decisions.
        evaluation: the same for those of evaluations.
    """

    agents: Sequence[str] = (SCHEDULER,)
    metrics: Sequence[str] = ("saved_percent_mean", "other_share")
    title, unit = "A policy over pairs of a job and a place", "seconds of all jobs"
    measure = "seconds that windows take after one decision"

    def __init__(self, config: DecisionsConfig, worlds: Worlds, evaluation: Worlds) -> None:
        self.config, self.worlds, self.evaluation = config, worlds, evaluation
        self.teacher = self
        self.kept: dict[int, Question] = {}
        self._seed = 0  # that decisions are drawn from
        self._drawn: Iterator[Question] | None = None
        self._evaluated: list[Question] = []
        self._later: Iterator[Question] | None = None
        most = most_pairs(config.first)
        self.space = spaces.Dict(
            {
                "pair": _box(most, PAIR_WIDTH),
                "node": _box(config.nodes, NODE_WIDTH),
                "edge": _box(most, config.nodes, EDGE_WIDTH),
                "action_mask": spaces.MultiBinary(most),
            }
        )

    def news(self, row: Mapping[str, float]) -> str:
        return (
            f"{row['charts/other_share']:.0%} other than the base's, "
            f"{row['charts/saved_percent_mean']:.4f} % saved by each, "
            f"{row['charts/SPS']:.0f} decisions/s"
        )

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        (policy,) = policies.values()
        export_pairs(policy, folder, card)

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.space, spaces.Discrete(self.space["action_mask"].shape[0])  # type: ignore[index]

    def make_env(self, index: int) -> DecisionRunnerEnv:
        return DecisionRunnerEnv(self, None)

    def make_evaluation_env(self, number: int) -> DecisionRunnerEnv:
        return DecisionRunnerEnv(self, number)

    def state(self) -> Numbers:
        """From which seed decisions are drawn, and under which numbers they are kept."""
        return {"seed": self._seed, "kept": list(self.kept)}

    def load(self, numbers: Numbers) -> None:
        """Draw the same decisions again, which takes as long as it did."""
        self._drawn, self._seed = None, numbers["seed"]
        self.kept = {number: self._next(self._seed) for number in numbers["kept"]}

    def drawn(self, seed: int) -> Question:
        """A decision to train on; the environments of a group ask for it one after another."""
        number = seed % self.config.kept
        if number not in self.kept:
            self.kept[number] = self._next(seed)
        return self.kept[number]

    def evaluated(self, number: int) -> Question:
        """A decision of the evaluation."""
        if self._later is None:
            self._later = self._questions(self.evaluation, 0)
        while len(self._evaluated) <= number:
            self._evaluated.append(next(self._later))
        return self._evaluated[number]

    def _next(self, seed: int) -> Question:
        """The next decision that is drawn; the first one's seed is that of all."""
        if self._drawn is None:
            self._seed, self._drawn = seed, self._questions(self.worlds, seed)
        return next(self._drawn)

    def _questions(self, worlds: Worlds, seed: int) -> Iterator[Question]:
        rng = np.random.default_rng(seed)
        while True:
            futures, simulator = worlds(rng)
            whole = float(np.asarray(simulator.trace.duration_s, np.float64).sum())
            for one in futures.decisions(simulator, rng, self.config.first):
                if len(one.node) <= self.config.nodes:
                    yield Question(one, whole, self.space, self.config)


class Question:
    """One decision as a policy meets it."""

    def __init__(
        self, one: Decision, whole_s: float, space: spaces.Dict, config: DecisionsConfig
    ) -> None:
        saved = np.clip(100.0 * one.saved / whole_s, -100.0 * config.most, 100.0 * config.most)
        self.saved = saved.mean(axis=0)
        error = saved.std(axis=0, ddof=1) / len(saved) ** 0.5 if len(saved) > 1 else 0.0
        self.best = int(np.argmax(self.saved - config.sure * error))
        self._one, self._space = one, space

    @property
    def observation(self) -> Mapping[str, Array]:
        """Padded."""
        seen = {name: np.zeros(box.shape or (), box.dtype) for name, box in self._space.items()}
        count, nodes = self._one.edge.shape[:2]
        seen["pair"][:count], seen["node"][:nodes] = self._one.pair, self._one.node
        seen["edge"][:count, :nodes], seen["action_mask"][:count] = self._one.edge, 1
        return seen


class DecisionRunnerEnv(RunnerEnv):
    """A decision is drawn, a candidate taken, the episode over.

    Args:
        task: whose it is.
        number: of the only decision that it meets, in evaluations; None: whatever is drawn.
    """

    def __init__(self, task: DecisionRLTask, number: int | None) -> None:
        self.task, self.number = task, number

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        task, number = self.task, self.number
        self.question = task.drawn(seed) if number is None else task.evaluated(number)

    def observations(self) -> Sequence[Mapping[str, Array]]:
        return [self.question.observation]

    def step(self, actions: Sequence[Any]) -> Step:
        self.chosen = int(actions[0])
        return Step([float(self.question.saved[self.chosen])], 1.0, True, False)

    def expert_action(self, agent: int) -> int:
        return self.question.best

    def objective(self) -> float:
        """What the window takes, of what it takes with the base's choice."""
        return 1.0 - float(self.question.saved[self.chosen]) / 100.0

    def metrics(self) -> Mapping[str, float]:
        saved = float(self.question.saved[self.chosen])
        return {"saved_percent_mean": saved, "other_share": float(self.chosen > 0)}


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)
