"""Seek what counts for a job beside its Gittins index, by replays of training windows.

python -m experiments.train model=priority agent.priority.path=<folder of model=durations>/durations

The file `priority.json` in the run folder is what `adviser.priority.weights=...` takes, beside the
posterior of durations that it was sought with, and `agent=migrating_learned
agent.priority.weights=...` likewise. With MESHWRIGHT_DATA unset: splits.itp.data=<folder>
splits.philly.data=<folder>.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.cluster.migrating.learned_priority import LearnedPriority
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priority_features import NAMES
from agents.cluster.migrating.weight_search import WeightSearch, WeightSearchConfig
from envs.errors import InputError
from experiments.cluster.problem import built_policy
from experiments.cluster.sampled_windows import SampledWindows, check_windows, inputs_of
from experiments.cluster.split_windows import SplitConfig
from experiments.learning.priority_replays import Replayer, Replays, Request, replays
from experiments.pictures.learning import draw_search
from experiments.run.app import Result, Run
from experiments.run.artifacts import to_json, write_figure, write_sidecar, write_text
from experiments.run.display import ProgressDisplay
from experiments.run.provenance import portable, stamp
from experiments.run.statistics import Interval, bootstrap
from experiments.run.tables import TABLE_FILE, Table, write_tables
from experiments.run.targets import build, no_such_thing
from models.artifacts import sha256_of
from models.durations.network import SPEC_FILE

FloatArray = NDArray[np.float64]
WEIGHTS_FILE, METRICS_FILE, PICTURE_FILE = "priority.json", "metrics.csv", "search.png"
SEARCH, EXAM = 0, 1  # second word of the seed of a part
WIDTH = 100  # columns of the tables where the console is none
CAPTION = (
    "What is added to the log Gittins index of a job, before and after. Exams: mean JCT on parts "
    "of later windows / that of the weights before, mean over parts, 95 % bootstrap interval."
)


@dataclass
class TrainPriorityConfig:
    """`conf/train_priority.yaml`; groups are objects by `_target_`."""

    model: Any
    agent: Any
    splits: dict[str, SplitConfig]
    window: str
    exam_window: str
    parts: SampledWindows
    exam_parts: int
    exam_every: int
    samples: int
    workers: int
    seed: int
    json: bool

    def __post_init__(self) -> None:
        check_windows(self.splits, self.window, self.exam_window)
        for key in ("exam_parts", "exam_every", "samples", "workers"):
            if getattr(self, key) < 1:
                raise InputError(f"config key '{key}': {getattr(self, key)} is below 1")


@dataclass(frozen=True)
class Exam:
    """How weights did on parts of later windows."""

    round: int
    weights: FloatArray  # (D,)
    ratio: Interval  # of mean JCTs, to those of the weights before


def train_priority(config: TrainPriorityConfig, run: Run) -> Result:
    """Search, examine, save the best, draw."""
    began = time.perf_counter()
    settings = build(config.model, "model")
    if not isinstance(settings, WeightSearchConfig):
        raise no_such_thing("model", config.model, "search for weights")
    start = start_of(config.agent)
    posterior = sha256_of(Path(config.agent["priority"]["path"]) / SPEC_FILE)
    provenance = run.provenance.with_inputs(**inputs_of(config.splits), durations=posterior)
    replayer = Replayer(
        config.agent,
        list(config.splits.values()),
        (config.window, config.exam_window),
        config.parts,
    )
    with replays(replayer, config.workers) as replay, ProgressDisplay(run.console) as display:
        exams = searched(config, settings, start, replay, display)
    best = min(exams, key=lambda exam: exam.ratio.mean)
    before, found = (dict(zip(NAMES, row.tolist(), strict=True)) for row in (start, best.weights))
    document = stamp(
        {"weights": found, "exam": vars(best.ratio)}, portable(provenance), kind="priority_weights"
    )
    write_text(run.folder / WEIGHTS_FILE, to_json(document))
    write_text(run.folder / METRICS_FILE, metrics(exams))
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    title = f"What counts for a job: {settings.rounds} rounds of {settings.pairs} pairs of replays"
    figure = draw_search(
        [exam.round for exam in exams], [exam.ratio for exam in exams], before, found, title
    )
    write_figure(run.folder / PICTURE_FILE, figure, provenance)
    cells = [(name, f"{before[name]:.2f}", f"{found[name]:.2f}") for name in NAMES]
    examined = [(str(exam.round), exam.ratio.text()) for exam in exams]
    sections = [
        Table("Weights", ("of", "before", "after"), cells),
        Table("Exams", ("round", "mean JCT / before"), examined),
    ]
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


def metrics(exams: Sequence[Exam]) -> str:
    """A row for every exam."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["round", "ratio", "ratio_low", "ratio_high", *NAMES])
    for exam in exams:
        ratio = exam.ratio
        writer.writerow([exam.round, ratio.mean, ratio.low, ratio.high, *exam.weights.tolist()])
    return out.getvalue()
