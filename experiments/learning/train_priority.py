"""Seek what counts for a job beside its Gittins index, by replays of training windows.

python -m experiments.train task=priority agent.priority.path=<folder of task=durations>/durations

The folder `checkpoint` in the run folder is the plan with the weights of the best evaluation and
the posterior of durations that they were sought with: `agent=checkpoint` replays with it,
`experiments.serve` asks it. The file `priority.json` is what `expert.priority.weights=...` takes,
and `agent=migrating_learned agent.priority.weights=...` likewise. With MESHWRIGHT_DATA unset:
splits.itp.data=<folder> splits.philly.data=<folder>.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.cluster.migrating.learned_priority import NAMES, LearnedPriority
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.weight_search import WeightSearch, WeightSearchConfig
from agents.rllib import restore
from envs.arrays import FloatArray
from envs.bounds import Count
from experiments.cluster.problem import built_policy
from experiments.cluster.split_windows import (
    SampledWindows,
    Source,
    Split,
    inputs_of,
    sampled_window,
    sources,
)
from experiments.config.targets import build_as, no_such_thing
from experiments.learning.exporting import CHECKPOINT_FOLDER, export_migrating
from experiments.learning.trainer import Files, Rounds, Row, Task
from experiments.learning.training import WindowsConfig, begun, run_rounds
from experiments.pictures.learning import draw_search
from experiments.reporting.tables import Table, markdown_table, write_tables
from experiments.run.artifacts import to_json, write_figure, write_text
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable, stamp
from experiments.run.statistics import Interval, bootstrap
from experiments.run.threads import one_thread_each
from models.artifacts import sha256_of
from models.durations.bins import SPEC_FILE


class Request(NamedTuple):
    """A part of a window of the splits, which its seed draws, and the weights to replay it with."""

    window: str
    seed: tuple[int, ...]
    weights: FloatArray  # (R, D) by `priority_features.NAMES`


Replays = Callable[[Sequence[Request]], list[FloatArray]]  # for each (R,) mean JCTs, in seconds


@dataclass(frozen=True, eq=False)
class Replayer:
    """Replays requests under an agent, a config node of a policy with a learned priority.

    Attributes:
        agent: it.
        found: what parts are drawn of, by window.
        parts: how they are.
    """

    agent: Mapping[str, Any]
    found: Mapping[str, Sequence[Source]]
    parts: SampledWindows

    def __call__(self, request: Request) -> FloatArray:
        """(R,) mean JCTs, in seconds."""
        rng = np.random.default_rng(request.seed)
        _, problem = sampled_window(self.found[request.window], self.parts, rng)
        policies = [built_policy(weighted(self.agent, row), "agent") for row in request.weights]
        return np.array([problem.replay(policy).jct.mean() for policy in policies])


def weighted(agent: Mapping[str, Any], weights: FloatArray) -> dict[str, Any]:
    """The config node of a policy with other weights."""
    named = dict(zip(NAMES, weights.tolist(), strict=True))
    return {**agent, "priority": {**agent["priority"], "weights": named}}


@contextmanager
def replays(replayer: Replayer, workers: int) -> Iterator[Replays]:
    """By so many processes; one is this one."""
    if workers == 1:
        yield lambda requests: list(map(replayer, requests))
        return
    context = multiprocessing.get_context("spawn")
    with one_thread_each(), ProcessPoolExecutor(workers, context) as pool:
        # equal shares: what parts are drawn of travels once to each process
        yield lambda requests: list(
            pool.map(replayer, requests, chunksize=-(-len(requests) // workers))
        )


WEIGHTS_FILE, PICTURE_FILE = "priority.json", "search.png"

SEARCH, EVALUATION = 0, 1  # second word of the seed of a part

WIDTH = 100  # columns of the tables where the console is none

CAPTION = (
    "What is added to the log Gittins index of a job, before and after. Evaluations: mean JCT on "
    "parts of later windows / that of the weights before, mean over parts, 95 % bootstrap interval."
)


@dataclass(kw_only=True)
class TrainPriorityConfig(WindowsConfig):
    """`conf/task/priority.yaml`; groups are objects by `_target_`."""

    model: Any
    agent: Any
    parts: SampledWindows
    evaluation_parts: Count = 24  # of an evaluation
    evaluate_every: Count = 5  # rounds
    samples: Count = 2000  # of the bootstrap over the parts of an evaluation
    workers: Count = 2  # processes; what is found does not depend on their number


class WeightTask(Task):
    """A step is a round of a search for weights.

    Args:
        config: of the command.
        settings: of the search.
        start: (D,) weights to begin with.
        replay: plays requests.
    """

    columns: Sequence[str] = ("search/slope",)
    identity: Mapping[str, Any] = {}
    steps = 0
    outcomes: Sequence[float] = ()  # of the last score: of every part

    def __init__(
        self,
        config: TrainPriorityConfig,
        settings: WeightSearchConfig,
        start: FloatArray,
        replay: Replays,
    ) -> None:
        self.config, self.search, self.replay = config, WeightSearch(settings, start), replay
        chosen = asdict(config.parts), config.evaluation_parts, config.agent
        self.identity = {"search": asdict(settings), "seed": config.seed, "chosen": chosen}
        self.start = start
        self.ratios: list[tuple[int, Interval]] = []  # by round, of every evaluation

    def begin(self) -> None:
        """Play the parts of evaluations with the weights before."""
        self.before = self._evaluated(self.start)

    def step(self) -> Row:
        """Try weights on either side of those of now, and go down the slope."""
        config, number = self.config, self.steps
        offsets = self.search.offsets(np.random.default_rng((config.seed, SEARCH, number)))
        requests = [
            Request(
                config.window,
                (config.seed, SEARCH, number, pair),
                self.search.weights + np.stack([offset, -offset]),
            )
            for pair, offset in enumerate(offsets)
        ]
        above, below = np.log(np.stack(self.replay(requests))).T
        self.search.learn(offsets, above, below)
        self.steps += 1
        return {"search/slope": float(np.linalg.norm(self.search.slope()))}

    def score(self) -> float:
        """Mean JCT on parts of later windows / that of the weights before, mean over parts."""
        weights, config = self.search.weights, self.config
        same = np.array_equal(weights, self.start)
        ratios = (self.before if same else self._evaluated(weights)) / self.before
        self.outcomes = ratios.ravel().tolist()
        found = Interval(1.0, 1.0, 1.0) if same else bootstrap(ratios, config.samples, config.seed)
        self.ratios.append((self.steps, found))
        return found.mean

    def weights(self) -> Mapping[str, Tensor]:
        return {"weights": torch.from_numpy(self.search.weights.copy())}

    def state(self) -> tuple[dict[str, Any], Files]:
        numbers = {
            "search": self.search.state(),
            "steps": self.steps,
            "before": self.before.tolist(),
            "ratios": [(number, *asdict(ratio).values()) for number, ratio in self.ratios],
        }
        return numbers, {}

    def load(self, numbers: dict[str, Any], files: Files) -> None:
        self.search.load(numbers["search"])
        self.steps, self.before = numbers["steps"], np.array(numbers["before"])
        self.ratios = [(number, Interval(*ratio)) for number, *ratio in numbers["ratios"]]

    def _evaluated(self, weights: FloatArray) -> FloatArray:
        """(parts, 1) mean JCTs on the parts of the evaluation."""
        config = self.config
        requests = [
            Request(config.evaluation_window, (config.seed, EVALUATION, part), weights[None])
            for part in range(config.evaluation_parts)
        ]
        return np.stack(self.replay(requests))


def train_priority(config: TrainPriorityConfig, run: Run) -> Result:
    """Search, evaluate, save the best, draw."""
    config, tracking = begun(config, run)
    settings = build_as(WeightSearchConfig, config.model, "model", "search for weights")
    start = start_of(config.agent)
    posterior = sha256_of(Path(config.agent["priority"]["path"]) / SPEC_FILE)
    provenance = run.provenance.with_inputs(**inputs_of(config.splits), durations=posterior)
    splits = [Split(one) for one in config.splits.values()]
    windows = (config.window, config.evaluation_window)
    replayer = Replayer(
        config.agent, {x: sources(splits, x, config.parts) for x in windows}, config.parts
    )
    rounds = Rounds(settings.rounds, config.evaluate_every)
    with replays(replayer, config.workers) as replay, ProgressDisplay(run.console) as display:
        task = WeightTask(config, settings, start, replay)
        progress = run_rounds(
            config, tracking, task, rounds, run, display, provenance,
            lambda row: f"mean JCT / before {task.ratios[-1][1].text()}", "search",
        )  # fmt: skip
    weights = restore.best_weights(run.folder)["weights"].numpy()
    best = dict(task.ratios)[progress.best_iteration]
    before, found = (dict(zip(NAMES, row.tolist(), strict=True)) for row in (start, weights))
    document = stamp(
        {"weights": found, "evaluation": vars(best)}, portable(provenance), kind="priority_weights"
    )
    write_text(run.folder / WEIGHTS_FILE, to_json(document))
    rows = [(str(number), ratio.text()) for number, ratio in task.ratios]
    evaluations = Table("Evaluations", ("round", "mean JCT / before"), rows)
    policy = built_policy(weighted(config.agent, weights), "agent")
    assert isinstance(policy, Migrating)
    card = markdown_table(evaluations.columns, evaluations.rows)
    checkpoint = export_migrating(policy, run.folder / CHECKPOINT_FOLDER, card, provenance)
    title = f"What counts for a job: {settings.rounds} rounds of {settings.pairs} pairs of replays"
    numbers, ratios = zip(*task.ratios, strict=True)
    write_figure(
        run.folder / PICTURE_FILE, draw_search(numbers, ratios, before, found, title), provenance
    )
    cells = [(name, f"{before[name]:.2f}", f"{found[name]:.2f}") for name in NAMES]
    tables = [Table("Weights", ("of", "before", "after"), cells), evaluations]
    table_file = write_tables(
        run, "What counts for a job", tables, provenance, caption=CAPTION, width=WIDTH
    )
    values: dict[str, object] = {
        "rounds": settings.rounds,
        "replays": 2 * settings.rounds * settings.pairs,
        "best_round": progress.best_iteration,
        "evaluation": best.mean,
        "evaluation_low": best.low,
        "evaluation_high": best.high,
        "found": found,
        "weights": str(run.folder / WEIGHTS_FILE),
        "checkpoint": str(checkpoint),
        "table": table_file,
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": progress.seconds,
    }
    return Result(values, provenance, [key for key in values if key != "found"])


def start_of(agent: Mapping[str, Any]) -> FloatArray:
    """(D,) the weights of a policy.

    Raises:
        InputError: it has none.
    """
    policy = built_policy(agent, "agent")
    if not isinstance(policy, Migrating) or not isinstance(policy.priority, LearnedPriority):
        raise no_such_thing("agent", agent, "policy with a learned priority")
    return np.array([policy.priority.weights[name] for name in NAMES])
