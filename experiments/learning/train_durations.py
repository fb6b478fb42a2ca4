"""Train the network that foretells how much work jobs still need, and judge it on later jobs.

python -m experiments.train model=durations

The folder `durations` in the run folder is what `agent=migrating_learned agent.priority.path=...`
takes. With MESHWRIGHT_DATA unset: splits.itp.data=<folder> splits.philly.data=<folder>.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Lt, MinLen
from numpy.typing import NDArray

from agents.cluster.hidden_durations import simulator_for
from agents.cluster.policy import Scheduler
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive
from envs.cluster.environment.duration_features import DurationFeatures, width
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.errors import InputError
from experiments.cluster.problem import Player, built_policy
from experiments.cluster.split_windows import (
    SampledWindows,
    Source,
    Split,
    inputs_of,
    sampled_window,
    sources,
)
from experiments.config.targets import build_as, no_such_thing
from experiments.learning.training import WindowsConfig
from experiments.pictures.learning import draw_reliability
from experiments.reporting.tables import TABLE_FILE, Table, write_tables
from experiments.run.artifacts import METRICS_FILE, write_figure, write_sidecar, write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable
from experiments.run.statistics import bootstrap
from models.durations.bins import BINS, DurationConfig, upper_edges_s
from models.durations.network import (
    DurationPosterior,
    fit,
    save_durations,
)


@dataclass
class SamplingConfig(SampledWindows):
    """`sampling` in `conf/train_durations.yaml`."""

    KEY: ClassVar[str] = "sampling"
    windows: Count
    exam_windows: Count
    instants: Positive
    jobs_at_once: Count


@dataclass(frozen=True, eq=False)
class Rows:
    """A jobs at some instants of replays.

    Attributes:
        names: trace of each replay.
        features: (A, width) of `DurationFeatures`.
        remaining_s: (A,) seconds of work left, on the GPU type of the trace.
        done_s: (A,) seconds of work done.
        gpus: (A,) that they ask for.
        part: (A,) replay, from 0.
    """

    names: tuple[str, ...]
    features: NDArray[np.float32]
    remaining_s: FloatArray
    done_s: FloatArray
    gpus: IntArray
    part: IntArray


class Recording(Scheduler):
    """A policy, and what is known of jobs at the events at which it decides, some of them.

    Args:
        policy: decides.
        chance: of an event.
        most: jobs of an event.
        history: K of the rows.
        rng: draws events and jobs.
    """

    name = "recording"
    knows: Knowledge = "durations"  # which it writes down, and keeps from the policy

    def __init__(
        self,
        policy: Scheduler,
        chance: float,
        most: int,
        history: int,
        rng: np.random.Generator,
    ) -> None:
        self.policy, self.chance, self.most = policy, chance, most
        self.history, self.rng = history, rng

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing has been written down."""
        self._seen = simulator_for(self.policy, simulator)
        self.policy.reset(self._seen)
        self._about = DurationFeatures(simulator, self.history)
        self.features = [np.zeros((0, width(self.history)), np.float32)]
        self.jobs: list[IntArray] = [np.zeros(0, np.int64)]
        self.remaining_s: list[FloatArray] = [np.zeros(0)]

    def decide(self, simulator: ClusterSimulator) -> None:
        """Write down, then let the policy decide."""
        if self.rng.random() < self.chance:
            simulator.settle()
            records = simulator.state.jobs
            there = (records["status"] == PENDING) | (records["status"] == RUNNING)
            jobs = self.rng.permutation(np.flatnonzero(there))[: self.most]
            self.features.append(self._about.rows(simulator.state, jobs))
            self.jobs.append(jobs)
            self.remaining_s.append(records["remaining"][jobs])
        self.policy.decide(self._seen)

    def wake(self, simulator: ClusterSimulator) -> float:
        """When the policy wants to."""
        return self.policy.wake(self._seen)


def replayed_rows(
    found: Sequence[Source],
    config: SamplingConfig,
    policy: Scheduler,
    history: int,
    seeds: Sequence[Sequence[int]],
) -> Rows:
    """The rows of one random part for each of the seeds.

    Raises:
        InputError: there is no part, or the policy leaves jobs waiting for ever.
    """
    collected, names = [], []
    for number, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        name, problem = sampled_window(found, config, rng)
        chance = min(config.instants / len(problem.trace), 1.0)
        recording = Recording(policy, chance, config.jobs_at_once, history, rng)
        problem.replay(recording)
        jobs, left = np.concatenate(recording.jobs), np.concatenate(recording.remaining_s)
        done, gpus = problem.trace.duration_s[jobs] - left, problem.trace.num_gpus[jobs]
        features, part = np.concatenate(recording.features), np.full(len(jobs), number)
        collected.append((features, left, done, gpus.astype(np.int64), part))
        names.append(name)
    return Rows(tuple(names), *map(np.concatenate, zip(*collected, strict=True)))


AT_ONCE = 8192  # rows given to the network at a time


@dataclass(frozen=True, eq=False)
class Marginal:
    """The durations of jobs that were seen, whatever is known of the job in question but its work.

    Args:
        duration_s: (J,) of jobs.
        gpus: (J,) that they asked for.
        smoothing: jobs, spread evenly over the bins, counted beside them; for the jobs of a gang
            size, spread as those of all gang sizes are.
    """

    duration_s: NDArray[np.int64]
    gpus: NDArray[np.int32]
    smoothing: float

    def given_done(self, done_s: FloatArray) -> FloatArray:
        """(A, 26) chances of the bins, of the jobs that took longer than `done_s`."""
        return _posterior(self.duration_s, done_s, np.full(BINS, 1.0 / BINS), self.smoothing)

    def given_gang(self, done_s: FloatArray, gpus: NDArray[np.int64]) -> FloatArray:
        """(A, 26) the same, of those that asked for as many GPUs."""
        chance = self.given_done(done_s)
        for size in np.unique(gpus):
            rows = gpus == size
            alike = self.duration_s[self.gpus == size]
            chance[rows] = _posterior(alike, done_s[rows], chance[rows], self.smoothing)
        return chance


def _posterior(
    duration_s: NDArray[np.int64], done_s: FloatArray, prior: FloatArray, smoothing: float
) -> FloatArray:
    """(A, 26) of the jobs that took longer than `done_s`; `prior` counts as `smoothing` jobs."""
    limits = np.append(0.0, upper_edges_s())
    within = np.searchsorted(np.sort(duration_s), done_s[:, None] + limits, side="right")
    last = len(duration_s) - within[:, -1:]
    counts = np.concatenate([np.diff(within, axis=1), last], axis=1)
    counted = counts + smoothing * prior
    chance: FloatArray = counted / counted.sum(axis=1, keepdims=True)
    return chance


def predicted(posterior: DurationPosterior, rows: NDArray[np.float32]) -> FloatArray:
    """(A, 26) chances of the bins by the network."""
    with torch.inference_mode():
        parts = map(posterior, torch.from_numpy(rows).split(AT_ONCE))
        found = [part.double().softmax(dim=1).numpy() for part in parts]  # sums to 1 exactly
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class Scores:
    """One method on A rows.

    Attributes:
        method: its name.
        loss: (A,) negative logarithm of the chance of the bin that was true, in nats.
        rank: (A,) chance that the work left is at most what it was: evenly spread over 0 to 1 if
            the chances are true (Dawid, J. R. Stat. Soc. A 147, 1984).
    """

    method: str
    loss: FloatArray
    rank: FloatArray

    @classmethod
    def of(cls, method: str, chance: FloatArray, remaining_s: FloatArray) -> Scores:
        """Of (A, 26) chances and (A,) seconds that were left.

        Within a bin chances are evenly spread over time; the last bin, which has no end, is taken
        to be as wide, in the logarithm, as the others.
        """
        upper = upper_edges_s()
        upper = np.append(upper, upper[-1] * upper[-1] / upper[-2])
        lower = np.append(0.0, upper[:-1])
        row, true = np.arange(len(chance)), np.searchsorted(upper_edges_s(), remaining_s)
        part = np.minimum((remaining_s - lower[true]) / (upper - lower)[true], 1.0)
        below = np.cumsum(chance, axis=1)[row, true] - chance[row, true]
        return cls(method, -np.log(chance[row, true]), below + part * chance[row, true])

    def held(self, level: float) -> float:
        """The share of the rows inside the central interval that is to hold `level`."""
        return float((np.abs(self.rank - 0.5) <= level / 2.0).mean())

    def by_part(self, part: NDArray[np.int64]) -> FloatArray:
        """(P,) mean loss of each part that has rows."""
        _, which = np.unique(part, return_inverse=True)
        means: FloatArray = np.bincount(which, self.loss) / np.bincount(which)
        return means


DURATIONS = "durations"

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
    smoothing: Positive
    levels: Annotated[list[Annotated[float, Gt(0.0), Lt(1.0)]], MinLen(1)]
    samples: Count


@dataclass(kw_only=True)
class TrainDurationsConfig(WindowsConfig):
    """`conf/train_durations.yaml`; groups are objects by `_target_`."""

    model: Any
    sampling: SamplingConfig
    policy: Any
    evaluation: EvaluationConfig
    threads: Count = 1  # of torch


def train_durations(config: TrainDurationsConfig, run: Run) -> Result:
    """Replay, fit, save, compare, draw."""
    start = time.perf_counter()
    fitting = build_as(DurationConfig, config.model, "model", "model of durations")
    torch.set_num_threads(config.threads)
    splits = [Split(chosen) for chosen in config.splits.values()]
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    found = sources(splits, config.window, config.sampling)
    later = sources(splits, config.exam_window, config.sampling)
    rows = rows_of(found, config, fitting.history, TRAINING, run)
    exam = rows_of(later, config, fitting.history, EXAM, run)
    posterior, losses = fit(fitting, rows.features, rows.remaining_s, config.seed)
    run.console.say(f"fitted, {time.perf_counter() - start:.0f} s so far")
    save_durations(posterior, run.folder / DURATIONS, portable(provenance).document())
    message = "".join(f"{epoch},{loss:.6f}\n" for epoch, loss in enumerate(losses, start=1))
    write_text(run.folder / METRICS_FILE, f"epoch,cross_entropy\n{message}")
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
    of_gang, levels = scores[-1].by_part(exam.part), config.evaluation.levels
    ratios = [
        bootstrap(
            (one.by_part(exam.part) / of_gang)[:, None], config.evaluation.samples, config.seed
        )
        for one in scores
    ]
    names = np.array(exam.names)[exam.part]
    by_trace = {
        str(name): [float(one.loss[names == name].mean()) for one in scores]
        for name in np.unique(names)
    }
    cells = [
        (one.method, f"{one.loss.mean():.3f}", interval.text(),
         *(f"{one.held(level):.1%}" for level in levels))
        for one, interval in zip(scores, ratios, strict=True)
    ]  # fmt: skip
    heads = ("method", "cross entropy", "ratio", *(f"{level:.0%} held" for level in levels))
    traces = [(name, *(f"{loss:.3f}" for loss in row)) for name, row in by_trace.items()]
    sections = [
        Table("All traces", heads, cells),
        Table("By trace", ("trace", *(one.method for one in scores)), traces),
    ]
    write_tables(
        run, "Work that jobs still need", sections, provenance, caption=CAPTION, width=WIDTH
    )
    title = f"Work left of jobs of the {config.exam_window} windows"
    ranks = {method.method: method.rank for method in scores}
    write_figure(run.folder / PICTURE_FILE, draw_reliability(ranks, by_trace, title), provenance)
    methods = [
        {
            "method": method.method,
            "cross_entropy": float(method.loss.mean()),
            "ratio": vars(interval),
            "held": {f"{level:g}": method.held(level) for level in levels},
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
    rows = replayed_rows(found, sampling, policy, history, seeds)
    if not len(rows.features):
        raise InputError("config key 'sampling.instants': no job was written down")
    message = f"{len(rows.features):,} rows of {parts} replays"
    run.console.say(f"{message}, {time.perf_counter() - began:.0f} s")
    return rows
