"""Regimes: jobs of published traces on random clusters, and what a scheduler may do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from agents.cluster.rule_numbers import Numbers
from envs.arrays import FloatArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.workload.slicing import at_most_gpus
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import require_one_of
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.cluster.split_windows import (
    SampledWindows,
    Split,
    SplitConfig,
    sampled_window,
    sources,
)
from experiments.config.targets import build_as, check_targets

Node = Mapping[str, Any]
LEARNING, JUDGING = 0, 1  # purposes of windows
SEVERAL = "partitioned"  # key of the policies that several schedulers can share a cluster with


@bounded
@dataclass(frozen=True)
class Regime:
    """Where schedulers are compared; `conf/regimes.yaml` says what the keys mean."""

    splits: Annotated[Sequence[str], MinLen(1)] = ("itp", "philly")  # whose windows
    jobs: Sequence[Count] = (100, 200)  # least and most consecutive jobs of a window
    nodes_per_type: Sequence[Count] = (2, 4)  # least and most nodes of each GPU type
    # least and most offered load, a GPU counted by its speed for the jobs, whole GPUs
    load: Sequence[Positive] = (1.0, 1.0)
    max_gpus: Count = 32  # jobs of more are left out, as are those that no GPU type holds
    gpu_types: Sequence[str] = ("V100", "P100", "T4")  # equal consecutive shares of the nodes
    nodes_per_rack: Count = 2  # nodes that share a rack switch; null: one rack
    # thousandths of each GPU that jobs ask for: 500 lets two share
    gpu_milli: Annotated[int, Ge(1), Le(WHOLE_GPU)] = 1000
    interference: str = "analytic"  # a name of interferences
    schedulers: Count = 1  # that share the cluster by its racks
    preemption: bool = False  # whether jobs may be stopped
    # of the windows, the first, on which rollouts are tried
    rollouts: Annotated[int, Ge(0)] = 6

    @property
    def shares(self) -> bool:
        """Whether jobs ask for fractions of GPUs."""
        return self.gpu_milli < WHOLE_GPU

    def policy(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """The config node of a policy, and of its base, with as many schedulers."""
        found = dict(node)
        if "base" in node:
            found["base"] = self.policy(node["base"])
        if SEVERAL in node:
            found[SEVERAL] = {**node[SEVERAL], "schedulers": self.schedulers}
        return found


@dataclass
class RegimeWindows(SampledWindows):
    """How windows of a regime are sampled."""

    KEY = "known"


@dataclass
class RegimesConfig:
    """What apps over regimes hold; `usual` and `known` are words of `Regime`."""

    splits: dict[str, SplitConfig]
    usual: dict[str, Any]
    known: dict[str, Any]
    interferences: dict[str, Any]
    window_seed: int  # that windows are sampled by
    seed: int

    def named(self, name: str, key: str) -> Regime:
        """`usual` with the words of a name, which the config has under `key`.

        Raises:
            InputError: the name or a word is unknown, or a value is not one of its kind.
        """
        require_one_of(name, self.known, file=f"config key '{key}'")
        where = f"known.{name}"
        node = {**self.usual, **self.known[name]}
        check_targets(node, where)
        regime = build_as(Regime, node, where, "regime")
        for split in regime.splits:
            require_one_of(split, self.splits, file=f"config key '{where}.splits'")
        key = f"config key '{where}.interference'"
        require_one_of(regime.interference, self.interferences, file=key)
        return regime

    def problems(
        self, regime: Regime, window: str, purpose: int, count: int
    ) -> list[ClusterProblem]:
        """So many sampled windows of a regime; another `purpose`, or `window_seed`, has others.

        Raises:
            InputError: a split or a window is bad, or nowhere are enough jobs.
        """
        changes = {
            "gpu_types": regime.gpu_types,
            "nodes_per_rack": regime.nodes_per_rack,
            "interference": self.interferences[regime.interference],
        }
        splits = [Split(replace(self.splits[name], **changes)) for name in regime.splits]
        parts = RegimeWindows(regime.jobs, regime.jobs[0], regime.nodes_per_type, regime.load)
        found = [
            replace(one, jobs=at_most_gpus(one.jobs, regime.max_gpus))
            for one in sources(splits, window, parts)
        ]
        problems = []
        for number in range(count):
            rng = np.random.default_rng((self.window_seed, purpose, number))
            name, problem = sampled_window(found, parts, rng)
            milli = np.full(len(problem.trace), regime.gpu_milli, np.int32)
            trace = replace(problem.trace, gpu_milli=milli, name=f"{window} {number} of {name}")
            problems.append(replace(problem, trace=trace))
        return problems


def mean_jcts(
    rule: Node, asked: Sequence[Numbers], problems: Sequence[ClusterProblem]
) -> FloatArray:
    """(numbers, problems) mean JCTs of a rule, in seconds."""
    policies = [built_policy({**rule, **numbers}, "agent") for numbers in asked]
    found = [[float(one.replay(policy).jct.mean()) for one in problems] for policy in policies]
    return np.array(found)
