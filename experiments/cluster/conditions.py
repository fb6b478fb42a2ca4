"""Conditions that a scheduler was not trained under: the windows of a split, changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.workload.slicing import at_most_gpus
from envs.errors import InputError
from experiments.cluster.split_windows import Split, SplitTrace, SplitWindow, TracePart
from experiments.config.targets import build_as, check_type, unknown_key

HINTS: dict[str, Any] = {
    "nodes": float, "nodes_per_rack": int | None, "gpus_per_node": int, "gpu_types": Any,
    "load": float, "restart_s": float, "interference": Any, "schedulers": int,
}  # fmt: skip


class ConditionWindows(NamedTuple):
    """What is left of a split's windows under a condition."""

    windows: list[SplitWindow]
    jobs: int  # of the windows
    left_out: int  # jobs that would fit no GPU type, or are of windows with too few others


@dataclass(frozen=True, eq=False)
class Condition:
    """Named changes of a split; what is not named stays.

    * `nodes`: factor of every trace's nodes; the load stays as it is.
    * `gpus_per_node`, `nodes_per_rack` (null: one rack), `gpu_types`: of all clusters.
    * `load`: of all traces.
    * `restart_s`: seconds for which a stopped job holds its GPUs before it progresses.
    * `interference`: another model.
    * `schedulers`: how many share the cluster; this is of the learned scheduler alone.

    Jobs that no longer fit the GPUs of one type are left out, as those of more than `max_gpus` are.

    Args:
        name: under `conditions` of the config.
        changes: by the names above.

    Raises:
        InputError: a change is unknown or not of its type, or out of range.
    """

    name: str
    changes: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.changes, Mapping):
            raise InputError(f"config key 'conditions.{self.name}': {self.changes!r} is no mapping")
        for key, value in self.changes.items():
            where = f"conditions.{self.name}.{key}"
            if key not in HINTS:
                raise InputError(unknown_key(where, HINTS))
            check_type(value, HINTS[key], where)
        for key in ("nodes", "load"):
            if not 0.0 < self.changes.get(key, 1.0) < np.inf:
                message = f"{self.changes[key]} is not above 0"
                raise InputError(f"config key 'conditions.{self.name}.{key}': {message}")
        types = self.changes.get("gpu_types", [])
        if not (isinstance(types, list) and all(isinstance(name, str) for name in types)):
            message = f"{types!r} is no list of names"
            raise InputError(f"config key 'conditions.{self.name}.gpu_types': {message}")

    @property
    def schedulers(self) -> int | None:
        """How many share the cluster; None: as many as ever."""
        return self.changes.get("schedulers")

    @cached_property
    def rates(self) -> RateModel | None:
        """The other model of interference; None: that of the split.

        Raises:
            InputError: the config describes something else.
        """
        node = self.changes.get("interference")
        if node is None:
            return None
        key = f"conditions.{self.name}.interference"
        return build_as(RateModel, node, key, "interference model")

    def cluster(self, split: Split, chosen: SplitTrace) -> Cluster:
        config = {**vars(split.config), **self.changes}
        nodes = max(round(chosen.nodes * self.changes.get("nodes", 1.0)), 1)
        racks, types = config["nodes_per_rack"], config["gpu_types"]
        return Cluster.uniform(
            nodes, config["gpus_per_node"], nodes_per_rack=racks, gpu_types=types
        )

    def part(self, split: Split, name: str, window: str) -> TracePart:
        """A trace of the split under the condition, with a window alone.

        The window is as long as in the split, and none of its jobs is in another.
        """
        part = split.traces[name]
        try:
            cluster = self.cluster(split, split.config.traces[name])
            most = int(np.bincount(cluster.gpu_type, cluster.gpus).min())
            cut = part.windows[window]
            overheads = part.overheads
            if "restart_s" in self.changes:
                overheads = overheads._replace(restart_s=float(self.changes["restart_s"]))
            return replace(
                part,
                cluster=cluster,
                windows={window: replace(cut, trace=at_most_gpus(cut.trace, most))},
                load=float(self.changes.get("load", part.load)),
                rates=part.rates if self.rates is None else self.rates,
                overheads=overheads,
            )
        except InputError as error:
            key = f"config key 'conditions.{self.name}', trace {name}"
            raise InputError(error.message, file=key, field=error.field) from error

    def windows(self, split: Split, window: str) -> ConditionWindows:
        """The parts of a window of all traces, under the condition.

        Raises:
            InputError: a cluster cannot be, there is no such window, or too few jobs are left.
        """
        config = split.config
        if window not in config.shares:
            known = ", ".join(config.shares)
            raise InputError(f"config key 'window': {window!r} is unknown (known: {known})")
        sizes = {"window_jobs": config.window_jobs, "least_jobs": config.least_jobs}
        found = [
            one
            for name in split.traces
            for one in self.part(split, name, window).parts(window, **sizes)
        ]
        jobs = sum(len(one.problem.trace) for one in found)
        before = sum(len(one.problem.trace) for one in split.windows(window))
        if not found:
            message = f"no window {window!r} has {config.least_jobs} jobs that fit one GPU type"
            raise InputError(f"config key 'conditions.{self.name}': {message}")
        return ConditionWindows(found, jobs, before - jobs)
