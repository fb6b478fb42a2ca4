"""Conditions that a scheduler was not trained under: the windows of a split, changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from envs.bounds import NonNegative, Positive
from envs.cluster.interference.rates import RateModel
from envs.cluster.workload.slicing import at_most_gpus
from envs.errors import InputError
from envs.forms import Form, read_form
from experiments.cluster.split_windows import Split, SplitWindow, TracePart, gpus_of_a_type
from experiments.config.targets import build_as

SHAPE = ("gpus_per_node", "nodes_per_rack", "gpu_types")  # of clusters


class Changes(Form):
    """Changes of a split; what is not named stays.

    Jobs that no longer fit the GPUs of one type are left out, as those of more than `max_gpus` are.
    """

    nodes: Positive = 1.0  # factor of every trace's nodes; the load stays as it is
    gpus_per_node: int = 1
    nodes_per_rack: int | None = None  # None: one rack
    gpu_types: Sequence[str] = ()
    load: Positive = 1.0  # of all traces
    restart_s: NonNegative = 0.0  # for which a stopped job holds its GPUs before it progresses
    interference: dict[str, Any] | None = None  # another model
    schedulers: int = 1  # that share the cluster; this is of the learned scheduler alone


class Condition(NamedTuple):
    """What is left of a window of a split under named changes."""

    name: str
    changes: Mapping[str, Any]  # by the names of `Changes`
    windows: list[SplitWindow]
    jobs: int  # of the windows
    left_out: int  # jobs that would fit no GPU type, or are of windows with too few others

    @classmethod
    def of(cls, name: str, changes: Mapping[str, Any], split: Split, window: str) -> Condition:
        """The parts of a window of all traces, under the changes of this name in the config.

        Raises:
            InputError: a change is unknown or not of its type, a cluster cannot be, there is no
                such window, or too few jobs are left.
        """
        where = f"config key 'conditions.{name}'"
        read_form(Changes, changes, where)
        before = split.windows(window)
        rates = None
        if node := changes.get("interference"):
            key = f"conditions.{name}.interference"
            rates = build_as(RateModel, node, key, "interference model")
        found: list[SplitWindow] = []
        for part in split.traces.values():
            try:
                found += changed(part, changes, rates, window).parts(window)
            except InputError as error:
                key = f"{where}, trace {part.name}"
                raise InputError(error.message, file=key, field=error.field) from error
        if not found:
            told = f"no window {window!r} has {split.config.least_jobs} jobs that fit one GPU type"
            raise InputError(told, file=where)
        jobs, whole = (sum(len(x.problem.trace) for x in some) for some in (found, before))
        return cls(name, changes, found, jobs, whole - jobs)


def changed(
    part: TracePart, changes: Mapping[str, Any], rates: RateModel | None, window: str
) -> TracePart:
    """A trace of a split with one window alone, under changes; `rates` is the other model.

    The window is as long as in the split, and none of its jobs is in another.
    """
    shape = {key: changes[key] for key in SHAPE if key in changes}
    nodes = round(part.config.traces[part.name].nodes * changes.get("nodes", 1.0))
    cluster, cut = replace(part.config, **shape).cluster(max(nodes, 1)), part.windows[window]
    restart_s = float(changes.get("restart_s", part.overheads.restart_s))
    return replace(
        part,
        cluster=cluster,
        windows={window: replace(cut, trace=at_most_gpus(cut.trace, gpus_of_a_type(cluster)))},
        load=float(changes.get("load", part.load)),
        rates=rates or part.rates,
        overheads=part.overheads._replace(restart_s=restart_s),
    )
