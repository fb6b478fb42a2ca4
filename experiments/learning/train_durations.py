"""Train the network that foretells how much work jobs still need, and judge it on later jobs.

python -m experiments.train task=durations

The folder `durations` in the run folder is what `agent=migrating_learned agent.priority.path=...`
takes. With MESHWRIGHT_DATA unset: splits.itp.data=<folder> splits.philly.data=<folder>.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Lt, MinLen
from numpy.typing import NDArray
from torch import Tensor

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
from experiments.learning.trainer import Files, Rounds, Row, Task
from experiments.learning.training import WindowsConfig, begun, run_rounds
from experiments.pictures.learning import draw_reliability
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_figure
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import portable
from experiments.run.statistics import bootstrap
from models.durations.bins import DurationConfig
from models.durations.network import DurationFit, save_durations
from models.durations.scores import Marginal, Scores, predicted


@dataclass
class SamplingConfig(SampledWindows):
    """`sampling` in `conf/task/durations.yaml`."""

    KEY: ClassVar[str] = "sampling"
    windows: Count
    evaluation_windows: Count
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


DURATIONS = "durations"

PICTURE_FILE = "reliability.png"

NETWORK, ALL_JOBS, GANG = "network", "all jobs", "jobs of the gang size"

TRAINING, EVALUATION = 0, 1  # second word of the seed of a part

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
    """`conf/task/durations.yaml`; groups are objects by `_target_`."""

    model: Any
    sampling: SamplingConfig
    policy: Any
    evaluation: EvaluationConfig
    threads: Count = 1  # of torch


class DurationTask(Task):
    """A step is one pass over the rows of training.

    Args:
        fitting: the network and how it is fitted.
        rows: of training.
        later: rows that it is judged on.
        seed: of the fit.
    """

    columns: Sequence[str] = ("losses/cross_entropy",)
    identity: Mapping[str, Any] = {}
    steps = 0
    outcomes: Sequence[float] = ()

    def __init__(self, fitting: DurationConfig, rows: Rows, later: Rows, seed: int) -> None:
        self.later = later
        self.fitted = DurationFit(fitting, rows.features, rows.remaining_s, seed)
        self.identity = {"model": asdict(fitting), "seed": seed, "rows": len(rows.features)}

    def step(self) -> Row:
        """One epoch."""
        self.steps += 1
        return {"losses/cross_entropy": self.fitted.epoch()}

    def score(self) -> float:
        """Cross entropy of the work left of later jobs, in nats."""
        chance = predicted(self.fitted.network, self.later.features)
        score = float(Scores.of(NETWORK, chance, self.later.remaining_s).loss.mean())
        self.outcomes = (score,)
        return score

    def weights(self) -> Mapping[str, Tensor]:
        return self.fitted.network.state_dict()

    def state(self) -> tuple[dict[str, Any], Files]:
        numbers, files = self.fitted.state()
        return {"steps": self.steps, "fit": numbers}, files

    def load(self, numbers: dict[str, Any], files: Files) -> None:
        self.steps = numbers["steps"]
        self.fitted.load(numbers["fit"], files)


def train_durations(config: TrainDurationsConfig, run: Run) -> Result:
    """Replay, fit, save, compare, draw."""
    config, tracking = begun(config, run)
    fitting = build_as(DurationConfig, config.model, "model", "model of durations")
    torch.set_num_threads(config.threads)
    splits = [Split(chosen) for chosen in config.splits.values()]
    provenance = run.provenance.with_inputs(**inputs_of(config.splits))
    found = sources(splits, config.window, config.sampling)
    sources_later = sources(splits, config.evaluation_window, config.sampling)
    rows = rows_of(found, config, fitting.history, TRAINING, run)
    later = rows_of(sources_later, config, fitting.history, EVALUATION, run)
    task = DurationTask(fitting, rows, later, config.seed)
    with ProgressDisplay(run.console) as display:
        run_rounds(
            config, tracking, task, Rounds(fitting.epochs), run, display, provenance,
            lambda row: f"cross entropy {row['losses/cross_entropy']:.3f}",
        )  # fmt: skip
    posterior = task.fitted.network
    save_durations(posterior, run.folder / DURATIONS, portable(provenance).document())
    marginal = Marginal(
        np.concatenate([source.jobs.duration_s for source in found]),
        np.concatenate([source.jobs.num_gpus for source in found]),
        config.evaluation.smoothing,
    )
    scores = [
        Scores.of(method, chance, later.remaining_s)
        for method, chance in (
            (NETWORK, predicted(posterior, later.features)),
            (ALL_JOBS, marginal.given_done(later.done_s)),
            (GANG, marginal.given_gang(later.done_s, later.gpus)),
        )
    ]
    of_gang, levels = scores[-1].by_part(later.part), config.evaluation.levels
    samples = config.evaluation.samples
    ratios = [
        bootstrap((one.by_part(later.part) / of_gang)[:, None], samples, config.seed)
        for one in scores
    ]
    names = np.array(later.names)[later.part]
    by_trace = {
        str(name): {one.method: float(one.loss[names == name].mean()) for one in scores}
        for name in np.unique(names)
    }
    methods = [
        {
            "method": one.method,
            "cross_entropy": float(one.loss.mean()),
            "ratio": vars(interval),
            "held": {f"{level:g}": one.held(level) for level in levels},
        }
        for one, interval in zip(scores, ratios, strict=True)
    ]
    cells = [
        (one.method, f"{one.loss.mean():.3f}", interval.text(),
         *(f"{one.held(level):.1%}" for level in levels))
        for one, interval in zip(scores, ratios, strict=True)
    ]  # fmt: skip
    heads = ("method", "cross entropy", "ratio", *(f"{level:.0%} held" for level in levels))
    traces = [(name, *(f"{x:.3f}" for x in losses.values())) for name, losses in by_trace.items()]
    tables = [
        Table("All traces", heads, cells),
        Table("By trace", ("trace", *(one.method for one in scores)), traces),
    ]
    table_file = write_tables(
        run, "Work that jobs still need", tables, provenance, caption=CAPTION, width=WIDTH
    )
    title = f"Work left of jobs of the {config.evaluation_window} windows"
    ranks = {one.method: one.rank for one in scores}
    losses = {name: list(own.values()) for name, own in by_trace.items()}
    write_figure(run.folder / PICTURE_FILE, draw_reliability(ranks, losses, title), provenance)
    values: dict[str, object] = {
        "rows": len(rows.features),
        "evaluation_rows": len(later.features),
        "cross_entropy": float(scores[0].loss.mean()),
        "cross_entropy_of_gang_size": float(scores[-1].loss.mean()),
        "ratio": ratios[0].mean,
        "methods": methods,
        "by_trace": by_trace,
        "durations": str(run.folder / DURATIONS),
        "table": table_file,
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": run.seconds,
    }
    shown = [key for key in values if key not in ("methods", "by_trace")]
    return Result(values, provenance, shown)


def rows_of(
    found: Sequence[Source], config: TrainDurationsConfig, history: int, purpose: int, run: Run
) -> Rows:
    """The rows of all parts for one purpose, TRAINING or EVALUATION.

    Raises:
        InputError: there are none, or the config has no policy of that kind.
    """
    sampling, began = config.sampling, time.perf_counter()
    policy = built_policy(config.policy, "policy")
    if isinstance(policy, Player):
        raise no_such_thing("policy", config.policy, "policy that decides at events")
    parts = sampling.windows if purpose == TRAINING else sampling.evaluation_windows
    seeds = [(config.seed, purpose, part) for part in range(parts)]
    rows = replayed_rows(found, sampling, policy, history, seeds)
    if not len(rows.features):
        raise InputError("config key 'sampling.instants': no job was written down")
    message = f"{len(rows.features):,} rows of {parts} replays"
    run.console.say(f"{message}, {time.perf_counter() - began:.0f} s")
    return rows
