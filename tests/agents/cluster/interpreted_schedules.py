"""What schedulers and environments make of small problems; as a program, by kernels not compiled.

    python -m tests.agents.cluster.interpreted_schedules

prints it as JSON, having compiled nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from agents.cluster.gandiva import Gandiva
from agents.cluster.joint_choice import JointChoice
from agents.cluster.migrating.policy import Migrating
from agents.cluster.policy import Scheduler
from agents.cluster.queue import (
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
from agents.cluster.replay import replay
from agents.cluster.rules.gangs import (
    BestFit,
    FirstFit,
    HeliosConsolidate,
    LeastInterference,
    Random,
    Spread,
    Yarn,
)
from agents.cluster.rules.shared_gpus import SharedGpuPlacement
from envs import compilation
from envs.cluster.environment.env import ClusterEnv, preemptive_environment
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads
from envs.cluster.workload.trace import Trace
from tests.envs.cluster.interference.made_up import configured

CLUSTER = Cluster.uniform(4, 4, nodes_per_rack=2, gpu_types=("V100", "P100"))
FAILURE = np.array([(900.0, 1, 0), (2500.0, 1, 1)], INCIDENT)
POLICIES: dict[str, Callable[[], Scheduler]] = {
    "fifo": lambda: FIFO(Yarn()),
    "fifo_backfill": lambda: FIFOBackfill(HeliosConsolidate()),
    "easy": lambda: EASY(BestFit()),
    "sjf": lambda: SJF(Random(), seed=3),
    "sjf_strict": lambda: SJFStrict(Spread()),
    "srtf": lambda: SRTF(LeastInterference()),
    "srsf": lambda: SRSF(FirstFit()),
    "las_2d": lambda: LAS2D(BestFit(), (2000, 6000)),
    "las_2d_tiresias": lambda: LAS2DTiresias(Yarn(), (2000, 6000)),
    "joint_choice": JointChoice,
    "gandiva": Gandiva,
    "migrating": Migrating,
    "shared": lambda: FIFOBackfill(SharedGpuPlacement()),
}


def schedules() -> dict[str, list[float]]:
    """Of every policy the times at which the jobs of a trace finish; of environments rewards."""
    rng = np.random.default_rng(1)
    jobs = 24
    trace = Trace.of(
        "small",
        np.sort(rng.integers(0, 4000, jobs)),
        rng.integers(1, 3000, jobs),
        rng.choice([1, 1, 2, 4, 6], jobs),
    )
    found = {
        name: replay(
            policy(),
            CLUSTER,
            trace,
            rates=configured("analytic"),
            overheads=Overheads(30.0, 600.0),
            incidents=FAILURE,
        ).finish.tolist()
        for name, policy in POLICIES.items()
    }
    for make in (ClusterEnv, preemptive_environment):
        env = make(rates=configured("analytic"))
        _, info = env.reset(seed=1)
        rewards: list[float] = []
        ended = False
        while not ended and len(rewards) < 200:
            action = int(rng.choice(np.flatnonzero(info["action_mask"])))
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(float(reward))
            ended = terminated or truncated
        found[make.__name__] = rewards
    return found


if __name__ == "__main__":
    compilation.tier.most_seconds = np.inf
    before = time.perf_counter() - compilation.clock()
    found = schedules()
    compiling_s = time.perf_counter() - compilation.clock() - before
    print(json.dumps({"compiled": compiling_s > 0.01, "found": found}))
