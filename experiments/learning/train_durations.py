"""Train the network that foretells how much work jobs still need, and judge it on later jobs.

python -m experiments.train model=durations

The folder `durations` in the run folder is what `agent=migrating_learned agent.priority.path=...`
takes. With MESHWRIGHT_DATA unset: splits.itp.data=<folder> splits.philly.data=<folder>.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from envs.errors import InputError
from experiments.cluster.problem import Player, built_policy
from experiments.cluster.sampled_windows import Source, check_windows, inputs_of, sources
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.learning.duration_rows import Rows, SamplingConfig, replayed
from experiments.learning.duration_scores import Marginal, Scores, predicted
from experiments.pictures.learning import draw_reliability
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_figure, write_sidecar, write_text
from experiments.run.provenance import Provenance, portable
from experiments.run.statistics import Interval, bootstrap
from experiments.run.tables import TABLE_FILE, Table, write_tables
from experiments.run.targets import build, no_such_thing
from models.durations.network import DurationConfig, fit, save_durations

DURATIONS, METRICS_FILE = "durations", "metrics.csv"
PICTURE_FILE = "reliability.png"
NETWORK, ALL_JOBS, GANG = "network", "all jobs", "jobs of the gang size"
TRAINING, EXAM = 0, 1  # second word of the seed of a part
WIDTH = 100  # columns of the tables where the console is none
CAPTION = (
    "Cross entropy, in nats, of the work that jobs still need at random instants, in 26 bins from "
    "30 s to 60 days. Beside the network: the durations of the training jobs, all or those of the "
    "gang size, that are longer than the work already done. Ratio: to the latter, mean over parts "
    "with its 95 % bootstrap interval. Held: by central intervals of the given level."
)


@dataclass
class EvaluationConfig:
    """How it is judged."""

    smoothing: float
    levels: list[float]
    samples: int

    def __post_init__(self) -> None:
        where = "config key 'evaluation."
        if not 0.0 < self.smoothing < np.inf:
            raise InputError(f"{where}smoothing': {self.smoothing} is not positive and finite")
        if not self.levels or not all(0.0 < level < 1.0 for level in self.levels):
            raise InputError(f"{where}levels': are no shares between 0 and 1")
        if self.samples < 1:
            raise InputError(f"{where}samples': {self.samples} is below 1")


@dataclass
class TrainDurationsConfig:
    """`conf/train_durations.yaml`; groups are objects by `_target_`."""

    model: Any
    splits: dict[str, SplitConfig]
    window: str
    exam_window: str
    sampling: SamplingConfig
    policy: Any
    evaluation: EvaluationConfig
    threads: int
    seed: int
    json: bool

    def __post_init__(self) -> None:
        check_windows(self.splits, self.window, self.exam_window)
        if self.threads < 1:
            raise InputError(f"config key 'threads': {self.threads} is not above 0")


def train_durations(config: TrainDurationsConfig, run: Run) -> Result:
    """Replay, fit, save, compare, draw."""
    start = time.perf_counter()
    fitting = build(config.model, "model")
    if not isinstance(fitting, DurationConfig):
        raise no_such_thing("model", config.model, "model of durations")
    torch.set_num_threads(config.threads)
    splits = [Split(chosen) for chosen in config.splits.values()]
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    found = sources(splits, config.window, config.sampling)
    later = sources(splits, config.exam_window, config.sampling)
    rows = rows_of(found, config, fitting.history, TRAINING, run)
    exam = rows_of(later, config, fitting.history, EXAM, run)
    posterior, losses = fit(fitting, rows.features, rows.remaining_s, config.seed)
    run.console.print(f"fitted, {time.perf_counter() - start:.0f} s so far", highlight=False)
    save_durations(posterior, run.folder / DURATIONS, portable(provenance).document())
    told = "".join(f"{epoch},{loss:.6f}\n" for epoch, loss in enumerate(losses, start=1))
    write_text(run.folder / METRICS_FILE, f"epoch,cross_entropy\n{told}")
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    marginal = Marginal(
        np.concatenate([source.jobs.duration_s for source in found]),
        np.concatenate([source.jobs.num_gpus for source in found]),
        config.evaluation.smoothing,
    )
    scores = [
        Scores.of(method, chance, exam.remaining_s)
        for method, chance in (
            (NETWORK, predicted(posterior, exam.features)),
            (ALL_JOBS, marginal.given_done(exam.done_s)),
            (GANG, marginal.given_gang(exam.done_s, exam.gpus)),
        )
    ]
    ratios = [ratio(method, scores[-1], exam, config) for method in scores]
    by_trace = losses_by_trace(scores, exam)
    write_table(scores, ratios, by_trace, config.evaluation.levels, run, provenance)
    title = f"Work left of jobs of the {config.exam_window} windows"
    write_figure(run.folder / PICTURE_FILE, draw_reliability(scores, by_trace, title), provenance)
    methods = [
        {
            "method": method.method,
            "cross_entropy": float(method.loss.mean()),
            "ratio": vars(interval),
            "held": {f"{level:g}": method.held(level) for level in config.evaluation.levels},
        }
        for method, interval in zip(scores, ratios, strict=True)
    ]
    values: dict[str, object] = {
        "rows": len(rows.features),
        "exam_rows": len(exam.features),
        "cross_entropy": float(scores[0].loss.mean()),
        "cross_entropy_of_gang_size": float(scores[-1].loss.mean()),
        "ratio": ratios[0].mean,
        "methods": methods,
        "by_trace": {
            name: dict(zip((s.method for s in scores), row, strict=True))
            for name, row in by_trace.items()
        },
        "durations": str(run.folder / DURATIONS),
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": time.perf_counter() - start,
    }
    shown = [key for key in values if key not in ("methods", "by_trace")]
    return Result(values, provenance, shown)


def rows_of(
    found: Sequence[Source], config: TrainDurationsConfig, history: int, purpose: int, run: Run
) -> Rows:
    """The rows of all parts for one purpose, TRAINING or EXAM.

    Raises:
        InputError: there are none, or the config has no policy of that kind.
    """
    sampling, began = config.sampling, time.perf_counter()
    policy = built_policy(config.policy, "policy")
    if isinstance(policy, Player):
        raise no_such_thing("policy", config.policy, "policy that decides at events")
    parts = sampling.windows if purpose == TRAINING else sampling.exam_windows
    seeds = [(config.seed, purpose, part) for part in range(parts)]
    rows = replayed(found, sampling, policy, history, seeds)
    if not len(rows.features):
        raise InputError("config key 'sampling.instants': no job was written down")
    told = f"{len(rows.features):,} rows of {parts} replays"
    run.console.print(f"{told}, {time.perf_counter() - began:.0f} s", highlight=False)
    return rows


def ratio(method: Scores, other: Scores, rows: Rows, config: TrainDurationsConfig) -> Interval:
    """Of the losses of two methods, over parts."""
    ratios = method.by_part(rows.part) / other.by_part(rows.part)
    return bootstrap(ratios[:, None], config.evaluation.samples, config.seed)


def losses_by_trace(scores: Sequence[Scores], rows: Rows) -> dict[str, list[float]]:
    """By the name of the trace, the mean loss of each method."""
    names = np.array(rows.names)[rows.part]
    return {
        str(name): [float(method.loss[names == name].mean()) for method in scores]
        for name in np.unique(names)
    }


def write_table(
    scores: Sequence[Scores],
    ratios: Sequence[Interval],
    by_trace: dict[str, list[float]],
    levels: Sequence[float],
    run: Run,
    provenance: Provenance,
) -> None:
    """Print the tables and write them as Markdown."""
    heads = ("method", "cross entropy", "ratio", *(f"{level:.0%} held" for level in levels))
    cells = [
        (
            method.method,
            f"{method.loss.mean():.3f}",
            interval.text(),
            *(f"{method.held(level):.1%}" for level in levels),
        )
        for method, interval in zip(scores, ratios, strict=True)
    ]
    columns = ("trace", *(method.method for method in scores))
    traces = [(name, *(f"{loss:.3f}" for loss in row)) for name, row in by_trace.items()]
    title = "Work that jobs still need"
    sections = [Table("All traces", heads, cells), Table("By trace", columns, traces)]
    write_tables(run, title, sections, provenance, caption=CAPTION, width=WIDTH)
