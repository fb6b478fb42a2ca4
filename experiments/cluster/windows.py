"""Replay a policy on every window of a split, as it is or changed, or on windows of a regime.

python -m experiments.evaluate split=itp agent=srtf placement=yarn
python -m experiments.evaluate split=synthetic agent=checkpoint changes.nodes=0.5
python -m experiments.evaluate regime=shared agent=joint_choice windows=12

The result has the figures and a proved lower bound of each window.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import Ge, MinLen

from agents.cluster.lower_bound import completion_bound
from envs.bounds import Count, NonNegative, Positive
from envs.cluster.interference.rates import RateModel
from envs.cluster.simulation.cluster_metrics import measure
from envs.cluster.workload.slicing import at_most_gpus
from envs.compilation import clock
from envs.errors import InputError, refused_in
from experiments.cluster.evaluate_cluster import checkpoint_input
from experiments.cluster.problem import ClusterProblem, Scheduler, built_policy
from experiments.cluster.regimes import JUDGING, RegimesConfig
from experiments.cluster.split_windows import (
    Split,
    SplitConfig,
    TracePart,
    gpus_of_a_type,
    inputs_of,
)
from experiments.config.targets import build_as
from experiments.run.one_run import Result, Run


@dataclass(kw_only=True)
class Changes:
    """Of a split; None: as it is. Jobs that no longer fit the GPUs of one type are left out."""

    nodes: Positive = 1.0  # factor of every trace's nodes; the load stays as it is
    gpus_per_node: Count | None = None
    nodes_per_rack: Annotated[int, Ge(0)] | None = None  # 0: one rack
    gpu_types: Annotated[Sequence[str], MinLen(1)] | None = None
    load: Positive | None = None  # of all traces
    restart_s: NonNegative | None = None  # for which a stopped job holds its GPUs, idle
    interference: Any = None  # another model


def changed(part: TracePart, changes: Changes, window: str) -> TracePart:
    """A trace of a split with one window alone, under changes.

    The window is as long as in the split, and none of its jobs is in another.
    """
    asked = {key: getattr(changes, key) for key in ("gpus_per_node", "nodes_per_rack", "gpu_types")}
    shape = {key: value for key, value in asked.items() if value is not None}
    if shape.get("nodes_per_rack") == 0:
        shape["nodes_per_rack"] = None
    nodes = round(part.config.traces[part.name].nodes * changes.nodes)
    cluster, cut = replace(part.config, **shape).cluster(max(nodes, 1)), part.windows[window]
    rates, overheads = part.rates, part.overheads
    if (node := changes.interference) is not None:
        rates = build_as(RateModel, node, "changes.interference", "interference model")
    if changes.restart_s is not None:
        overheads = overheads._replace(restart_s=changes.restart_s)
    trace = at_most_gpus(cut.trace, gpus_of_a_type(cluster))
    return replace(
        part, cluster=cluster, windows={window: replace(cut, trace=trace)}, rates=rates,
        load=part.load if changes.load is None else changes.load, overheads=overheads,
    )  # fmt: skip


@dataclass(kw_only=True)
class SplitWindowsConfig:
    """`conf/split_windows.yaml`."""

    env: Any
    split: SplitConfig
    window: str = "test"  # which of the split's windows
    changes: Changes = field(default_factory=Changes)
    agent: Any
    placement: Any
    seed: int
    json: bool


@dataclass(kw_only=True)
class RegimeWindowsConfig(RegimesConfig):
    """`conf/regime_windows.yaml`."""

    env: Any
    regime: str  # of known
    window: Sequence[str] = ("validation",)  # of the splits: whose jobs are replayed
    windows: Count | None = 12  # of each; null: as many as rollouts are tried on
    agent: Any
    placement: Any
    sharing: Any  # the placement rule where jobs ask for fractions of GPUs
    json: bool


def split_windows(config: SplitWindowsConfig, run: Run) -> Result:
    """Replay every part of a split's window under a policy."""
    split = _split(config.split)
    windows = split.windows(config.window)
    left_out: Mapping[str, object] = split.left_out(config.window)
    if config.changes != Changes():
        before = sum(len(window.problem.trace) for window in windows)
        with refused_in("config key 'changes'"):
            parts = [changed(x, config.changes, config.window) for x in split.traces.values()]
        windows = [window for part in parts for window in part.parts(config.window)]
        if not windows:
            reason = f"no window has {config.split.least_jobs} jobs that fit one GPU type"
            raise InputError(f"config key 'changes': {reason}")
        left_out = {"jobs": before - sum(len(window.problem.trace) for window in windows)}
    problems = {window.name: window.problem for window in windows}
    about = {window.name: window.about for window in windows}
    policy = built_policy(config.agent, "agent")
    values = {"split": config.split.name, "window": config.window, "left_out_jobs": left_out}
    inputs = {**config.split.inputs, **checkpoint_input(config.agent)}
    return _played(run, policy, problems, values, inputs, about)


def regime_windows(config: RegimeWindowsConfig, run: Run) -> Result:
    """Replay sampled windows of a regime under a policy."""
    regime = config.named(config.regime, "regime")
    node = regime.policy(config.agent)
    if regime.shares and "placement" in node:
        node["placement"] = config.sharing
    policy = built_policy(node, "agent")
    count = regime.rollouts if config.windows is None else config.windows
    drawn = [
        problem
        for window in config.window
        for problem in config.problems(regime, window, JUDGING, count)
    ]
    problems = {problem.trace.name: problem for problem in drawn}
    return _played(run, policy, problems, {"regime": config.regime}, inputs_of(config.splits))


def _played(
    run: Run,
    policy: Scheduler,
    problems: Mapping[str, ClusterProblem],
    values: Mapping[str, object],
    inputs: Mapping[str, str],
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> Result:
    """Replay every problem; `about` are further figures of each."""
    start, found = clock(), {}
    for name, problem in problems.items():
        schedule = problem.replay(policy)
        figures = measure(schedule, problem.cluster.num_gpus)
        bound = completion_bound(problem.trace, problem.cluster, problem.rates)
        if figures.finished < figures.jobs:
            left = figures.jobs - figures.finished
            raise InputError(f"{policy.name} leaves {left} jobs unfinished", file=name)
        found[name] = {
            "jobs": figures.jobs,
            "mean_jct_s": figures.jct.mean,
            "p50_jct_s": figures.jct.p50,
            "p99_jct_s": figures.jct.p99,
            "preemptions": figures.preemptions,
            "lower_bound_s": bound.mean_jct_s,
            **(about or {}).get(name, {}),
        }
    mean = sum(row["mean_jct_s"] for row in found.values()) / max(len(found), 1)
    return Result(
        {
            **values,
            "knows": policy.knows,
            "windows": len(found),
            "mean_jct_s": mean,
            "seconds": clock() - start,
            "instances": found,
        },
        run.provenance.with_inputs(**inputs),
        shown=("windows", "mean_jct_s", "knows", "seconds"),
    )


def _split(config: SplitConfig) -> Split:
    """A split that was read once by this process is not read again."""
    key = json.dumps(config, default=vars, sort_keys=True)
    _splits[key] = _splits.get(key) or Split(config)
    return _splits[key]


_splits: dict[str, Split] = {}
