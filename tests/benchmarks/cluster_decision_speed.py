"""Milliseconds of one decision of the shipped scheduler for 400 servers of 8 GPUs, on one core.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/cluster_decision_speed.py

Three GPU types, racks of eight servers. Jobs come at once and start, the first of the queue on the
first servers that have room; after 20 events 20 are stopped. About 1,000 run, and 500 wait. A
decision is all that is done for it: the posterior of what every job still needs, its priority, the
plan, and what starts and stops by it. Told is the same asked of a live decider, from the state as
plain data to the answer, where jobs that have finished are told as well. Processor time of this
process; medians of 50.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from agents.cluster.live import ClusterDecider
from agents.cluster.migrating.policy import Migrating
from agents.cluster.rules.gangs import FirstFit
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.state_documents import document_of

SCHEDULER = "unknown_durations"
SERVERS, GPUS, PER_RACK, TYPES = 400, 8, 8, ("V100", "P100", "K80")
JOBS = 1_500
SIZES, CHANCES = (1, 2, 4, 8, 16), (0.46, 0.23, 0.17, 0.09, 0.05)
EVENTS, STOPPED = 20, 20
ROUNDS, WARM_UP, LIMIT_MS = 50, 5, 20.0


def full_cluster(policy: Migrating) -> ClusterSimulator:
    """A cluster that is nearly full, with 500 jobs or so in the queue; the policy begins there."""
    rng = np.random.default_rng(0)
    gpus = rng.choice(SIZES, JOBS, p=CHANCES)
    seconds = np.exp(rng.uniform(np.log(600), np.log(864_000), JOBS)).astype(np.int64)
    trace = Trace.of("full cluster", np.zeros(JOBS, np.int64), seconds, gpus)
    cluster = Cluster.uniform(SERVERS, GPUS, nodes_per_rack=PER_RACK, gpu_types=TYPES)
    simulator = ClusterSimulator(cluster, trace, rates=NoInterference())
    policy.reset(simulator)
    simulator.advance()
    for job in simulator.pending():
        shares = FirstFit().place(simulator, int(job), rng)
        if shares is not None:
            simulator.start(int(job), shares)
    for _ in range(EVENTS):
        simulator.advance()
    for job in rng.permutation(simulator.running())[:STOPPED]:
        simulator.preempt(int(job))
    simulator.settle()
    return simulator


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
    decider = ClusterDecider(SCHEDULER)
    policy = decider.scheduler.mover
    assert policy is not None
    simulator = full_cluster(policy)
    state, order = simulator.state, copy.deepcopy(policy.priority)
    jobs = np.sort(np.concatenate([simulator.pending(), simulator.running()]))
    print(
        f"{SERVERS} servers of {GPUS} GPUs, {len(simulator.pending())} jobs wait, "
        f"{len(simulator.running())} run, {sum(1 for _ in policy.moves(simulator.copy()))} moves"
    )

    def fresh() -> ClusterSimulator:
        policy.priority = copy.deepcopy(order)  # knows nothing of this instant yet
        return simulator.copy()

    order_ms = milliseconds(lambda _: policy.priority(state, jobs), fresh)
    whole_ms = milliseconds(policy.decide, fresh)
    document = document_of(simulator, durations=False)
    told_ms = milliseconds(decider.decide, lambda: document)
    for what, spent in (
        ("posterior and priority", order_ms),
        ("plan, starts and stops", whole_ms - order_ms),
        ("decision, in all", whole_ms),
        ("told and answered", told_ms),
    ):
        print(f"{what:24}{spent:8.2f} ms")
    if whole_ms > LIMIT_MS:
        raise SystemExit(f"to be at most {LIMIT_MS:g} ms")


if __name__ == "__main__":
    main()
