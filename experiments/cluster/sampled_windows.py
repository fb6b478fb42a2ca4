"""Windows sampled from splits: consecutive jobs, on random clusters, at random loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from envs.bounds import Count, Positive
from envs.cluster.workload.slicing import at_most_gpus, stretch
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.cluster.problem import ClusterProblem
from experiments.cluster.split_windows import Split, SplitConfig, reference_load

TRIES = 100  # draws of a part before a window counts as one without parts


@dataclass
class SampledWindows:
    """How windows are sampled: `parts` in `conf/train_priority.yaml`."""

    KEY: ClassVar[str] = "parts"  # of the config
    jobs: Sequence[Count]
    least_jobs: int
    nodes_per_type: Sequence[Count]
    load: Sequence[Positive]

    def __post_init__(self) -> None:
        if self.least_jobs < 2:
            raise InputError(f"config key '{self.KEY}.least_jobs': {self.least_jobs} is below 2")
        for key in ("jobs", "nodes_per_type", "load"):
            ends = getattr(self, key)
            if len(ends) != 2 or ends[0] > ends[1]:
                message = f"{ends} is not a least and a most"
                raise InputError(f"config key '{self.KEY}.{key}': {message}")


@dataclass(frozen=True, eq=False)
class Source:
    """One window of one trace of a split."""

    name: str  # of the trace
    jobs: Trace
    split: Split


def check_windows(
    splits: Mapping[str, SplitConfig], window: str, exam_window: str,
    keys: tuple[str, str] = ("window", "exam_window"),
) -> None:  # fmt: skip
    """Refuse to learn from nothing, or to examine on what was learned from.

    Raises:
        InputError: naming the config key.
    """
    if not splits:
        raise InputError("config key 'splits': no split")
    if window == exam_window:
        raise InputError(f"config key '{keys[1]}': is the window of training")
    for split in splits.values():
        for key, name in zip(keys, (window, exam_window), strict=True):
            if name not in split.shares:
                known = ", ".join(split.shares)
                told = f"{name!r} is unknown in split {split.name} (known: {known})"
                raise InputError(f"config key '{key}': {told}")


def inputs_of(splits: Mapping[str, SplitConfig]) -> dict[str, str]:
    """The SHA-256 of the files of all splits, by name."""
    return {name: sha for config in splits.values() for name, sha in config.inputs.items()}


def sources(splits: Sequence[Split], window: str, config: SampledWindows) -> list[Source]:
    """A window of all traces of some splits, where it has enough jobs.

    Raises:
        InputError: a split has no such window, or nowhere are enough jobs.
    """
    found = []
    for split in splits:
        split.config.require_window(window)
        for name, part in split.traces.items():
            jobs = part.windows[window].trace
            if len(jobs) >= config.least_jobs:
                found.append(Source(name, jobs, split))
    if not found:
        message = f"no window {window!r} of the splits has {config.least_jobs} jobs"
        raise InputError(f"config key '{config.KEY}.least_jobs': {message}")
    return found


def sampled_window(
    found: Sequence[Source], config: SampledWindows, rng: np.random.Generator
) -> tuple[str, ClusterProblem]:
    """Consecutive jobs of a random trace on a random cluster, and the name of the trace.

    Raises:
        InputError: parts are too small, or all of their jobs are submitted at once.
    """
    for _ in range(TRIES):
        source = found[int(rng.integers(len(found)))]
        chosen, split = source.split.config, source.split
        nodes = int(rng.integers(config.nodes_per_type[0], config.nodes_per_type[1] + 1))
        cluster = chosen.cluster(nodes * len(chosen.gpu_types))
        jobs = at_most_gpus(source.jobs, nodes * chosen.gpus_per_node)
        count = min(int(rng.integers(config.jobs[0], config.jobs[1] + 1)), len(jobs))
        first = int(rng.integers(len(jobs) - count + 1))
        load = float(rng.uniform(config.load[0], config.load[1]))
        part = jobs.take(slice(first, first + count)).canonical()
        if count < config.least_jobs or part.span_s == 0:
            continue
        part = stretch(part, reference_load(part, cluster, split.rates) / load)
        return source.name, ClusterProblem(cluster, part, split.rates, split.overheads, None)
    message = f"{TRIES} parts in a row have fewer jobs, or none after another"
    raise InputError(f"config key '{config.KEY}.least_jobs': {message}")
