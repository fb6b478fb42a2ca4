"""To which cell each job is sent, as a task of the learner: its agents are the schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from agents.cluster.compiled.cells import Cells
from agents.cluster.joint_choice import JointChoice
from agents.rllib.task import RLTask, RunnerEnv, Step
from envs.cluster.simulation.cluster import ClusterSimulator
from models.cluster.cells import CELLS, CONTEXT, NOISE
from models.export.cells import export_cells
from models.export.checkpoint import ModelCard
from models.layout import CONTEXTS, FEATURES

MASK = "action_mask"


class CellWorld(NamedTuple):
    """Where an episode takes place."""

    policy: JointChoice  # starts jobs in the cells; its schedulers have late views of each other
    simulator: ClusterSimulator  # before its first event


class CellsRLTask(RLTask):
    """Schedulers share one policy, and the cost: the mean JCT of all jobs.

    A scheduler decides when a job comes to it, or has waited for long in its queue; meanwhile all
    others have no choice. Time is counted in mean durations of the episode's jobs, and so are
    rewards.

    Args:
        schedulers: S.
        worlds: the episode with a seed, to train in.
        evaluation: the episode with a number, to be evaluated in; there cells are drawn as the
            policy's compiled form draws them.
    """

    metrics: Sequence[str] = ("mean_jct_s",)
    title, unit, measure = "A choice of cells for jobs", "seconds", "mean completion times"

    def __init__(
        self,
        schedulers: int,
        worlds: Callable[[int], CellWorld],
        evaluation: Callable[[int], CellWorld],
    ) -> None:
        self.worlds, self.evaluation = worlds, evaluation
        self.agents: Sequence[str] = [f"scheduler_{number}" for number in range(schedulers)]
        self.space = spaces.Dict({
            CELLS: _box(schedulers, FEATURES), CONTEXT: _box(CONTEXTS), NOISE: _box(schedulers),
            MASK: spaces.MultiBinary(schedulers),
        })  # fmt: skip

    def module_of(self, agent: str) -> str:
        return "scheduler"

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.space, spaces.Discrete(len(self.agents))

    def make_env(self, index: int) -> CellsRunnerEnv:
        return CellsRunnerEnv(self.worlds, sampled=False)

    def make_evaluation_env(self, number: int) -> CellsRunnerEnv:
        return CellsRunnerEnv(self.evaluation, sampled=True)

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        (policy,) = policies.values()
        export_cells(policy, folder, card)


class CellsRunnerEnv(RunnerEnv):
    """An episode from decision to decision.

    Args:
        worlds: the episode with a seed.
        sampled: whether the most probable action of the noisy logits is a draw.
    """

    def __init__(self, worlds: Callable[[int], CellWorld], sampled: bool) -> None:
        self.worlds, self.sampled = worlds, sampled

    @property
    def time(self) -> float:
        return self.world.simulator.now / self._unit_s

    @property
    def cells(self) -> Cells:
        return self.world.policy.cells

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        self.world = self.worlds(seed)
        self._unit_s = float(self.world.simulator.trace.duration_s.mean())
        self.world.policy.reset(self.world.simulator)
        self.world.policy.to_decision(self.world.simulator)

    def observe(self, time: int) -> None:
        cells, me = self.cells, int(self.cells.me[0])
        for agent, (buffer, row) in enumerate(self.rows):
            arrays = buffer.arrays
            if agent != me:
                arrays[MASK][time, row] = 0
                arrays[MASK][time, row, 0] = 1  # no choice
                continue
            arrays[MASK][time, row] = cells.allowed
            arrays[CELLS][time, row] = cells.features
            arrays[CONTEXT][time, row] = cells.context
            if self.sampled:
                arrays[NOISE][time, row] = -np.log(-np.log(cells.drawn))

    def step(self, actions: Sequence[Any]) -> Step:
        before = self.time
        cell = int(actions[int(self.cells.me[0])])
        job, passed_s = self.world.policy.to_decision(self.world.simulator, cell)
        reward = -passed_s / self._unit_s / len(self.world.simulator.trace)
        return Step([reward] * len(actions), self.time - before, job is None, False)

    def objective(self) -> float:
        return float(self.world.simulator.schedule().jct.mean())

    def metrics(self) -> Mapping[str, float]:
        return {"mean_jct_s": self.objective()}


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)
