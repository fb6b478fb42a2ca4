"""Jobs per second of the cluster policies by their fastest way, and how time grows with jobs.

    MESHWRIGHT_DATA=<folder> python tests/benchmarks/cluster_speed.py

ITP cluster04 (15,802 jobs) on 80 nodes of 8 GPUs: the whole of `replay`, which checks the trace and
makes the schedule too. Then interference: the loop on the simulator's state, without and with
neighbours that share what a node has. Then drawn jobs at load 0.9 on
10,000 GPUs in 1,250 nodes. CPU time of one thread, warm: the median of `ROUNDS` rounds, of which
one more compiles; the peak memory of the process is that of all rows so far.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from agents.cluster.policy import Scheduler  # noqa: E402
from agents.cluster.queue import (  # noqa: E402
    EASY,
    FIFO,
    LAS2D,
    SJF,
    SRSF,
    SRTF,
    FIFOBackfill,
    LAS2DTiresias,
    SJFStrict,
)
from agents.cluster.replay import replay  # noqa: E402
from agents.cluster.rules.gangs import BestFit, Count, Yarn  # noqa: E402
from envs.cluster.interference.rates import RateModel  # noqa: E402
from envs.cluster.nodes import Cluster  # noqa: E402
from envs.cluster.simulation.cluster import ClusterSimulator  # noqa: E402
from envs.cluster.workload.readers.job_logs import ItpReader  # noqa: E402
from envs.cluster.workload.trace import Trace  # noqa: E402
from tests.envs.cluster.interference.made_up import configured  # noqa: E402

ROUNDS = 15
LARGE = Cluster.uniform(1_250, 8)
SIZES, SHARES = (1, 2, 4, 8, 16, 32, 64), (0.6, 0.1, 0.1, 0.12, 0.05, 0.02, 0.01)
LIMITS = (3250, 7200)


def policies() -> list[tuple[str, Scheduler]]:
    """What is measured on the real trace."""
    plain = (FIFO, FIFOBackfill, EASY, SJF, SJFStrict, SRTF, SRSF)
    rows: list[tuple[str, Scheduler]] = [(f"{p.name}, count", p(Count(), 0)) for p in plain]
    rows += [(f"{p.name}, count", p(Count(), LIMITS, 0)) for p in (LAS2D, LAS2DTiresias)]
    return [*rows, *((f"{p.name}, yarn", p(Yarn(), 0)) for p in (FIFO, FIFOBackfill, SJF))]


def drawn(jobs: int) -> Trace:
    """Jobs of log-normal durations, uniform arrivals and load 0.9 on `LARGE`."""
    rng = np.random.default_rng(0)
    gpus = rng.choice(SIZES, jobs, p=SHARES)
    duration = np.maximum(rng.lognormal(8.0, 1.6, jobs).astype(np.int64), 60)
    span = int((gpus * duration).sum() / (0.9 * LARGE.num_gpus))
    return Trace.of("drawn", np.sort(rng.integers(0, span, jobs)), duration, gpus)


def seconds_of(policy: Scheduler, cluster: Cluster, trace: Trace, rounds: int) -> float:
    """CPU seconds of one replay."""
    took = []
    for _ in range(rounds + 1):
        start = time.process_time()
        replay(policy, cluster, trace)
        took.append(time.process_time() - start)
    return float(np.median(took[1:]))


def disturbed() -> list[tuple[str, Scheduler]]:
    """What is measured with interference."""
    rows: list[tuple[str, Scheduler]] = []
    for placement in (Yarn(), BestFit()):
        rows += [
            (f"{p.name}, {placement.name}", p(placement, 0))
            for p in (FIFO, FIFOBackfill, SJF, SJFStrict, SRTF)
        ]
    return [*rows, ("las_2d, yarn", LAS2D(Yarn(), LIMITS, 0))]


def compiled_seconds_of(
    policy: Scheduler, cluster: Cluster, trace: Trace, rates: RateModel | None
) -> float:
    """CPU seconds of one run on the simulator's state, without making the state."""
    took = []
    for _ in range(ROUNDS + 1):
        simulator = ClusterSimulator(cluster, trace, rates=rates)
        start = time.process_time()
        assert policy.run(simulator)
        took.append(time.process_time() - start)
    return float(np.median(took[1:]))


def print_interference(cluster: Cluster, trace: Trace) -> None:
    """Print a row per policy: milliseconds, and how many times slower interference is."""
    rates = configured("analytic")
    print("\ninterference on: ms of its own loop, of the general one without and with")
    columns = f"{'own':>10}{'without':>10}{'with':>10}{'/ own':>8}{'/ without':>11}"
    print(f"{'policy, placement':28}{columns}")
    for name, policy in disturbed():
        own = None
        if policy.replay(cluster, trace) is not None:
            own = seconds_of(policy, cluster, trace, ROUNDS)
        plain = compiled_seconds_of(policy, cluster, trace, None)
        slow = compiled_seconds_of(policy, cluster, trace, rates)
        shown = "-" if own is None else f"{1e3 * own:.2f}"
        ratio = "-" if own is None else f"{slow / own:.2f}"
        times = f"{1e3 * plain:>10.2f}{1e3 * slow:>10.2f}"
        print(f"{name:28}{shown:>10}{times}{ratio:>8}{slow / plain:>11.2f}")


def main() -> None:
    """Print a row per policy, then a row per number of jobs."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        sys.exit("MESHWRIGHT_DATA is not set: it must name the folder of published traces")
    trace = ItpReader().read(Path(folder) / "traces/itp/cluster04.csv.gz").trace
    cluster = Cluster.uniform(80, 8, nodes_per_rack=10)
    print(f"{trace.name}: {len(trace)} jobs, {cluster.num_gpus} GPUs")
    print(f"{'policy, placement':28}{'ms':>10}{'jobs/s':>14}")
    for name, policy in policies():
        took = seconds_of(policy, cluster, trace, ROUNDS)
        print(f"{name:28}{1e3 * took:>10.2f}{len(trace) / took:>14,.0f}")
    print_interference(cluster, trace)
    print(f"\n{LARGE.num_gpus} GPUs, load 0.9")
    print(f"{'policy, placement':28}{'jobs':>10}{'s':>10}{'jobs/s':>14}{'peak MiB':>10}")
    large: list[tuple[str, Scheduler]] = [
        ("fifo_backfill, best_fit", FIFOBackfill(BestFit(), 0)),
        ("fifo_backfill, yarn", FIFOBackfill(Yarn(), 0)),
        ("srtf, count", SRTF(Count(), 0)),
    ]
    for jobs in (125_000, 250_000, 500_000, 1_000_000):
        trace = drawn(jobs)
        for name, policy in large:
            took = seconds_of(policy, LARGE, trace, 1)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{name:28}{jobs:>10}{took:>10.2f}{jobs / took:>14,.0f}{peak:>10,.0f}")


if __name__ == "__main__":
    main()
