"""Milliseconds of one decision of the shipped scheduler for 400 servers of 8 GPUs, on one core.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/cluster_decision_speed.py

Three GPU types, racks of eight servers. Jobs come at once and are started, the first of the queue
wherever it is offered, until no other fits; later 20 are stopped. About 1,000 run, and 500 of the
queue are shown. A decision is all that is done for it: the observation, the adviser, who works out
the Gittins indices of all jobs once an instant and plans them, and the exported network, run by
ONNX Runtime with one thread. Processor time of this process; medians of 50.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from agents.cluster.checkpoint import CheckpointScheduler
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.routing import ConsecutiveRacks, RandomRouting
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import FREE_OF_CHARGE
from envs.cluster.workload.trace import Trace

SCHEDULER = "unknown_durations"
SERVERS, GPUS, PER_RACK, TYPES = 400, 8, 8, ("V100", "P100", "K80")
JOBS, PENDING = 1_500, 500
SIZES, CHANCES = (1, 2, 4, 8, 16), (0.46, 0.23, 0.17, 0.09, 0.05)
WAITS, STOPPED = 20, 20  # events that pass; then running jobs, for whose GPUs there is a choice
ROUNDS, WARM_UP, LIMIT_MS = 50, 5, 20.0


def full_cluster(scheduler: CheckpointScheduler) -> SchedulingEpisode:
    """An episode whose cluster is nearly full, with 500 jobs or so in the queue."""
    rng = np.random.default_rng(0)
    gpus = rng.choice(SIZES, JOBS, p=CHANCES)
    seconds = np.exp(rng.uniform(np.log(600), np.log(864_000), JOBS)).astype(np.int64)
    trace = Trace.of("full cluster", np.zeros(JOBS, np.int64), seconds, gpus)
    cluster = Cluster.uniform(SERVERS, GPUS, nodes_per_rack=PER_RACK, gpu_types=TYPES)
    episode = scheduler.episode(cluster, trace, NoInterference(), FREE_OF_CHARGE)
    advice, episode.advice = episode.advice, None  # who is not asked meanwhile
    table = episode.action_table
    starts = table.window * table.groups

    def allowed() -> Any:
        return np.flatnonzero(episode.observe(0)[1][:-1])

    while len(offered := allowed()) and offered[0] < starts:
        episode.act(0, int(offered[0]))
    for _ in range(WAITS):
        episode.wait()
    for _ in range(STOPPED):
        offered = allowed()
        episode.act(0, int(offered[offered >= starts][0]))
    episode.advice = advice
    return episode


def milliseconds(call: Callable[[Any], object], given: Callable[[], Any]) -> float:
    """Median processor time of a call; what it is given is made beforehand."""
    spent = []
    for _ in range(WARM_UP + ROUNDS):
        argument = given()
        start = time.process_time()
        call(argument)
        spent.append(time.process_time() - start)
    return 1e3 * statistics.median(spent[WARM_UP:])


def main() -> None:
    """Print sizes and times."""
    scheduler = CheckpointScheduler(
        SCHEDULER, PENDING, 1, ConsecutiveRacks(), RandomRouting(), 0, 0.0, None, 0
    )
    episode = full_cluster(scheduler)
    unasked = episode.copy()
    graph, mask = episode.observe(0)  # the adviser knows the indices of this instant from now on
    shown = {name: int(graph[f"{name}_mask"].sum()) for name in ("pending", "running", "share")}
    shown |= {"actions": len(mask), "allowed actions": int(mask.sum(dtype=np.int64))}
    print(f"{SERVERS} servers of {GPUS} GPUs, " + ", ".join(f"{n:,} {k}" for k, n in shown.items()))
    alone = episode.copy()
    alone.advice = None
    observe_ms = milliseconds(lambda one: one.observe(0), lambda: alone)
    first_ms = milliseconds(lambda one: one.observe(0), unasked.copy) - observe_ms
    again_ms = milliseconds(lambda one: one.observe(0), lambda: episode) - observe_ms
    network_ms = milliseconds(lambda one: scheduler.decide(graph, mask, one), lambda: episode)
    for what, spent in (
        ("observation", observe_ms),
        ("adviser, first of an instant", first_ms),
        ("adviser, further decisions", again_ms),
        ("network", network_ms),
        ("first of an instant, in all", first := observe_ms + first_ms + network_ms),
        ("further decisions, in all", observe_ms + again_ms + network_ms),
    ):
        print(f"{what:30}{spent:8.2f} ms")
    if first > LIMIT_MS:
        raise SystemExit(f"to be at most {LIMIT_MS:g} ms")


if __name__ == "__main__":
    main()
