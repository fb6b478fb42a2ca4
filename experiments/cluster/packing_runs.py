"""Packing rules at work on arrivals drawn from a workload: what part of the GPUs each one fills."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agents.cluster.rules.fractional import FractionalRule
from agents.cluster.rules.packing import draw_arrivals, pack
from envs.arrays import FloatArray
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.memory import require_memory

COLUMNS = ("rule", "allocated", "sd", "least", "most", "failed", "time")

RUN_BYTES = 1e4  # of one: a generator, and the arrivals it draws
CURVE_STEP = 1.0  # percent of demand between points of the curves


@dataclass(frozen=True, eq=False)
class Filled:
    """One rule over R runs."""

    rule: str
    curves: FloatArray  # (R, P) percent of the GPUs allocated, by demand
    final: FloatArray  # (R,) percent at the end
    failed: FloatArray  # (R,) percent of the pods that did not fit
    seconds: float  # of all runs

    @property
    def deviation(self) -> float:
        """Standard deviation of `final` between runs; nan for a single one."""
        return float(np.std(self.final, ddof=1)) if len(self.final) > 1 else float("nan")

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        spread = f"{self.deviation:.2f}" if len(self.final) > 1 else ""
        return (
            self.rule,
            f"{self.final.mean():.2f} %",
            spread,
            f"{self.final.min():.2f} %",
            f"{self.final.max():.2f} %",
            f"{self.failed.mean():.1f} %",
            f"{self.seconds:.1f} s",
        )

    def document(self) -> dict[str, object]:
        """The row as numbers."""
        return {
            "rule": self.rule,
            "mean_allocation_percent": float(self.final.mean()),
            "standard_deviation": self.deviation,
            "least_allocation_percent": float(self.final.min()),
            "most_allocation_percent": float(self.final.max()),
            "allocation_percent": self.final,
            "mean_failed_percent": float(self.failed.mean()),
            "curve_percent": self.curves.mean(axis=0),
            "seconds": self.seconds,
        }


class PackingRuns:
    """Pods drawn for one cluster once for each seed, which every rule then packs.

    `demand` (P,) are percents of the cluster's GPUs at which curves are read off.
    """

    def __init__(
        self, pods: ResourceRequests, cluster: Cluster, load: float, seeds: Sequence[int]
    ) -> None:
        self.pods, self.cluster, self.seeds = pods, cluster, seeds
        require_memory(RUN_BYTES * len(seeds), f"{len(seeds):,} runs", field="runs")
        streams = [np.random.default_rng([seed, 0]) for seed in seeds]
        self.arrivals = [draw_arrivals(pods, cluster, load, stream) for stream in streams]
        self.demand = np.arange(0.0, 100 * load + CURVE_STEP / 2, CURVE_STEP)
        self.title = (
            f"{pods.name} on {cluster.name}: {cluster.num_nodes:,} nodes, "
            f"{cluster.num_gpus:,} GPUs, demand {100 * load:g} %"
        )

    def fill(self, name: str, rule: FractionalRule) -> Filled:
        """Pack every list of arrivals by `rule`."""
        start = time.perf_counter()
        percent = 100 / (self.cluster.num_gpus * WHOLE_GPU)
        curves, final, failed = [], [], []
        for seed, jobs in zip(self.seeds, self.arrivals, strict=True):
            stream = np.random.default_rng([seed, 1])
            packed = pack(rule, self.cluster, self.pods, jobs, stream)
            demanded = packed.arrived_milli * percent
            arrived = np.searchsorted(demanded, self.demand + 1e-9, side="right")
            allocated = np.concatenate([[0.0], packed.allocated_milli * percent])
            curves.append(allocated[arrived])
            final.append(allocated[-1])
            failed.append(100 * packed.failed / len(jobs))
        return Filled(
            rule=name,
            curves=np.array(curves),
            final=np.array(final),
            failed=np.array(failed),
            seconds=time.perf_counter() - start,
        )

    def document(self) -> dict[str, object]:
        """What is packed, as numbers."""
        return {
            "nodes": self.cluster.num_nodes,
            "gpus": self.cluster.num_gpus,
            "pods": len(self.pods),
            "seeds": list(self.seeds),
            "mean_arrivals": float(np.mean([len(jobs) for jobs in self.arrivals])),
            "demand_percent": self.demand,
        }
