"""Seek what counts for a job beside its Gittins index, by replays of training windows.

python -m experiments.train model=priority agent.priority.path=<folder of model=durations>/durations

The folder `checkpoint` in the run folder is the plan with the weights of the best exam and the
posterior of durations that they were sought with: `agent=checkpoint` replays with it,
`experiments.serve` asks it. The file `priority.json` is what `adviser.priority.weights=...` takes,
and `agent=migrating_learned agent.priority.weights=...` likewise. With MESHWRIGHT_DATA unset:
splits.itp.data=<folder> splits.philly.data=<folder>.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.cluster.migrating.learned_priority import NAMES, LearnedPriority
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.weight_search import WeightSearch, WeightSearchConfig
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
from experiments.learning.training import WindowsConfig
from experiments.pictures.learning import draw_search
from experiments.reporting.tables import TABLE_FILE, Table, markdown_table, write_tables
from experiments.run.artifacts import (
    METRICS_FILE,
    to_json,
    write_figure,
    write_sidecar,
    write_text,
)
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

SEARCH, EXAM = 0, 1  # second word of the seed of a part

WIDTH = 100  # columns of the tables where the console is none

CAPTION = (
    "What is added to the log Gittins index of a job, before and after. Exams: mean JCT on parts "
    "of later windows / that of the weights before, mean over parts, 95 % bootstrap interval."
)


@dataclass(kw_only=True)
class TrainPriorityConfig(WindowsConfig):
    """`conf/train_priority.yaml`; groups are objects by `_target_`."""

    model: Any
    agent: Any
    parts: SampledWindows
    exam_parts: Count = 24  # of an exam
    exam_every: Count = 5  # rounds
    samples: Count = 2000  # of the bootstrap over the parts of an exam
    workers: Count = 2  # processes; what is found does not depend on their number


@dataclass(frozen=True)
class Exam:
    """How weights did on parts of later windows."""

    round: int
    weights: FloatArray  # (D,)
    ratio: Interval  # of mean JCTs, to those of the weights before


def train_priority(config: TrainPriorityConfig, run: Run) -> Result:
    """Search, examine, save the best, draw."""
    began = time.perf_counter()
    settings = build_as(WeightSearchConfig, config.model, "model", "search for weights")
    start = start_of(config.agent)
    posterior = sha256_of(Path(config.agent["priority"]["path"]) / SPEC_FILE)
    provenance = run.provenance.with_inputs(**inputs_of(config.splits), durations=posterior)
    splits = [Split(one) for one in config.splits.values()]
    windows = (config.window, config.exam_window)
    replayer = Replayer(
        config.agent, {x: sources(splits, x, config.parts) for x in windows}, config.parts
    )
    with replays(replayer, config.workers) as replay, ProgressDisplay(run.console) as display:
        exams = searched(config, settings, start, replay, display)
    best = min(exams, key=lambda exam: exam.ratio.mean)
    before, found = (dict(zip(NAMES, row.tolist(), strict=True)) for row in (start, best.weights))
    document = stamp(
        {"weights": found, "exam": vars(best.ratio)}, portable(provenance), kind="priority_weights"
    )
    write_text(run.folder / WEIGHTS_FILE, to_json(document))
    rows = [(str(exam.round), exam.ratio.text()) for exam in exams]
    examined = Table("Exams", ("round", "mean JCT / before"), rows)
    card = markdown_table(examined.columns, examined.rows)
    policy = built_policy(weighted(config.agent, best.weights), "agent")
    assert isinstance(policy, Migrating)
    checkpoint = export_migrating(policy, run.folder / CHECKPOINT_FOLDER, card, provenance)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["round", "ratio", "ratio_low", "ratio_high", *NAMES])
    for exam in exams:
        writer.writerow([exam.round, *vars(exam.ratio).values(), *exam.weights.tolist()])
    write_text(run.folder / METRICS_FILE, out.getvalue())
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    title = f"What counts for a job: {settings.rounds} rounds of {settings.pairs} pairs of replays"
    figure = draw_search(
        [exam.round for exam in exams], [exam.ratio for exam in exams], before, found, title
    )
    write_figure(run.folder / PICTURE_FILE, figure, provenance)
    cells = [(name, f"{before[name]:.2f}", f"{found[name]:.2f}") for name in NAMES]
    sections = [Table("Weights", ("of", "before", "after"), cells), examined]
    write_tables(run, "What counts for a job", sections, provenance, caption=CAPTION, width=WIDTH)
    values: dict[str, object] = {
        "rounds": settings.rounds,
        "replays": 2 * settings.rounds * settings.pairs,
        "best_round": best.round,
        "exam": best.ratio.mean,
        "exam_low": best.ratio.low,
        "exam_high": best.ratio.high,
        "found": found,
        "weights": str(run.folder / WEIGHTS_FILE),
        "checkpoint": str(checkpoint),
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": time.perf_counter() - began,
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


def searched(
    config: TrainPriorityConfig,
    settings: WeightSearchConfig,
    start: FloatArray,
    replay: Replays,
    display: ProgressDisplay,
) -> list[Exam]:
    """Exams before the first round, every so many, and after the last."""
    search, task = WeightSearch(settings, start), display.begin("search", float(settings.rounds))
    exams = [Exam(0, start, Interval(1.0, 1.0, 1.0))]
    before = examined(config, start, replay)
    for number in range(settings.rounds):
        rng = np.random.default_rng((config.seed, SEARCH, number))
        offsets = search.offsets(rng)
        requests = [
            Request(
                config.window,
                (config.seed, SEARCH, number, pair),
                search.weights + np.stack([offset, -offset]),
            )
            for pair, offset in enumerate(offsets)
        ]
        above, below = np.log(np.stack(replay(requests))).T
        search.learn(offsets, above, below)
        if (number + 1) % config.exam_every == 0 or number + 1 == settings.rounds:
            ratios = examined(config, search.weights, replay) / before
            ratio = bootstrap(ratios, config.samples, config.seed)
            exams.append(Exam(number + 1, search.weights, ratio))
        display.update(task, number + 1.0, f"mean JCT / before {exams[-1].ratio.text()}")
    display.end(task, f"best {min(exam.ratio.mean for exam in exams):.3f}")
    return exams


def examined(config: TrainPriorityConfig, weights: FloatArray, replay: Replays) -> FloatArray:
    """(parts, 1) mean JCTs on the parts of the exam."""
    requests = [
        Request(config.exam_window, (config.seed, EXAM, part), weights[None])
        for part in range(config.exam_parts)
    ]
    return np.stack(replay(requests))
