"""Jobs per second of the cluster policies in their own loops, and how time grows with jobs.

    MESHWRIGHT_DATA=<folder> python tests/benchmarks/cluster_speed.py

ITP cluster04 (15,802 jobs) on 80 nodes of 8 GPUs: the whole of `policy.replay`, which checks the
trace and makes the schedule too, and the loop alone is most of it. Then drawn jobs at load 0.9 on
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

from agents.cluster.easy import EASY  # noqa: E402
from agents.cluster.fifo import FIFO  # noqa: E402
from agents.cluster.fifo_backfill import FIFOBackfill  # noqa: E402
from agents.cluster.las_2d import LAS2D  # noqa: E402
from agents.cluster.las_2d_tiresias import LAS2DTiresias  # noqa: E402
from agents.cluster.non_preemptive import NonPreemptive  # noqa: E402
from agents.cluster.placement.best_fit import BestFit  # noqa: E402
from agents.cluster.placement.count import Count  # noqa: E402
from agents.cluster.placement.yarn import Yarn  # noqa: E402
from agents.cluster.replay import FusedPolicy  # noqa: E402
from agents.cluster.sjf import SJF  # noqa: E402
from agents.cluster.sjf_strict import SJFStrict  # noqa: E402
from agents.cluster.srsf import SRSF  # noqa: E402
from agents.cluster.srtf import SRTF  # noqa: E402
from envs.hardware.cluster import Cluster  # noqa: E402
from envs.workload.readers.itp import ItpReader  # noqa: E402
from envs.workload.trace import Trace  # noqa: E402

ROUNDS = 15
LARGE = Cluster.uniform(1_250, 8)
SIZES, SHARES = (1, 2, 4, 8, 16, 32, 64), (0.6, 0.1, 0.1, 0.12, 0.05, 0.02, 0.01)
LIMITS = (3250, 7200)


def policies() -> list[tuple[str, FusedPolicy]]:
    """What is measured on the real trace."""
    plain = (FIFO, FIFOBackfill, EASY, SJF, SJFStrict, SRTF, SRSF)
    rows: list[tuple[str, FusedPolicy]] = [(f"{p.name}, count", p(Count(), 0)) for p in plain]
    rows += [(f"{p.name}, count", p(Count(), LIMITS, 0)) for p in (LAS2D, LAS2DTiresias)]
    packed: tuple[type[NonPreemptive], ...] = (FIFO, FIFOBackfill, SJF)
    return [*rows, *((f"{p.name}, yarn", p(Yarn(), 0)) for p in packed)]


def drawn(jobs: int) -> Trace:
    """Jobs of log-normal durations, uniform arrivals and load 0.9 on `LARGE`."""
    rng = np.random.default_rng(0)
    gpus = rng.choice(SIZES, jobs, p=SHARES)
    duration = np.maximum(rng.lognormal(8.0, 1.6, jobs).astype(np.int64), 60)
    span = int((gpus * duration).sum() / (0.9 * LARGE.num_gpus))
    return Trace.of("drawn", np.sort(rng.integers(0, span, jobs)), duration, gpus)


def seconds_of(policy: FusedPolicy, cluster: Cluster, trace: Trace, rounds: int) -> float:
    """CPU seconds of one replay."""
    took = []
    for _ in range(rounds + 1):
        start = time.process_time()
        assert policy.replay(cluster, trace) is not None
        took.append(time.process_time() - start)
    return float(np.median(took[1:]))


def main() -> None:
    """Print a row per policy, then a row per number of jobs."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        sys.exit("MESHWRIGHT_DATA is not set: it must name the folder of published traces")
    trace = ItpReader().read(Path(folder) / "traces/itp/cluster04.csv.gz").trace
    cluster = Cluster.uniform(80, 8)
    print(f"{trace.name}: {len(trace)} jobs, {cluster.num_gpus} GPUs")
    print(f"{'policy, placement':28}{'ms':>10}{'jobs/s':>14}")
    for name, policy in policies():
        took = seconds_of(policy, cluster, trace, ROUNDS)
        print(f"{name:28}{1e3 * took:>10.2f}{len(trace) / took:>14,.0f}")
    print(f"\n{LARGE.num_gpus} GPUs, load 0.9")
    print(f"{'policy, placement':28}{'jobs':>10}{'s':>10}{'jobs/s':>14}{'peak MiB':>10}")
    large: list[tuple[str, FusedPolicy]] = [
        ("fifo_backfill, best_fit", FIFOBackfill(BestFit(), 0)),
        ("fifo_backfill, yarn", FIFOBackfill(Yarn(), 0)),
        ("srtf, count", SRTF(Count(), 0)),
        ("las_2d, count", LAS2D(Count(), LIMITS, 0)),
    ]
    for jobs in (125_000, 250_000, 500_000, 1_000_000):
        trace = drawn(jobs)
        for name, policy in large:
            took = seconds_of(policy, LARGE, trace, 1)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{name:28}{jobs:>10}{took:>10.2f}{jobs / took:>14,.0f}{peak:>10,.0f}")


if __name__ == "__main__":
    main()
