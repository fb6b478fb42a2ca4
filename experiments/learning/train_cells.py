"""Train how schedulers choose a cell for a job, where what they know of each other is late.

python -m experiments.train task=cells training.budget_s=300
python -m experiments.train task=evolved_cells budget_s=300
python -m experiments.train task=cells model.hidden=64 'delays=[20.0]'

The folder `checkpoint` in the run folder is what `partitioned.views.choice` takes as
`agents.cluster.cells.LearnedCells`. The table has it beside simple rules, on windows of the
evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import MinLen

from agents.cluster.cells import (
    BySize,
    CellChoice,
    LateViews,
    LearnedCells,
    LeastWork,
    ShortestQueue,
    of_weights,
)
from agents.cluster.joint_choice import JointChoice
from agents.evolution import CmaEs
from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.cluster.regimes import JUDGING, LEARNING, RegimesConfig
from experiments.cluster.split_windows import inputs_of
from experiments.config.composing import plain_config
from experiments.config.targets import build_as, no_such_thing
from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of
from experiments.learning.trainer import Files, Progress, Rounds, Row, Task
from experiments.learning.training import PolicyConfig, WindowsConfig, begun, run_rounds, trained
from experiments.reporting.tables import Table, write_tables
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.statistics import bootstrap

if TYPE_CHECKING:
    from torch import Tensor

    from agents.rllib.cluster.cells import CellWorld
    from models.cluster.cells import CellsPolicy

RULES: Mapping[str, CellChoice] = {
    "in proportion to size": BySize(),
    "JSQ(2)": ShortestQueue(2, speed=True),
    "JSQ(2), own sends": ShortestQueue(2, speed=True, sends="own"),
    "JSQ, own sends": ShortestQueue(None, speed=True, sends="own"),
    "JSQ, all sends": ShortestQueue(None, speed=True, sends="all"),
    "least work": LeastWork(None, sends="none"),
    "least work, own sends": LeastWork(None, sends="own"),
    "least work of 3, all sends": LeastWork(3, sends="all"),
}
CENTRAL = "best offer, seen as it is"  # what a scheduler does who knows everything
CAPTION = (
    "JCT / that of the rule without weights with the least mean, on windows of the evaluation: "
    "mean over them with a 95 % bootstrap interval, and the mean ratio of 99th percentiles."
)


@bounded
@dataclass(frozen=True)
class EvolutionConfig:
    """The weights of the linear rule are evolved by CMA-ES, by replays of training windows.

    Attributes:
        products: the weights of all products of features, and not those of the cells' alone.
        spread: standard deviation of the first generation.
        replays: windows that each of a generation plays, drawn anew for every generation.
    """

    products: bool = False
    spread: Positive = 1.0
    replays: Count = 12


@dataclass(kw_only=True)
class LateWindowsConfig(RegimesConfig, WindowsConfig):
    """What both ways to learn are given."""

    base: Any
    regime: str = "late"  # of known: where jobs come to, with how many schedulers
    # jobs that are submitted between two broadcasts, in the mean; a window has one of them
    delays: Annotated[Sequence[NonNegative], MinLen(1)] = (80.0, 200.0)
    windows: Count = 48
    evaluation_windows: Count = 32
    samples: Count = 2000  # of the bootstrap over windows

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chosen = self.named(self.regime, "regime")


@dataclass(kw_only=True)
class TrainCellsConfig(LateWindowsConfig, PolicyConfig):
    """`conf/task/cells.yaml`; groups are objects by `_target_`."""


@dataclass(kw_only=True)
class EvolveCellsConfig(LateWindowsConfig):
    """`conf/task/evolved_cells.yaml`; groups are objects by `_target_`."""

    search: Any
    budget_s: Positive = 300.0


class Windows:
    """Windows of a regime, in each of which schedulers have views of an age of its own.

    Args:
        config: of the command.
        window: of time.
        purpose: of the windows.
        count: of them.

    Raises:
        InputError: the base is another policy; a split or a window is bad.
    """

    def __init__(self, config: LateWindowsConfig, window: str, purpose: int, count: int) -> None:
        self.node = config.chosen.policy(config.base)
        if not isinstance(built_policy(self.node, "base"), JointChoice):
            raise no_such_thing("base", config.base, "joint_choice")
        self.problems = config.problems(config.chosen, window, purpose, count)
        self.delays = [config.delays[number % len(config.delays)] for number in range(count)]

    def policy(self, number: int, choice: CellChoice | None, seed: int) -> JointChoice:
        """Who decides in a window; without a choice, with everything seen as it is."""
        late = LateViews(choice, seed=seed, delay_jobs=self.delays[number]) if choice else None
        policy = built_policy(self.node, "base")
        assert isinstance(policy, JointChoice)
        policy.partitioned = replace(policy.partitioned, views=late)
        return policy

    def world(self, seed: int, start: CellChoice) -> CellWorld:
        """A window as an episode with a seed; of the choice only its kind counts."""
        from agents.rllib.cluster.cells import CellWorld

        number = seed % len(self.problems)
        one: ClusterProblem = self.problems[number]
        simulator = ClusterSimulator(
            one.cluster, one.trace, rates=one.rates, overheads=one.overheads
        )
        return CellWorld(self.policy(number, start, seed), simulator)

    def jcts(
        self, choice: CellChoice | None, numbers: Sequence[int] | None = None
    ) -> list[FloatArray]:
        """JCTs in some windows, or all."""
        chosen = range(len(self.problems)) if numbers is None else numbers
        return [self.problems[n].replay(self.policy(n, choice, n)).jct for n in chosen]


class EvolutionTask(Task):
    """A step is a generation.

    Args:
        config: of the command.
        settings: of the evolution.
        start: (F, C) weights to begin with.
        windows: to learn from.
        judging: to evaluate on.
    """

    columns: Sequence[str] = ("search/cost",)
    identity: Mapping[str, Any] = {}
    steps = 0
    outcomes: Sequence[float] = ()  # of the last score, by window

    def __init__(
        self,
        config: EvolveCellsConfig,
        settings: EvolutionConfig,
        start: FloatArray,
        windows: Windows,
        judging: Windows,
    ) -> None:
        self.config, self.settings, self.start = config, settings, start
        self.windows, self.judging = windows, judging
        self.search = CmaEs(self._numbers(start), settings.spread)
        chosen = asdict(config.chosen), list(config.delays), config.base
        self.identity = {"search": asdict(settings), "seed": config.seed, "chosen": chosen}

    def begin(self) -> None:
        """Play all windows with the weights before."""
        choice = Weighed(self.start)
        self.before = [float(jct.mean()) for jct in self.windows.jcts(choice)]
        self.judged = [float(jct.mean()) for jct in self.judging.jcts(choice)]

    def step(self) -> Row:
        """Try the weights of a generation on windows that are drawn for it."""
        rng = np.random.default_rng((self.config.seed, self.steps))
        every = len(self.before)
        drawn = rng.choice(every, min(self.settings.replays, every), replace=False).tolist()
        before = np.array(self.before)[drawn]
        costs = np.array([
            np.log([float(jct.mean()) for jct in self.windows.jcts(self._choice(row), drawn)])
            for row in self.search.ask(rng)
        ]) - np.log(before)  # fmt: skip
        self.search.learn(costs.mean(axis=1))
        self.steps += 1
        return {"search/cost": float(costs.mean())}

    def score(self) -> float:
        """Mean JCT / that with the weights before, mean over the windows of the evaluation."""
        found = [float(jct.mean()) for jct in self.judging.jcts(self._choice(self.search.mean))]
        self.outcomes = (np.array(found) / self.judged).tolist()
        return float(np.mean(self.outcomes))

    def weights(self) -> Mapping[str, Tensor]:
        import torch

        return {"weights": torch.from_numpy(self._choice(self.search.mean).weights.copy())}

    def state(self) -> tuple[dict[str, Any], Files]:
        known = {"steps": self.steps, "before": self.before, "judged": self.judged}
        return {"search": self.search.state(), **known}, {}

    def load(self, numbers: dict[str, Any], files: Files) -> None:
        self.search.load(numbers["search"])
        self.steps, self.before, self.judged = (numbers[x] for x in ("steps", "before", "judged"))

    def _numbers(self, weights: FloatArray) -> FloatArray:
        """What is sought of them."""
        return (weights if self.settings.products else weights[:, :1]).ravel()

    def _choice(self, numbers: FloatArray) -> Weighed:
        weights = self.start.copy()
        columns = weights.shape[1] if self.settings.products else 1
        weights[:, :columns] = numbers.reshape(-1, columns)
        return Weighed(weights)


@dataclass(frozen=True, eq=False)
class Weighed:
    """The linear rule with some weights (F, C)."""

    weights: FloatArray

    def compiled(self) -> Any:
        return of_weights({"weights": self.weights})


def train_cells(config: TrainCellsConfig, run: Run) -> Result:
    """Train (on), write the checkpoint, and play the evaluation beside rules without weights."""
    from agents.rllib.cluster.cells import CellsRLTask
    from models.cluster.cells import CellsPolicy

    config, tracking = begun(config, run)
    training = config.training_run()
    windows, judging = windows_of(config)
    start = Weighed(fresh(training.model, config.seed).linear)
    task = CellsRLTask(
        config.chosen.schedulers,
        lambda seed: windows.world(seed, start),
        lambda number: judging.world(number, start),
    )
    with ProgressDisplay(run.console) as display:
        found = trained(config, tracking, training, task, run, display, run.provenance, task.news)
    (policy,) = found.policies.values()
    assert isinstance(policy, CellsPolicy)
    return told(config, run, found, policy, judging, start)


def evolve_cells(config: EvolveCellsConfig, run: Run) -> Result:
    """The same with weights that CMA-ES evolves."""
    import torch

    from agents.rllib.restore import best_weights
    from models.cluster.cells import CellsConfig

    config, tracking = begun(config, run)
    settings = build_as(EvolutionConfig, config.search, "search", "evolution of weights")
    windows, judging = windows_of(config)
    policy = fresh(CellsConfig(), config.seed)
    start = Weighed(policy.linear)
    task = EvolutionTask(config, settings, start.weights, windows, judging)
    rounds = Rounds(10**9, evaluate_every=5, checkpoint_every=5, budget_s=config.budget_s)
    with ProgressDisplay(run.console) as display:
        progress = run_rounds(
            config, tracking, task, rounds, run, display, run.provenance,
            lambda row: f"cost {row['search/cost']:.4f}", "evolution",
        )  # fmt: skip
    with torch.no_grad():
        policy.actor["weights"][:] = best_weights(run.folder)["weights"].float()
    return told(config, run, progress, policy, judging, start)


def windows_of(config: LateWindowsConfig) -> tuple[Windows, Windows]:
    """To learn from, and to evaluate on."""
    return (
        Windows(config, config.window, LEARNING, config.windows),
        Windows(config, config.evaluation_window, JUDGING, config.evaluation_windows),
    )


def fresh(model: Any, seed: int) -> CellsPolicy:
    """A policy before training.

    Raises:
        InputError: the model is another.
    """
    import torch

    from models.cluster.cells import CellsConfig

    if not isinstance(model, CellsConfig):
        reason = f"{type(model).__name__} scores no cells: take model=cells"
        raise InputError(f"config key 'model': {reason}")
    torch.manual_seed(seed)
    return model.fresh()


def told(
    config: LateWindowsConfig,
    run: Run,
    progress: Progress,
    policy: CellsPolicy,
    judging: Windows,
    start: CellChoice,
) -> Result:
    """Write the checkpoint and the table."""
    from models.export.cells import export_cells

    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    card = card_of("A choice of cells for jobs", CAPTION, plain_config(config), provenance)
    checkpoint = run.folder.resolve() / CHECKPOINT_FOLDER
    export_cells(policy, checkpoint, card)
    found = judged(config, judging, {"trained": LearnedCells(checkpoint), "untrained": start})
    table = Table("Choices of a cell", ("choice", "mean JCT", "99th percentile"), found)
    table_file = write_tables(run, "Cells with late views", [table], provenance, caption=CAPTION)
    values: dict[str, object] = {
        "iterations": progress.iteration,
        "seconds": progress.seconds,
        "best_iteration": progress.best_iteration,
        "rows": {name: text for name, text, _ in found},
        "checkpoint": str(checkpoint),
        "table": table_file,
    }
    return Result(values, provenance, ("iterations", "seconds", "rows", "checkpoint", "table"))


def judged(
    config: LateWindowsConfig, judging: Windows, learned: Mapping[str, CellChoice]
) -> list[tuple[str, str, str]]:
    """Rows of the table: of every choice, over the rule without weights that is best."""
    jcts = {name: judging.jcts(choice) for name, choice in {**learned, **RULES}.items()}
    jcts[CENTRAL] = judging.jcts(None)
    mean = {name: np.array([jct.mean() for jct in of]) for name, of in jcts.items()}
    tail = {name: np.array([np.quantile(jct, 0.99) for jct in of]) for name, of in jcts.items()}
    best = min(RULES, key=lambda name: float(np.log(mean[name]).mean()))
    return [
        (
            f"{name} (= 1)" if name == best else name,
            bootstrap((mean[name] / mean[best])[:, None], config.samples, config.seed).text(),
            f"{(tail[name] / tail[best]).mean():.3f}",
        )
        for name in jcts
    ]
